"""Removes everything of a verification, and proves it: two listings in a row must be empty."""

from __future__ import annotations

import time
from collections.abc import Callable

from outlast.clouds.cloud import LABEL_WORKSPACE, Cloud
from outlast.errors import CloudUnreachable
from outlast.verify.record import VerifyRecord, forget
from outlast.workspace import open_workspace

# Listings of a cloud lag behind: a machine that was launched a moment ago may appear only in the second one.
_LISTINGS, _BETWEEN_S, _TRIES = 2, 30.0, 40
# A request of a killed process may still be served by an emulator on this computer.
_BETWEEN_EMULATED_S = 3.0


def clean(record: VerifyRecord, cloud: Cloud, *, report: Callable[[str], None]) -> str:
    """Delete machines, secrets and objects; return a summary. Raises a CloudError if something stays."""
    workspace = open_workspace(record.workspace)
    machines: set[str] = set()
    between_s = 0.5 if cloud.traits.consistent_listings else _BETWEEN_S
    if getattr(cloud, "emulated", False):
        between_s = _BETWEEN_EMULATED_S
    empty = 0
    for left in range(_TRIES, -1, -1):
        listed = cloud.machines({LABEL_WORKSPACE: workspace.id})
        empty = 0 if listed else empty + 1
        if empty == _LISTINGS:
            break
        if not left:
            names = ", ".join(machine.name for machine in listed)
            hint = f"`outlast verify --clean {record.id}` tries again"
            raise CloudUnreachable(f"machines of verification {record.id} are still listed: {names}", hint=hint)
        for machine in listed:
            report(f"deleting {machine.name}")
            cloud.delete(machine.name)
            machines.add(machine.name)
        time.sleep(between_s if not listed else 0.2)
    for run in workspace.runs():
        cloud.drop_secrets(workspace.secrets_name(run))
    keys = [entry.key for entry in workspace.bucket.list("")]
    workspace.bucket.delete_many(keys)
    left_over = [entry.key for entry in workspace.bucket.list("", limit=3)]
    if left_over:
        raise CloudUnreachable(f"objects of verification {record.id} are left: {', '.join(left_over)}")
    forget(record)
    return f"deleted {len(machines)} machines and {len(keys)} objects; two listings are empty"
