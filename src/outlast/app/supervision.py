"""Supervisors as processes and threads: starting one, and who supervises a workspace."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from outlast.app.background import starting_supervisor
from outlast.errors import OutlastError
from outlast.workspace import Workspace

if TYPE_CHECKING:
    from outlast.supervisor.loop import Supervisor

_CONSOLE_CHARACTERS = 200


def new_supervisor(workspace: Workspace, *, report: Callable[[str], None] = lambda _: None) -> Supervisor:
    """Return a supervisor of the workspace that does nothing yet; its `run` supervises."""
    from outlast.app.clouds import clouds  # imported late: `ps` needs no cloud
    from outlast.supervisor.loop import Supervisor

    return Supervisor(workspace, clouds(workspace), report=report)


def supervisor_text(workspace: Workspace, *, has_live_runs: bool) -> str:
    """Name the supervisor if runs are live, or if a supervisor machine is billed; empty if none is needed.

    Raises WorkspaceError.
    """
    from outlast.records.machines import MachineRecords, supervisor_name
    from outlast.store.lease import supervisors

    record = MachineRecords(workspace).find(supervisor_name(workspace)) if workspace.store.remote else None
    if record is None and not has_live_runs:
        return ""
    holder = supervisors(workspace.bucket, workspace.url).holder()
    if holder is not None:
        return holder.who
    if record is not None:
        return f"{record.name} on {record.cloud} does not supervise yet{_console_end(record.cloud, record.name)}"
    if pid := starting_supervisor(workspace):
        return f"starting (process {pid} of this computer)"
    return "none: start `outlast supervise`"


def _console_end(cloud: str, name: str) -> str:
    """Return the last line of a machine's console: why a supervisor machine cannot reach the workspace."""
    from outlast.app.machines import interactive_cloud

    try:
        lines = interactive_cloud(cloud).serial(name).splitlines()
    except OutlastError:
        return ""  # it does not exist yet, or its cloud does not answer
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"; its console ends with: {last[:_CONSOLE_CHARACTERS]}" if last else ""
