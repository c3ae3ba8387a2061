"""A read-only round of the supervisor: it observes and plans, and applies nothing."""

from __future__ import annotations

import time

from outlast.clouds.registry import clouds
from outlast.supervisor.observe import Observer
from outlast.supervisor.plan import plan
from outlast.supervisor.world import Step, World
from outlast.workspace import Workspace


def dry_run(workspace: Workspace) -> tuple[World, tuple[Step, ...]]:
    """Return the observed world and the planned steps; change nothing."""
    world = read_only_observer(workspace).observe(time.time())
    return world, plan(world)


def read_only_observer(workspace: Workspace) -> Observer:
    """Return an observer that changes nothing. Keep it for repeated use: it reads only changes."""
    return Observer(workspace, clouds(workspace), monotonic=time.monotonic, read_only=True)
