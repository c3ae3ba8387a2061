"""The outputs of a run: the newest version of each file, and a copy of all of them."""

from __future__ import annotations

import json
import os
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from outlast.runs.outputs import OF_ATTEMPT
from outlast.runs.state import RunState
from outlast.store.bucket import Entry
from outlast.workspace import RunRequest, Workspace

if TYPE_CHECKING:
    from outlast.clouds.cloud import Offer
    from outlast.formatting.run_summary import RunSummary

Report = Callable[[str], None]


def attempts_with_outputs(state: RunState) -> list[int]:
    """Return the attempts whose outputs count: they reported their end, saved a checkpoint, or were the last one.

    The outputs of any other attempt were written again by its successor.
    """
    reported = ("finished", "preempted", "crashed", "killed", "hung")
    started = [a for a in state.attempts if a.started_at]
    return [a.number for a in started if a.outcome in reported or a.saves or (state.ending and a is started[-1])]


def fetch_outputs(workspace: Workspace, run: str, destination: str) -> int:
    """Copy the outputs of all attempts, later ones over earlier ones; return the number of files."""
    from concurrent.futures import ThreadPoolExecutor

    wanted = newest_outputs(workspace, run)

    def fetch(path: str) -> None:
        workspace.bucket.download(wanted[path].key, os.path.join(destination, path))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(fetch, wanted))
    return len(wanted)


def zip_outputs(workspace: Workspace, runs: Sequence[str], target: str) -> int:
    """Write the outputs of runs into one archive, each below the run's name; return the number of files.

    A running attempt's files are included as far as they are stored.
    """
    count = 0
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive, tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "file")
        for run in runs:
            for path, entry in newest_outputs(workspace, run, also_current=True).items():
                workspace.bucket.download(entry.key, file)
                archive.write(file, f"{run}/{path}")
                os.unlink(file)
                count += 1
    return count


def newest_outputs(workspace: Workspace, run: str, *, also_current: bool = False) -> dict[str, Entry]:
    """Return path → object. A file of a later attempt replaces a folder of an earlier one, and vice versa."""
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


def fetch_burst(workspace: Workspace, request: RunRequest, folder: str, offer: Offer, *, report: Report) -> RunSummary:
    """Write the newest checkpoint and a summary of a run beside its outputs, and return the summary."""
    from outlast.formatting.run_summary import summarize
    from outlast.runs.checkpoints import restore

    state = workspace.story(request.run).refresh()
    if state.checkpoints:
        newest_first = tuple(reversed(state.checkpoints))
        _, problems = restore(workspace.bucket, request.run, newest_first, os.path.join(folder, "checkpoint"))
        for problem in problems:
            report(problem)
    total = summarize(state, time.time())
    summary = {
        "run": request.run,
        "ending": state.ending,
        "command": request.spec.command,
        "params": request.spec.params,
        "machine": {"cloud": offer.cloud, "type": offer.type, "cpus": offer.cpus, "spot": offer.spot},
        "seconds": total.wall_s,
        "cost_usd": total.cost_usd,
        "preemptions": total.preemptions,
    }
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "burst.json"), "w", encoding="utf-8") as file:
        json.dump(summary, file, indent=2)
    return total
