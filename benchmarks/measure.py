"""What the measurements share: a home of their own, samples with median and worst, and the table they are shown in."""

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
# Where a part notes which of its goals were met, if this is set.
GOALS = "BENCH_GOALS"
OUTLAST = str(Path(sys.executable).parent / "outlast")


class Row(NamedTuple):
    """One line of a table: what, its median, its worst, what it is compared with, and whether the goal is met."""

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


def show(table: Table) -> str:
    """As Markdown, so that what was seen can go into the README as it is."""
    lines = [f"### {table.title}", "", "| what | median | worst | | goal |", "|---|---|---|---|---|"]
    for each in table.rows:
        worst = "" if each.worst == each.median else _number(each.worst, each.unit)
        met = {None: "", True: "met: ", False: "**not met**: "}[each.met]
        lines.append(
            f"| {each.what} | {_number(each.median, each.unit)} | {worst} | {each.against} | {met}{each.goal} |"
        )
    return "\n".join([*lines, *(["", table.note] if table.note else [])])


def tell(*tables: Table) -> None:
    """Show them, and let `whole.py` know of their goals if it is listening."""
    for table in tables:
        print("\n" + show(table), flush=True)
        note_goals(table)


def note_goals(table: Table) -> None:
    if not (path := os.environ.get(GOALS)):
        return
    with open(path, "a", encoding="utf-8") as file:
        for each in table.rows:
            if each.met is not None:
                seen = " ".join(filter(None, [_number(each.median, each.unit), each.against]))
                told = {"part": table.title, "what": each.what, "seen": seen, "goal": each.goal, "met": each.met}
                file.write(json.dumps(told) + "\n")


def _number(value: float, unit: str) -> str:
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}"


class Home:
    """A user's computer of its own: home directory, project, workspace and cloud, all below one temporary folder."""

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
        """How long a command takes from its start to its end."""
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
    """Each case in turn, again and again: what disturbs the computer for a while disturbs all alike."""
    found: dict[str, list[float]] = {name: [] for name in cases}
    for case in cases.values():
        case()  # warm: compiled modules, cached files
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
