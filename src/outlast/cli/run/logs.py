"""`outlast logs`: the output of a run."""

from __future__ import annotations

import click

from outlast.app.following import attempts_to_read, log_pieces
from outlast.cli.run.follow import Follower
from outlast.cli.shared.command import READ_ONLY, command
from outlast.cli.shared.options import run_argument, workspace_option
from outlast.cli.shared.project import naming_options
from outlast.cli.shared.sanitize import Output
from outlast.cli.shared.terminal import find_workspace, note


@command(section="runs", interrupt=READ_ONLY)
@run_argument
@click.option("--follow", "-f", is_flag=True, help="Follow until the run is over.")
@click.option("--attempt", type=int, default=0, metavar="N", help="Only this attempt.")
@click.option("--node", type=int, default=None, metavar="RANK", help="Only this machine of a distributed run.")
@workspace_option
def logs(run_name: str, follow: bool, attempt: int, node: int | None, workspace_url: str) -> int:
    """Print the output of a run, attempt by attempt.

    With --follow, the exit code is that of the run.
    """
    workspace = find_workspace(workspace_url)
    run = workspace.find(run_name)
    if follow and not attempt and node is None:
        follower = Follower(workspace, run)
        try:
            follower.follow()
        except KeyboardInterrupt:
            note(f"\ndetached; `{run}` continues")
            return 130
        return follower.exit_code()
    with naming_options({"attempt": "--attempt"}):
        attempts = attempts_to_read(workspace, run, attempt, follow=follow)
    for number in attempts:
        if len(attempts) > 1:
            click.echo(click.style(f"-- attempt {number}", dim=True), err=True)
        output = Output()
        for body in log_pieces(workspace, run, number, node=node, follow=follow):
            output.show(body)
    return 0
