"""`outlast tunnel`: a port of a run or a machine, on this computer."""

from __future__ import annotations

import signal

import click

from outlast.cli.complete import complete_run_or_machine
from outlast.cli.options import clouds, workspace_option
from outlast.cli.terminal import find_workspace, note


@click.command()
@click.argument("name", metavar="RUN|MACHINE", shell_complete=complete_run_or_machine)
@click.argument("port", metavar="PORT[:LOCAL]")
@workspace_option
def tunnel(name: str, port: str, workspace_url: str) -> int:
    """Make PORT of the machine reachable on this computer, as LOCAL (the same number): TensorBoard, Jupyter.

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
