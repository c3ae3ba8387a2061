"""`outlast pull`: the outputs of a run, copied to this computer."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import click

from outlast.app.outputs import fetch_outputs, newest_outputs
from outlast.cli.shared.command import command
from outlast.cli.shared.options import run_argument, workspace_option
from outlast.cli.shared.terminal import find_workspace, note
from outlast.errors import Missing, StoreUnreachable
from outlast.formatting.quantities import size

if TYPE_CHECKING:
    from outlast.app.types import Entry, Workspace

_POLL_S = 0.5
_POLL_REMOTE_S = 5.0


def pull_outputs(workspace: Workspace, run: str, destination: str, *, quiet: bool = False) -> int:
    """Copy the outputs of all attempts, later ones over earlier ones; return the number of files."""
    count = fetch_outputs(workspace, run, destination)
    if count and not quiet:
        files = "1 file" if count == 1 else f"{count} files"
        note(f"outlast: {files} in {destination}")
    return count


def watch_outputs(workspace: Workspace, run: str, destination: str) -> int:
    """Copy outputs as they appear, until the run has ended; return the number of files.

    Outputs of the current attempt are included, and copied again when they change.
    """
    story = workspace.story(run)
    have: dict[str, Entry] = {}
    reported = ""
    while True:
        try:
            ended = bool(story.refresh().ending)
            wanted = newest_outputs(workspace, run, also_current=True)
            for path, entry in wanted.items():
                if have.get(path) != entry and _fetch_one(workspace, entry.key, os.path.join(destination, path)):
                    note(f"outlast: {path} ({size(entry.bytes)})")
                    have[path] = entry
            reported = ""
        except StoreUnreachable as problem:
            if problem.message != reported:
                note(f"outlast: {problem.message}; retrying")
                reported = problem.message
            ended = False
        if ended:
            return len(have)
        time.sleep(_POLL_REMOTE_S if workspace.store.remote else _POLL_S)


def _fetch_one(workspace: Workspace, key: str, path: str) -> bool:
    try:
        workspace.bucket.download(key, path)
    except Missing:
        return False  # replaced just now; the next poll finds the new object
    return True


@command(
    section="runs",
    progress="copying outputs",
    interrupt="stopped halfway; every copied file is complete; repeat the command to continue",
)
@run_argument
@click.argument("destination", required=False, default="")
@click.option("--watch", is_flag=True, help="Copy new outputs until the run has ended.")
@workspace_option
def pull(run_name: str, destination: str, watch: bool, workspace_url: str) -> int:
    """Copy the outputs of a run to this computer.

    They go to the folder DESTINATION (outputs/RUN).
    """
    workspace = find_workspace(workspace_url)
    run = workspace.find(run_name)
    if watch:
        count = watch_outputs(workspace, run, destination or os.path.join("outputs", run))
        note(f"outlast: {run} has {workspace.story(run).refresh().ending}; files: {count}")
        return 0
    if not pull_outputs(workspace, run, destination or os.path.join("outputs", run)):
        note(f"{run} has no outputs" + ("" if workspace.story(run).refresh().ending else " yet"))
    return 0
