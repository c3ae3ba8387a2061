"""Helpers of the benchmarks: a temporary home, samples with median and worst, and Markdown tables."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from outlast.clouds.local.cloud import LocalCloud
from outlast.workspace import Workspace, open_workspace

PYTHON = sys.executable
# The variable with the file to which a part writes its goals; used by `run_all.py`.
GOALS = "BENCH_GOALS"
OUTLAST = str(Path(sys.executable).parent / "outlast")


class Row(NamedTuple):
    """One row of a table: its name, median, worst, comparison, goal, and whether the goal is met."""

    what: str
    median: float
    worst: float
    unit: str
    against: str = ""
    goal: str = ""
    met: bool | None = None


class Table(NamedTuple):
    title: str
    rows: Sequence[Row]
    note: str = ""


def row(what: str, samples: Sequence[float], unit: str, **rest: Any) -> Row:
    return Row(what, statistics.median(samples), max(samples), unit, **rest)


def once(what: str, value: float, unit: str, **rest: Any) -> Row:
    return Row(what, value, value, unit, **rest)


def markdown(table: Table) -> str:
    """Return the table as Markdown for the README."""
    lines = [f"### {table.title}", "", "| what | median | worst | | goal |", "|---|---|---|---|---|"]
    for each in table.rows:
        worst = "" if each.worst == each.median else _number(each.worst, each.unit)
        met = {None: "", True: "met: ", False: "**not met**: "}[each.met]
        lines.append(
            f"| {each.what} | {_number(each.median, each.unit)} | {worst} | {each.against} | {met}{each.goal} |"
        )
    return "\n".join([*lines, *(["", table.note] if table.note else [])])


def print_tables(*tables: Table) -> None:
    """Print the tables, and write their goals for `run_all.py`."""
    for table in tables:
        print("\n" + markdown(table), flush=True)
        write_goals(table)


def write_goals(table: Table) -> None:
    if not (path := os.environ.get(GOALS)):
        return
    with open(path, "a", encoding="utf-8") as file:
        for each in table.rows:
            if each.met is not None:
                seen = " ".join(filter(None, [_number(each.median, each.unit), each.against]))
                goal_line = {"part": table.title, "what": each.what, "seen": seen, "goal": each.goal, "met": each.met}
                file.write(json.dumps(goal_line) + "\n")


def _number(value: float, unit: str) -> str:
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}"


class Home:
    """A temporary home directory with project, workspace and cloud."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.project = os.path.join(root, "project")
        os.makedirs(self.project)
        os.makedirs(os.path.join(root, "home"))
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "OUTLAST_LOCAL_MODE") if name in os.environ}
        self.environment = {
            **kept,
            "HOME": os.path.join(root, "home"),
            "OUTLAST_WORKSPACE": os.path.join(root, "workspace"),
            "OUTLAST_LOCAL_CLOUD": os.path.join(root, "cloud"),
        }
        self.workspace: Workspace = open_workspace(self.environment["OUTLAST_WORKSPACE"])
        self.cloud = LocalCloud(self.environment["OUTLAST_LOCAL_CLOUD"])

    def start(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            argv, cwd=self.project, env=self.environment, stdin=subprocess.DEVNULL, start_new_session=True, **options
        )

    def time_s(self, argv: Sequence[str]) -> float:
        """Return the duration of a command."""
        began = time.perf_counter()
        done = subprocess.run(argv, cwd=self.project, env=self.environment, capture_output=True, check=False)
        took = time.perf_counter() - began
        if done.returncode != 0:
            raise RuntimeError(f"{argv}: {done.stderr.decode(errors='replace')}")
        return took

    def clean(self) -> None:
        for machine in self.cloud.machines():
            self.cloud.delete(machine.name)
        shutil.rmtree(self.root, ignore_errors=True)


@contextmanager
def home() -> Iterator[Home]:
    made = Home(tempfile.mkdtemp(prefix="outlast-bench-"))
    try:
        yield made
    finally:
        made.clean()


def interleaved(cases: Mapping[str, Callable[[], float]], *, times: int) -> dict[str, list[float]]:
    """Alternate the cases, so that disturbances of the computer affect all of them."""
    found: dict[str, list[float]] = {name: [] for name in cases}
    for case in cases.values():
        case()  # warm up compiled modules and file caches
    for _ in range(times):
        for name, case in cases.items():
            found[name].append(case())
    return found


def until(condition: Callable[[], Any], what: str, within_s: float = 60.0) -> Any:
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.005)
    return found
