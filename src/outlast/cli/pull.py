"""`outlast pull`: the results, here."""

from __future__ import annotations

import os
import time

import click

from outlast.cli.options import run_argument, workspace_option
from outlast.cli.tell import size
from outlast.cli.terminal import find_workspace, note
from outlast.errors import Missing, StoreUnreachable
from outlast.workspace.bucket import Entry
from outlast.workspace.outputs import OF_ATTEMPT
from outlast.workspace.state import RunState
from outlast.workspace.workspace import Workspace

_LOOK_S = 0.5
_LOOK_FAR_S = 5.0


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
        workspace.bucket.download(wanted[path].key, os.path.join(destination, path))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(fetch, wanted))
    if wanted and not quiet:
        files = "1 file" if len(wanted) == 1 else f"{len(wanted)} files"
        note(f"outlast: {files} in {destination}")
    return len(wanted)


def watch_outputs(workspace: Workspace, run: str, destination: str) -> int:
    """Copy outputs as they appear, until the run has ended; how many files. What the attempt that runs now has sent so
    far is copied, too, and copied again when it has changed."""
    story = workspace.story(run)
    have: dict[str, Entry] = {}
    told = ""
    while True:
        try:
            ended = bool(story.refresh().ending)
            wanted = _newest_of_each(workspace, run, also_current=True)
            for path, entry in wanted.items():
                if have.get(path) != entry and _fetch_one(workspace, entry.key, os.path.join(destination, path)):
                    note(f"outlast: {path} ({size(entry.bytes)})")
                    have[path] = entry
            told = ""
        except StoreUnreachable as problem:
            if problem.message != told:
                note(f"outlast: {problem.message}; trying again")
                told = problem.message
            ended = False
        if ended:
            return len(have)
        time.sleep(_LOOK_S if "://" not in workspace.url else _LOOK_FAR_S)


def _fetch_one(workspace: Workspace, key: str, path: str) -> bool:
    try:
        workspace.bucket.download(key, path)
    except Missing:
        return False  # replaced at this moment; the next look finds what came instead
    return True


def _newest_of_each(workspace: Workspace, run: str, *, also_current: bool = False) -> dict[str, Entry]:
    """Path → object. A later attempt's file takes the place of an earlier one's folder, and the other way round."""
    wanted: dict[str, Entry] = {}
    state = workspace.story(run).refresh()
    attempts = [0, *attempts_with_outputs(state)]
    if also_current and state.current is not None and state.current.number not in attempts:
        attempts.append(state.current.number)
    for attempt in attempts:
        prefix = OF_ATTEMPT.format(run=run, attempt=attempt)
        newer = {entry.key.removeprefix(prefix): entry for entry in workspace.bucket.list(prefix)}
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
@click.option("--watch", is_flag=True, help="Go on copying what appears, until the run has ended.")
@workspace_option
def pull(run_name: str, destination: str, watch: bool, workspace_url: str) -> int:
    """Copy the outputs of a run to DESTINATION (outputs/RUN)."""
    workspace = find_workspace(workspace_url)
    run = workspace.find(run_name)
    if watch:
        count = watch_outputs(workspace, run, destination or os.path.join("outputs", run))
        note(f"outlast: {run} has {workspace.story(run).refresh().ending}; files: {count}")
        return 0
    if not pull_outputs(workspace, run, destination or os.path.join("outputs", run)):
        note(f"{run} has no outputs" + ("" if workspace.story(run).refresh().ending else " yet"))
    return 0
