"""What the boot script starts: finds out who this machine is, has its attempt carried out, ends the machine."""

from __future__ import annotations

import os
import time

from outlast.agent.agent import Agent
from outlast.agent.instance import GceInstance, Instance, patiently
from outlast.agent.output import report
from outlast.code.bootstrap import METADATA_SERVICE
from outlast.errors import OutlastError
from outlast.store.access import STORE_KEY, StoreAccess, store_access
from outlast.store.bucket import open_bucket
from outlast.workspace import Workspace

_LINGER_S = 30.0


def main() -> int:
    """The agent of this machine: who it is, it learns from the instance metadata."""
    instance = this_machine()
    run = patiently(instance, "outlast-run")
    number = int(instance.attribute("outlast-attempt"))
    if host := instance.attribute("outlast-storage-host"):
        os.environ.setdefault("STORAGE_EMULATOR_HOST", host)
    home = os.environ.get("HOME", "") or os.getcwd()
    try:
        workspace = Workspace(open_bucket(instance.attribute("outlast-workspace"), reach_of(instance)))
        Agent(workspace, run, number, instance=instance, home=home).carry_out()
    except OutlastError as problem:
        report(f"error: {problem.message}")
    except OSError as problem:
        report(f"error: {problem}")
    _linger(instance)
    return 0


def this_machine() -> Instance:
    """Return the client of this machine's metadata service, which the cloud's boot script names."""
    if os.environ.get(METADATA_SERVICE) == "ec2":
        from outlast.agent.ec2 import Ec2Instance

        return Ec2Instance()
    return GceInstance()


def reach_of(instance: Instance) -> StoreAccess:
    """The key is asked for here and kept in memory: neither the command nor any file of the machine sees it."""
    name = instance.attribute(STORE_KEY)
    return store_access(instance.attribute, instance.secrets(name) if name else {})


def _linger(instance: Instance) -> None:
    """The supervisor deletes this machine. If none does, it deletes itself: a stopped machine would go on billing."""
    time.sleep(_LINGER_S)
    try:
        instance.delete_self()
    except OSError as problem:
        report(f"cannot delete this machine: {problem}")
