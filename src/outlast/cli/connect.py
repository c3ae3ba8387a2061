"""`outlast attach` and `outlast tunnel`: the terminal and the ports of a run or a machine."""

from __future__ import annotations

import signal

import click

from outlast.cli.completion import complete_run_or_machine
from outlast.cli.shared.command import command
from outlast.cli.shared.options import workspace_option
from outlast.cli.shared.terminal import find_workspace, note


@command(section="machines", interrupt="left the terminal; programs there continue")
@click.argument("name", metavar="RUN|MACHINE", shell_complete=complete_run_or_machine)
@workspace_option
def attach(name: str, workspace_url: str) -> int:
    """Open the terminal of a run or a machine.

    For a run it is the terminal of its command, if it was started with --interactive; for a machine it is a persistent
    session. Ctrl-B, then D detaches; programs there continue. It reconnects when the connection breaks, or when the run
    moves to another machine.
    """
    from outlast.app.terminals import enter_terminal, target_of

    target = target_of(name, lambda: find_workspace(workspace_url))
    return enter_terminal(target, report=lambda text: note(f"outlast: {text}"))


@command(section="machines", interrupt="closed the tunnel; the machine continues")
@click.argument("name", metavar="RUN|MACHINE", shell_complete=complete_run_or_machine)
@click.argument("port", metavar="PORT[:LOCAL]")
@workspace_option
def tunnel(name: str, port: str, workspace_url: str) -> int:
    """Forward a port of a run or a machine to this computer.

    PORT of the machine becomes LOCAL here (the same number by default): TensorBoard, Jupyter. Only programs on this
    computer can reach it. The tunnel follows a run to its next machine.
    """
    from outlast.app.terminals import open_tunnel, parse_port, target_of

    there, here = parse_port(port)
    target = target_of(name, lambda: find_workspace(workspace_url))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        open_tunnel(target, there, here, report=lambda text: note(f"outlast: {text}")).run()
    except KeyboardInterrupt:
        note("outlast: closed the tunnel; the machine continues")
    return 0
