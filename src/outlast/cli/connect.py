"""`outlast attach`: the terminal of a run or a machine."""

from __future__ import annotations

import signal

import click

from outlast.cli.completion import complete_run_or_machine
from outlast.cli.shared.command import command
from outlast.cli.shared.options import clouds, workspace_option
from outlast.cli.shared.terminal import find_workspace, note


@command(section="machines", interrupt="left the terminal; programs there continue")
@click.argument("name", metavar="RUN|MACHINE", shell_complete=complete_run_or_machine)
@workspace_option
def attach(name: str, workspace_url: str) -> int:
    """Open the terminal of a run or a machine.

    Ctrl-B, then D leaves it; what runs there goes on. When the connection breaks, or the run gets another machine,
    it is entered again.
    """
    from outlast.sync.attach import attach as enter
    from outlast.sync.target import find_target

    target = find_target(name, clouds(), lambda: find_workspace(workspace_url))
    return enter(target, report=lambda text: note(f"outlast: {text}"))


@command(section="machines", interrupt="closed the tunnel; the machine continues")
@click.argument("name", metavar="RUN|MACHINE", shell_complete=complete_run_or_machine)
@click.argument("port", metavar="PORT[:LOCAL]")
@workspace_option
def tunnel(name: str, port: str, workspace_url: str) -> int:
    """Forward a port of a run or a machine to this computer.

    Only programs of this computer can reach it. Follows a run to its next machine.
    """
    from outlast.sync.target import find_target
    from outlast.sync.tunnel import Tunnel, parse_port

    there, here = parse_port(port)
    target = find_target(name, clouds(), lambda: find_workspace(workspace_url))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        Tunnel(target, there, here, report=lambda text: note(f"outlast: {text}")).run()
    except KeyboardInterrupt:
        note("outlast: the tunnel is closed; the machine goes on")
    return 0
