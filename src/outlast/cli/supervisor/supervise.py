"""`outlast supervise`: the supervisor as a process."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from typing import Any

import click

from outlast.app.background import Slot, has_new_work, log_path
from outlast.app.process_logs import bound_own_log
from outlast.app.supervision import new_supervisor
from outlast.cli.shared.command import command
from outlast.cli.shared.options import workspace_option
from outlast.cli.shared.terminal import find_workspace, note
from outlast.errors import UsageError


@command(
    section="admin",
    interrupt="the supervisor has stopped; the runs continue, and `outlast supervise` supervises them again",
)
@click.option("--until-idle", is_flag=True, help="Exit when no run is live and no machine is billed.")
@click.option("--on", "cloud", default="", metavar="CLOUD", help="On a small machine there (gcp or aws), not here.")
@click.option("--off", is_flag=True, help="Delete that machine.")
@click.option("--zone", "zones", multiple=True, metavar="ZONE", help="With --on: only in this zone or region.")
@click.option("--type", "type_name", default="", metavar="NAME", help="With --on: machine type (the smallest).")
@click.option("--no-wait", is_flag=True, help="With --on: do not wait until it supervises.")
@click.option("--background", is_flag=True, hidden=True)
@click.option("--slot", type=int, hidden=True)
@click.option("--supervisor-vm", "supervisor_vm_location", default="", hidden=True)
@workspace_option
def supervise(
    workspace_url: str,
    until_idle: bool,
    background: bool,
    slot: int | None,
    supervisor_vm_location: str,
    **options: Any,
) -> int:
    """Keep the runs of a workspace alive.

    Any number of supervisors may run, and one may be lost at any time. With --on a small machine of a cloud supervises,
    until --off, or with --until-idle until the last run ends: this computer may sleep.
    """
    workspace = find_workspace(workspace_url)
    if options["off"] or options["cloud"] or supervisor_vm_location:
        from outlast.cli.supervisor import vm as supervisor_vm

        if supervisor_vm_location:
            return supervisor_vm.serve(workspace, supervisor_vm_location, report=_log)
        if options["off"]:
            return supervisor_vm.take_down(workspace)
        return supervisor_vm.put_up(workspace, until_idle=until_idle, **options)
    stray = next((name for name in ("zones", "type_name", "no_wait") if options[name]), "")
    if stray:
        raise UsageError(f"--{stray.removesuffix('s').replace('_name', '').replace('_', '-')} needs --on CLOUD")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    supervisor = new_supervisor(workspace, report=_log)
    holder = supervisor.lease.holder()
    if holder is not None:
        note(f"{holder.who} already supervises {workspace.url}; standing by")
    else:
        note(f"supervising {workspace.url}; Ctrl-C stops the supervisor, never the runs")
    bound_own_log(log_path())
    held = Slot(slot) if slot is not None else None
    while supervisor.run(stop=stop, until_idle=until_idle, surplus_leaves=background) and held is not None:
        # A command that has just submitted a run may rely on this supervisor.
        held.unlock()
        if not has_new_work(workspace) or not held.lock():
            break
    if stop.is_set() and workspace.heartbeats():
        note("stopped; the runs continue, and preempted ones wait for the next `outlast supervise`")
    return 0


def _log(text: str) -> None:
    with contextlib.suppress(OSError):  # a full disk or a closed terminal must not stop supervision
        click.echo(f"{time.strftime('%H:%M:%S')} {text}", err=True)
