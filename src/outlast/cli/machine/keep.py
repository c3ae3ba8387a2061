"""`outlast machine keep`: the keep-alive loops of `machines/keepalive`, with threads, messages and exit codes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import click

from outlast import private
from outlast.app.keepalive import keepalive_of, keepalive_options
from outlast.app.process_logs import bound_own_log
from outlast.cli.machine.find import cloud_option, complete_machine, machine_records_in
from outlast.cli.shared.command import command
from outlast.cli.shared.options import parse_option, workspace_option
from outlast.cli.shared.terminal import complain, note
from outlast.errors import BadRequest, CloudError, OutlastError, RunFailed
from outlast.spec.quantity import duration_s

if TYPE_CHECKING:
    from outlast.app.types import KeepaliveLoop, KeepaliveOptions, MachineRecords, Memory


@command(interrupt="stopped the keep-alive; the machines continue, and preempted ones are not restarted")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_machine)
@click.option("--command", "-c", default="", metavar="CMD", help="Run this after every restart, until it succeeds.")
@click.option("--budget", type=float, metavar="USD", help="Stop the machine at this total cost.")
@click.option("--halt-after", metavar="TIME", help="Restart a command that is idle for this time: 20m.")
@click.option("--watch", multiple=True, metavar="FOLDER", help="Changed files in this folder also count as activity.")
@click.option(
    "--crashes",
    type=click.IntRange(min=1),
    default=3,
    metavar="N",
    help="Failures of the command after which to give up (3).",
)
@click.option(
    "--then", type=click.Choice(["stop", "delete", "leave"]), default="stop", help="Action at the end (stop)."
)
@click.option("--once", is_flag=True, help="Check once: restart machine and command if needed, then exit.")
@click.option("--detach", "-d", is_flag=True, help="Continue in the background.")
@click.option("--reset", is_flag=True, help="End the previous command and forget it.")
@cloud_option
@workspace_option
def keep(names: tuple[str, ...], workspace_url: str, cloud_name: str, once: bool, detach: bool, **given: Any) -> int:
    """Keep machines alive: restart them after a preemption, in any zone, and run CMD until it succeeds.

    Exits with the exit code of CMD. Ctrl-C ends the keep-alive, never the machine.
    """
    machine_records = machine_records_in(workspace_url)
    options = _options(given)
    loops = [keepalive_of(machine_records, name, cloud_name=cloud_name, report=_log) for name in dict.fromkeys(names)]
    if detach:
        return _detach(loops, machine_records)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    codes: dict[str, int] = {}

    def one(loop: KeepaliveLoop) -> None:
        try:
            codes[loop.name] = _print_ending(loop.name, loop.keep(options, stop=stop, once=once, reset=given["reset"]))
        except OutlastError as problem:
            complain(f"{loop.name}: {problem.message}", hint=problem.hint)
            codes[loop.name] = problem.exit_code

    bound_own_log(_log_path(loops))
    threads = [threading.Thread(target=one, args=(loop,)) for loop in loops]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if stop.is_set() and not any(codes.values()):
        note("stopped the keep-alive; the machines continue, and preempted ones are not restarted")
        return 130
    return next((codes[name] for name in codes if codes[name]), 0)


def _options(given: dict[str, Any]) -> KeepaliveOptions:
    return keepalive_options(
        command=given["command"],
        budget_usd=given["budget"],
        halt_after_s=parse_option("--halt-after", given["halt_after"], duration_s, 0.0),
        watch=given["watch"],
        crashes=given["crashes"],
        then=given["then"],
    )


def _print_ending(name: str, memory: Memory) -> int:
    """Print how the keep-alive ended, and return the exit code."""
    if memory.ending is None:
        return 0
    if memory.ending == "finished":
        click.echo(f"{name}: {memory.why}")
        return 0
    complain(f"{name}: {memory.why}", hint=_next_step(name, memory))
    if memory.ending == "gone":
        return CloudError.exit_code
    return memory.exit_code or RunFailed.exit_code


def _next_step(name: str, memory: Memory) -> str:
    if memory.ending == "gone":
        return f"`outlast machine delete {name}` removes its record; then it can be created again"
    if memory.ending == "budget":
        return f"its disk is kept; `outlast machine delete {name}`, or keep it with a larger --budget"
    start = "" if memory.options.then == "leave" else f"`outlast machine start {name}`, then "
    return f"read its output: {start}`outlast machine ssh {name} 'cat ~/.outlast/keep/{memory.id}/run-*/output'`"


def _log(text: str) -> None:
    with contextlib.suppress(OSError):  # a closed terminal must not end the keep-alive
        click.echo(f"{time.strftime('%H:%M:%S')} {text}", err=True)


def _log_path(loops: list[KeepaliveLoop]) -> str:
    return os.path.expanduser(f"~/.outlast/keep-{loops[0].name}.log")


def _detach(loops: list[KeepaliveLoop], machine_records: MachineRecords) -> int:
    """Start the same command in the background, without a terminal."""
    for loop in loops:
        if (holder := loop.lease.holder()) is not None:
            raise BadRequest(f"{holder.who} already keeps {loop.name} alive", hint="one keep-alive is enough")
    argv = [one for one in sys.argv[1:] if one not in ("--detach", "-d")]
    path = _log_path(loops)
    private.folder()
    with private.open_log(path) as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "outlast.cli", *argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "OUTLAST_WORKSPACE": machine_records.workspace.url},
            start_new_session=True,
        )
    for loop in loops:
        until = time.monotonic() + 20.0
        while loop.lease.holder() is None and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
    if process.poll() not in (None, 0):
        raise CloudError(f"the keep-alive exited immediately with {process.returncode}", hint=f"see {path}")
    note(f"kept alive by process {process.pid}; its log is {path}")
    click.echo(str(process.pid))
    return 0
