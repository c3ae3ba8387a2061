"""What the boot script starts: finds out who this machine is, has its attempt carried out, ends the machine."""

from __future__ import annotations

import os
import time

from outlast.agent.agent import Agent, say
from outlast.agent.instance import GceInstance, Instance, patiently
from outlast.errors import OutlastError
from outlast.workspace.bucket import open_bucket
from outlast.workspace.workspace import Workspace

_LINGER_S = 30.0


def main() -> int:
    """The agent of this machine: who it is, it learns from the instance metadata."""
    instance = GceInstance()
    run = patiently(instance, "outlast-run")
    number = int(instance.attribute("outlast-attempt"))
    if host := instance.attribute("outlast-storage-host"):
        os.environ.setdefault("STORAGE_EMULATOR_HOST", host)
    workspace = Workspace(open_bucket(instance.attribute("outlast-workspace")))
    home = os.environ.get("HOME", "") or os.getcwd()
    try:
        Agent(workspace, run, number, instance=instance, home=home).carry_out()
    except OutlastError as problem:
        say(f"error: {problem.message}")
    _linger(instance)
    return 0


def _linger(instance: Instance) -> None:
    """The supervisor deletes this machine. If none does, it deletes itself: a stopped machine would go on billing."""
    time.sleep(_LINGER_S)
    try:
        instance.delete_self()
    except OSError as problem:
        say(f"cannot delete this machine: {problem}")
