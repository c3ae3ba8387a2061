"""`outlast attach`: the terminal of a run or a machine."""

from __future__ import annotations

import click

from outlast.cli.complete import complete_run_or_machine
from outlast.cli.options import clouds, workspace_option
from outlast.cli.terminal import find_workspace, note


@click.command()
@click.argument("name", metavar="RUN|MACHINE", shell_complete=complete_run_or_machine)
@workspace_option
def attach(name: str, workspace_url: str) -> int:
    """Enter the terminal of a run that was started with --interactive, or a lasting session on a machine.

    Ctrl-B, then D leaves it; what runs there goes on. When the connection breaks, or the run gets another machine,
    it is entered again.
    """
    from outlast.sync.attach import attach as enter
    from outlast.sync.target import find_target

    target = find_target(name, clouds(), lambda: find_workspace(workspace_url))
    return enter(target, report=lambda text: note(f"outlast: {text}"))
