"""Keep-alive loops for machines that users created: their options, and the loop of one machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from outlast.app.machines import find_machine, interactive_cloud
from outlast.errors import BadRequest, NotFound, UsageError

if TYPE_CHECKING:
    from outlast.machines.keepalive.loop import KeepaliveLoop
    from outlast.machines.keepalive.world import KeepaliveOptions
    from outlast.records.machines import MachineRecords


def keepalive_options(
    *,
    command: str,
    budget_usd: float | None,
    halt_after_s: float,
    watch: tuple[str, ...],
    crashes: int,
    then: Literal["stop", "delete", "leave"],
) -> KeepaliveOptions:
    """Return options that fit together. Raises UsageError."""
    from outlast.machines.keepalive.world import KeepaliveOptions

    if budget_usd is not None and not 0 < budget_usd < float("inf"):
        raise UsageError(f"--budget: {budget_usd:g} must be more than zero")
    if not command and (halt_after_s or watch):
        raise UsageError("--halt-after and --watch need --command")
    return KeepaliveOptions(
        command=command,
        budget_usd=budget_usd or 0.0,
        halt_after_s=halt_after_s,
        watch=watch,
        crashes=crashes,
        then=then,
    )


def keepalive_of(
    records: MachineRecords, name: str, *, cloud_name: str = "", report: Callable[[str], None]
) -> KeepaliveLoop:
    """Return the loop of one machine. Raises BadRequest for a machine that outlast did not create."""
    from outlast.machines.keepalive.loop import KeepaliveLoop
    from outlast.machines.lifecycle import record_of

    try:
        cloud, machine = find_machine(records, name, cloud_name=cloud_name)
    except NotFound:
        record = records.find(name)
        # A machine that moves to another zone does not exist for a while.
        if record is None:
            raise
        found = KeepaliveLoop(interactive_cloud(record.cloud), records, name, report=report)
        memory = found.stored_memory()
        if memory is None or memory.move is None:
            raise
        return found
    if record_of(records, cloud, machine) is None:
        raise BadRequest(
            f"{name} was not created with `outlast machine create` in this workspace",
            hint="`outlast supervise` keeps runs alive; create a copy with `outlast machine create --like`",
        )
    return KeepaliveLoop(cloud, records, name, report=report)
