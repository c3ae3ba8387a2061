"""`outlast machine keep`: the keep-alive. Loops are `machines/keep`'s; here they get threads, words and exit codes."""

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
from outlast.app.process_logs import bound_own_log
from outlast.cli.machine.find import cloud_option, complete_machine, find, hands_of
from outlast.cli.shared.command import command
from outlast.cli.shared.options import workspace_option
from outlast.cli.shared.terminal import complain, note
from outlast.errors import BadRequest, CloudError, OutlastError, RunFailed, UsageError

if TYPE_CHECKING:
    from outlast.machines.keepalive.loop import KeepaliveLoop
    from outlast.machines.keepalive.world import KeepaliveOptions, Memory
    from outlast.records.machines import MachineRecords


@command(interrupt="stopped the keep-alive; the machines continue, and preempted ones are not restarted")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_machine)
@click.option("--command", "-c", default="", metavar="CMD", help="Run this after every revival, until it is through.")
@click.option("--budget", type=float, metavar="USD", help="Stop the machine when it has cost so much in all.")
@click.option("--halt-after", metavar="TIME", help="A command that does nothing for so long is started again: 20m.")
@click.option("--watch", multiple=True, metavar="FOLDER", help="Changed files there are signs of life, too.")
@click.option("--crashes", type=click.IntRange(min=1), default=3, metavar="N", help="So many bad ends are enough (3).")
@click.option("--then", type=click.Choice(["stop", "delete", "leave"]), default="stop", help="At the end (stop).")
@click.option("--once", is_flag=True, help="Look once: revive and start what is due, and leave.")
@click.option("--detach", "-d", is_flag=True, help="Go on in the background.")
@click.option("--anew", is_flag=True, help="Forget what it was kept for before; end that command.")
@cloud_option
@workspace_option
def keep(names: tuple[str, ...], workspace_url: str, cloud_name: str, once: bool, detach: bool, **argv: Any) -> int:
    """Keep machines alive: revive them when they were preempted, here or elsewhere, and run CMD until it is through.

    Ends with the exit code of CMD. Ctrl-C ends the keeper, never the machine.
    """
    machine_records = hands_of(workspace_url)
    order = _order(argv)
    keepers = [_keeper(machine_records, name, cloud_name) for name in dict.fromkeys(names)]
    if detach:
        return _detach(keepers, machine_records)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    codes: dict[str, int] = {}

    def one(keeper: KeepaliveLoop) -> None:
        try:
            codes[keeper.name] = _told(keeper.name, keeper.keep(order, stop=stop, once=once, anew=argv["anew"]))
        except OutlastError as problem:
            complain(f"{keeper.name}: {problem.message}", hint=problem.hint)
            codes[keeper.name] = problem.exit_code

    bound_own_log(_log_path(keepers))
    threads = [threading.Thread(target=one, args=(keeper,)) for keeper in keepers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if stop.is_set() and not any(codes.values()):
        note("stopped keeping; the machines go on, and nobody revives them")
        return 130
    return next((codes[name] for name in codes if codes[name]), 0)


def _order(argv: dict[str, Any]) -> KeepaliveOptions:
    from outlast.machines.keepalive.world import KeepaliveOptions
    from outlast.spec.quantity import duration_s

    try:
        halt_after_s = duration_s(argv["halt_after"]) if argv["halt_after"] else 0.0
    except ValueError as problem:
        raise UsageError(f"--halt-after: {problem}") from problem
    budget = argv["budget"] or 0.0
    if argv["budget"] is not None and not 0 < budget < float("inf"):
        raise UsageError(f"--budget: {budget:g} must be more than zero")
    if not argv["command"] and (halt_after_s or argv["watch"]):
        raise UsageError("--halt-after and --watch need a --command to look after")
    return KeepaliveOptions(
        command=argv["command"],
        budget_usd=budget,
        halt_after_s=halt_after_s,
        watch=argv["watch"],
        crashes=argv["crashes"],
        then=argv["then"],
    )


def _keeper(machine_records: MachineRecords, name: str, cloud_name: str) -> KeepaliveLoop:
    from outlast.errors import NotFound
    from outlast.machines.keepalive.loop import KeepaliveLoop
    from outlast.machines.lifecycle import record_of

    try:
        cloud, machine = find(machine_records, name, cloud_name=cloud_name)
    except NotFound:
        record = machine_records.find(name)
        # A machine on its way to another zone is nowhere for a while.
        if record is None:
            raise
        from outlast.cli.machine.find import workshop

        cloud = workshop(record.cloud)
        found = KeepaliveLoop(cloud, machine_records, name, report=_log)
        memory = found.remembered()
        if memory is None or memory.move is None:
            raise
        return found
    if record_of(machine_records, cloud, machine) is None:
        raise BadRequest(
            f"{name} was not made with `outlast machine create` in this workspace",
            hint="runs are kept alive by `outlast supervise`; a machine of your own: `outlast machine create --like`",
        )
    return KeepaliveLoop(cloud, machine_records, name, report=_log)


def _told(name: str, memory: Memory) -> int:
    """What became of it, and the exit code."""
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
        return f"`outlast machine delete {name}` forgets it; then it can be made anew"
    if memory.ending == "budget":
        return f"its disk is kept; `outlast machine delete {name}`, or keep it with a larger --budget"
    return f"its output is on the machine, in ~/.outlast/keep/{memory.id}; `outlast machine start {name}` to look"


def _log(text: str) -> None:
    with contextlib.suppress(OSError):  # a closed terminal is no reason to desert a machine
        click.echo(f"{time.strftime('%H:%M:%S')} {text}", err=True)


def _log_path(keepers: list[KeepaliveLoop]) -> str:
    return os.path.expanduser(f"~/.outlast/keep-{keepers[0].name}.log")


def _detach(keepers: list[KeepaliveLoop], machine_records: MachineRecords) -> int:
    """The same words again in a process of its own, without a terminal."""
    for keeper in keepers:
        if (holder := keeper.lease.holder()) is not None:
            raise BadRequest(f"{holder.who} keeps {keeper.name} already", hint="one keeper is enough")
    argv = [word for word in sys.argv[1:] if word not in ("--detach", "-d")]
    path = _log_path(keepers)
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
    for keeper in keepers:
        until = time.monotonic() + 20.0
        while keeper.lease.holder() is None and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
    if process.poll() not in (None, 0):
        raise CloudError(f"the keeper ended at once with {process.returncode}", hint=f"see {path}")
    note(f"kept by process {process.pid}; what it does is in {path}")
    click.echo(str(process.pid))
    return 0
