"""`outlast logs`: the output of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from outlast.cli.run.follow import Follower
from outlast.cli.shared.command import READ_ONLY, command
from outlast.cli.shared.options import run_argument, workspace_option
from outlast.cli.shared.sanitize import Output
from outlast.cli.shared.terminal import find_workspace, note
from outlast.errors import UsageError
from outlast.runs.logs import LogReader, NodesLogReader, attempts_with_logs, nodes_with_logs

if TYPE_CHECKING:
    from outlast.app.types import Workspace


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
    attempts = attempts_with_logs(workspace.bucket, run)
    if attempt:
        # With --follow, wait for an attempt that has no output yet.
        awaited = follow and 0 < attempt <= len(workspace.story(run).refresh().attempts)
        if attempt not in attempts and not awaited:
            known = ", ".join(map(str, attempts)) or "none yet"
            raise UsageError(f"--attempt: {run} has no output of attempt {attempt}; attempts with output: {known}")
        attempts = [attempt]
    for number in attempts:
        if len(attempts) > 1:
            click.echo(click.style(f"-- attempt {number}", dim=True), err=True)
        reader = _reader(workspace, run, number, node)
        _print(reader)
        if follow:
            _print_until_over(reader)
    return 0


def _reader(workspace: Workspace, run: str, attempt: int, node: int | None) -> LogReader | NodesLogReader:
    bucket = workspace.bucket
    if node is not None:
        return LogReader(bucket, run, attempt, node=node)
    ranks = nodes_with_logs(bucket, run, attempt)
    return LogReader(bucket, run, attempt) if len(ranks) == 1 else NodesLogReader(bucket, run, attempt, nodes=ranks)


def _print(reader: LogReader | NodesLogReader) -> None:
    output = Output()
    for body in reader.read():
        output.show(body)


def _print_until_over(reader: LogReader | NodesLogReader) -> None:
    import time

    from outlast.runs.story import Story

    story = Story(reader.bucket, reader.run)
    while story.refresh().attempts[reader.attempt - 1].phase != "over":
        _print(reader)
        time.sleep(0.2)
    _print(reader)
