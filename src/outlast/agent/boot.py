"""Entry point of the agent: reads the metadata, carries out the attempt, deletes the machine."""

from __future__ import annotations

import os
import time

from outlast.agent.agent import Agent
from outlast.agent.instance import GceInstance, Instance, attribute_with_retries
from outlast.agent.output import report
from outlast.code.bootstrap import METADATA_SERVICE
from outlast.errors import OutlastError
from outlast.store.access import STORE_KEY, StoreAccess, store_access
from outlast.store.bucket import open_bucket
from outlast.workspace import Workspace

_LINGER_S = 30.0


def main() -> int:
    """Carry out the attempt that the instance metadata names, then delete this machine."""
    instance = this_machine()
    run = attribute_with_retries(instance, "outlast-run")
    number = int(instance.attribute("outlast-attempt"))
    if host := instance.attribute("outlast-storage-host"):
        os.environ.setdefault("STORAGE_EMULATOR_HOST", host)
    home = os.environ.get("HOME", "") or os.getcwd()
    try:
        workspace = Workspace(open_bucket(instance.attribute("outlast-workspace"), store_access_of(instance)))
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


def store_access_of(instance: Instance) -> StoreAccess:
    """Read the store's key into memory: neither the command nor a file of the machine contains it."""
    name = instance.attribute(STORE_KEY)
    return store_access(instance.attribute, instance.secrets(name) if name else {})


def _linger(instance: Instance) -> None:
    """Wait for the supervisor to delete this machine; else delete it here: a stopped machine is still billed."""
    time.sleep(_LINGER_S)
    try:
        instance.delete_self()
    except OSError as problem:
        report(f"cannot delete this machine: {problem}")
