"""`outlast supervise --on CLOUD` and `--off`: the supervisor machine, and the process on it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from outlast.app.supervisor_machine import delete_supervisor_machine, ensure_supervisor_machine, serve_here
from outlast.cli.shared.options import print_price_note
from outlast.cli.shared.terminal import note

if TYPE_CHECKING:
    from outlast.app.types import Workspace


def put_up(
    workspace: Workspace,
    *,
    cloud: str,
    until_idle: bool,
    zones: tuple[str, ...],
    type_name: str,
    no_wait: bool,
    off: bool = False,
) -> int:
    """Create the machine or find it, and wait until it supervises."""
    assert not off
    made = ensure_supervisor_machine(
        workspace,
        cloud,
        until_idle=until_idle,
        zones=zones,
        type=type_name,
        wait=not no_wait,
        report=note,
    )
    click.echo(made.title)
    print_price_note(made.cloud)
    ends = "until the last run ends" if until_idle else "until `outlast supervise --off`"
    note(f"it supervises {workspace.url} {ends}; this computer may sleep")
    return 0


def take_down(workspace: Workspace) -> int:
    machine_record = delete_supervisor_machine(workspace)
    if machine_record is None:
        note(f"no supervisor machine for {workspace.url}")
        return 0
    note(f"{machine_record.name} on {machine_record.cloud} was deleted")
    if workspace.heartbeats():
        note("the runs continue, and preempted ones wait for the next `outlast supervise`")
    return 0


def serve(workspace: Workspace, supervisor_vm_location: str, *, report: Callable[[str], None]) -> int:
    """Supervise on that machine. `supervisor_vm_location` is the cloud and the machine's name."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    serve_here(workspace, supervisor_vm_location, stop, report=report)
    return 0
