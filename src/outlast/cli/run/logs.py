"""`outlast logs`: the output of a run."""

from __future__ import annotations

import click

from outlast.cli.run.follow import Follower
from outlast.cli.shared.command import READ_ONLY, command
from outlast.cli.shared.options import run_argument, workspace_option
from outlast.cli.shared.sanitize import Output
from outlast.cli.shared.terminal import find_workspace, note
from outlast.errors import UsageError
from outlast.runs.logs import LogReader, attempts_with_logs


@command(section="runs", interrupt=READ_ONLY)
@run_argument
@click.option("--follow", "-f", is_flag=True, help="Follow until the run is over.")
@click.option("--attempt", type=int, default=0, metavar="N", help="Only this attempt.")
@workspace_option
def logs(run_name: str, follow: bool, attempt: int, workspace_url: str) -> int:
    """Print the output of a run, attempt by attempt."""
    workspace = find_workspace(workspace_url)
    run = workspace.find(run_name)
    if follow and not attempt:
        try:
            Follower(workspace, run).follow()
        except KeyboardInterrupt:
            note(f"\ndetached; `{run}` continues")
            return 130
        return 0
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
        reader = LogReader(workspace.bucket, run, number)
        _print(reader)
        if follow:
            _print_until_over(reader)
    return 0


def _print(reader: LogReader) -> None:
    output = Output()
    for body in reader.read():
        output.show(body)


def _print_until_over(reader: LogReader) -> None:
    import time

    from outlast.runs.story import Story

    story = Story(reader.bucket, reader.run)
    while story.refresh().attempts[reader.attempt - 1].phase != "over":
        _print(reader)
        time.sleep(0.2)
    _print(reader)
