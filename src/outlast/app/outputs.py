"""The outputs of a run: which files they are, and a copy of them here."""

from __future__ import annotations

import os

from outlast.runs.outputs import OF_ATTEMPT
from outlast.runs.state import RunState
from outlast.store.bucket import Entry
from outlast.workspace import Workspace


def attempts_with_outputs(state: RunState) -> list[int]:
    """Attempts that said their last word, that others resumed from, or after which there was no other. What an attempt
    without a trace in the story has written was written again by its successor."""
    said = ("finished", "preempted", "crashed", "killed", "hung")
    started = [a for a in state.attempts if a.started_at]
    return [a.number for a in started if a.outcome in said or a.saves or (state.ending and a is started[-1])]


def fetch_outputs(workspace: Workspace, run: str, destination: str) -> int:
    """Copy the outputs of all attempts, later ones over earlier ones; how many files."""
    from concurrent.futures import ThreadPoolExecutor

    wanted = newest_outputs(workspace, run)

    def fetch(path: str) -> None:
        workspace.bucket.download(wanted[path].key, os.path.join(destination, path))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(fetch, wanted))
    return len(wanted)


def newest_outputs(workspace: Workspace, run: str, *, also_current: bool = False) -> dict[str, Entry]:
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
