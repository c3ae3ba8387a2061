"""What a supervisor sees and would do, without doing it."""

from __future__ import annotations

import time

from outlast.clouds.registry import clouds
from outlast.supervisor.observe import Observer
from outlast.supervisor.plan import plan
from outlast.supervisor.world import Step, World
from outlast.workspace import Workspace


def dry_run(workspace: Workspace) -> tuple[World, tuple[Step, ...]]:
    """What is, and what a supervisor would do about it; changes nothing."""
    world = read_only_observer(workspace).observe(time.time())
    return world, plan(world)


def read_only_observer(workspace: Workspace) -> Observer:
    """Whoever looks more than once keeps it: what did not change is not read again."""
    return Observer(workspace, clouds(workspace), monotonic=time.monotonic, read_only=True)
