"""`outlast supervise`, `outlast plan` and `outlast reap`: the supervisor, its thoughts, its broom."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import click

from outlast.app.background import log_path
from outlast.app.process_logs import bound_own_log
from outlast.cli.shared.command import command
from outlast.cli.shared.options import clouds, workspace_option
from outlast.cli.shared.terminal import find_workspace, note
from outlast.errors import UsageError
from outlast.supervisor.loop import Supervisor

if TYPE_CHECKING:
    pass


@command(
    section="admin",
    interrupt="the supervisor has stopped; the runs continue, and `outlast supervise` supervises them again",
)
@click.option("--until-idle", is_flag=True, help="Leave when nothing lives and nothing costs.")
@click.option("--on", "cloud", default="", metavar="CLOUD", help="On a small machine there (gcp or aws), not here.")
@click.option("--off", is_flag=True, help="Take that machine down.")
@click.option("--zone", "zones", multiple=True, metavar="ZONE", help="With --on: only in this zone or region.")
@click.option("--type", "type_name", default="", metavar="NAME", help="With --on: another machine than the smallest.")
@click.option("--no-wait", is_flag=True, help="With --on: leave before it supervises.")
@click.option("--background", is_flag=True, hidden=True)
@click.option("--supervisor-vm", "supervisor_vm_location", default="", hidden=True)
@workspace_option
def supervise(workspace_url: str, until_idle: bool, background: bool, supervisor_vm_location: str, **argv: Any) -> int:
    """Keep the runs of a workspace alive.

    Any number of supervisors may run; losing one loses nothing. With --on a small machine of a cloud does it, until
    --off, or with --until-idle until the last run's end: this computer may sleep.
    """
    workspace = find_workspace(workspace_url)
    if argv["off"] or argv["cloud"] or supervisor_vm_location:
        from outlast.cli.supervisor import vm as supervisor_vm

        if supervisor_vm_location:
            return supervisor_vm.serve(workspace, supervisor_vm_location, report=_log)
        if argv["off"]:
            return supervisor_vm.take_down(workspace)
        return supervisor_vm.put_up(workspace, until_idle=until_idle, **argv)
    stray = next((name for name in ("zones", "type_name", "no_wait") if argv[name]), "")
    if stray:
        raise UsageError(f"--{stray.removesuffix('s').replace('_name', '').replace('_', '-')} goes with --on CLOUD")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    supervisor = Supervisor(workspace, clouds(workspace), report=_log)
    holder = supervisor.lease.holder()
    if holder is not None:
        note(f"{holder.who} supervises {workspace.url} already; standing by")
    else:
        note(f"supervising {workspace.url}; Ctrl-C stops the supervisor, never the runs")
    bound_own_log(log_path())
    supervisor.run(stop=stop, until_idle=until_idle, surplus_leaves=background)
    if stop.is_set() and workspace.heartbeats():
        note("stopped; the runs go on, and nobody revives them until the next `outlast supervise`")
    return 0


def _log(text: str) -> None:
    with contextlib.suppress(OSError):  # a full disk or a closed terminal is no reason to desert the runs
        click.echo(f"{time.strftime('%H:%M:%S')} {text}", err=True)
