"""Terminals, ports and folders of runs and machines: connections that survive a move to another machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from outlast.app.clouds import clouds
from outlast.workspace import Workspace

if TYPE_CHECKING:
    from outlast.sync.events import SyncEvent
    from outlast.sync.session import Sync
    from outlast.sync.target import Target
    from outlast.sync.tunnel import Tunnel

Report = Callable[[str], None]


def target_of(name: str, open_workspace: Callable[[], Workspace]) -> Target:
    """Return the machine of a run, or a machine by its name; the workspace is opened only if it is needed."""
    from outlast.sync.target import find_target

    return find_target(name, clouds(), open_workspace)


def enter_terminal(target: Target, *, report: Report) -> int:
    """Open the terminal of a target on this one; return the exit code."""
    from outlast.sync.attach import attach

    return attach(target, report=report)


def enter_terminal_of_run(workspace: Workspace, run: str, *, report: Report) -> int:
    """Open the terminal of a run's command as soon as it has one."""
    from outlast.sync.target import RunTarget

    return enter_terminal(RunTarget(workspace, clouds(workspace), run), report=report)


def parse_port(text: str) -> tuple[int, int]:
    """Return the port of the machine and the one here. Raises UsageError."""
    from outlast.sync.tunnel import parse_port

    return parse_port(text)


def open_tunnel(target: Target, there: int, here: int, *, report: Report) -> Tunnel:
    from outlast.sync.tunnel import Tunnel

    return Tunnel(target, there, here, report=report)


def new_sync(
    source: str,
    name: str,
    folder: str,
    *,
    open_workspace: Callable[[], Workspace],
    watch: bool,
    delete: bool,
    pull: bool,
    emit: Callable[[SyncEvent], None],
) -> Sync:
    """Return a session that syncs a folder here with one of a run or a machine; its `run` does it."""
    import os

    from outlast.sync.remote_dir import RemoteDir, origin_of
    from outlast.sync.session import Sync, check_source

    if not pull:
        check_source(source)
    target = target_of(name, open_workspace)
    here = os.path.realpath(source)
    origin = origin_of(here, *((name, folder) if pull else ()))
    place = RemoteDir(folder=folder, base=target.base, origin=origin, delete=delete, pull=pull)
    return Sync(here, target, place, watch=watch, emit=emit)
