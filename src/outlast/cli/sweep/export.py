"""`outlast sweep export`."""

from __future__ import annotations

import csv
import io
import os
from typing import TYPE_CHECKING

import click

from outlast.app.sweeps import find_sweep, search_of
from outlast.cli.shared.command import command
from outlast.cli.shared.options import workspace_option
from outlast.cli.shared.terminal import find_workspace, note
from outlast.cli.sweep.table import rows, sweep_argument, trials_text
from outlast.errors import OutlastError, UsageError

if TYPE_CHECKING:
    from outlast.app.types import Sweep, SweepState, Workspace


@command(progress="reading trials", interrupt="stopped; the file may be incomplete")
@sweep_argument
@click.argument("file")
@workspace_option
def export(sweep_name: str, file: str, workspace_url: str) -> int:
    """Write a sweep to FILE: `.db` (SQLite) or `.log` (journal) for Optuna, `.csv` or `.json`."""
    workspace = find_workspace(workspace_url)
    sweep, state = find_sweep(workspace, sweep_name)
    kind = os.path.splitext(file)[1]
    if kind in (".db", ".sqlite", ".sqlite3", ".log", ".journal"):
        search_of(sweep, state).export(file)
    elif kind == ".json":
        _write(file, trials_text(workspace, sweep, state, as_json=True).encode() + b"\n")
    elif kind == ".csv":
        _write(file, _as_csv(workspace, sweep, state))
    else:
        raise UsageError(f"unknown format of `{file}`: expected .db, .log, .csv or .json")
    note(f"wrote {file}")
    return 0


def _as_csv(workspace: Workspace, sweep: Sweep, state: SweepState) -> bytes:
    names, goals = list(sweep.search.params), [goal.partition(":")[2] for goal in sweep.search.goals]
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["trial", "state", *goals, *names, "seconds", "run"])
    for row in rows(workspace, sweep, state):
        values = row["values"] or [""] * len(goals)
        writer.writerow(
            [row["trial"], row["state"], *values, *(row["params"][n] for n in names), row["seconds"], row["run"]]
        )
    return text.getvalue().encode()


def _write(path: str, body: bytes) -> None:
    try:
        with open(path, "wb") as file:
            file.write(body)
    except OSError as problem:
        raise OutlastError(f"cannot write `{path}`: {problem.strerror}") from problem
