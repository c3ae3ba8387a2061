"""`outlast pull`: the results, here."""

from __future__ import annotations

import os

import click

from outlast.cli.options import run_argument, workspace_option
from outlast.cli.terminal import find_workspace, note
from outlast.workspace.state import RunState
from outlast.workspace.workspace import Workspace


def attempts_with_outputs(state: RunState) -> list[int]:
    """Attempts that said their last word, that others resumed from, or after which there was no other. What an attempt
    without a trace in the story has written was written again by its successor."""
    said = ("finished", "preempted", "crashed", "killed", "hung")
    started = [a for a in state.attempts if a.started_at]
    return [a.number for a in started if a.outcome in said or a.saves or (state.ending and a is started[-1])]


def pull_outputs(workspace: Workspace, run: str, destination: str, *, quiet: bool = False) -> int:
    """Copy the outputs of all attempts, later ones over earlier ones; how many files."""
    from concurrent.futures import ThreadPoolExecutor

    wanted = _newest_of_each(workspace, run)

    def fetch(path: str) -> None:
        workspace.bucket.download(wanted[path], os.path.join(destination, path))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(fetch, wanted))
    if wanted and not quiet:
        files = "1 file" if len(wanted) == 1 else f"{len(wanted)} files"
        note(f"outlast: {files} in {destination}")
    return len(wanted)


def _newest_of_each(workspace: Workspace, run: str) -> dict[str, str]:
    """Path → object. A later attempt's file takes the place of an earlier one's folder, and the other way round."""
    wanted: dict[str, str] = {}
    for attempt in attempts_with_outputs(workspace.story(run).refresh()):
        prefix = f"runs/{run}/outputs/{attempt}/"
        newer = {entry.key.removeprefix(prefix): entry.key for entry in workspace.bucket.list(prefix)}
        folders = {path[:at] for path in newer for at, sign in enumerate(path) if sign == "/"}
        kept = {
            path: key
            for path, key in wanted.items()
            if path not in folders and not any(path[:at] in newer for at, sign in enumerate(path) if sign == "/")
        }
        wanted = {**kept, **newer}
    return wanted


@click.command()
@run_argument
@click.argument("destination", required=False, default="")
@workspace_option
def pull(run_name: str, destination: str, workspace_url: str) -> int:
    """Copy the outputs of a run to DESTINATION (outputs/RUN)."""
    workspace = find_workspace(workspace_url)
    run = workspace.find(run_name)
    if not pull_outputs(workspace, run, destination or os.path.join("outputs", run)):
        note(f"{run} has no outputs" + ("" if workspace.story(run).refresh().ending else " yet"))
    return 0
