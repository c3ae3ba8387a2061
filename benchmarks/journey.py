"""From a wish to the first line of output: submit, a notice, a kill; each taken apart by the stamps it leaves behind.

All stamps are of this one computer's clock: those of the story, of the machine's own files, and of the command itself.
"""

from __future__ import annotations

import datetime
import glob
import itertools
import json
import os
import random
import statistics
import subprocess
import time
from collections.abc import Sequence

from measure import OUTLAST, PYTHON, Home, Row, Table, home, interleaved, row, until

from outlast.runs import events as ev

# Prints the time, to the nanosecond, and then is a program that ends at once when it is told to.
_COMMAND = ["sh", "-c", "date +%s.%N; exec sleep 600"]

Stamps = dict[str, float]


class Journey:
    """One `outlast run`, watched from outside."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.before = set(home.workspace.runs())
        self.began = time.time()
        self.process = home.start(
            [OUTLAST, "run", "--no-pull", "--quiet", "--name", "journey", "--", *_COMMAND],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def line(self) -> tuple[float, float]:
        """When the command printed its next line, and when we saw it."""
        assert self.process.stdout is not None
        printed = float(self.process.stdout.readline())
        return printed, time.time()

    @property
    def run(self) -> str:
        return next(run for run in self.home.workspace.runs() if run not in self.before)

    def told(self, kind: type[ev.Event], attempt: int) -> float:
        story = self.home.workspace.story(self.run)
        story.refresh()
        return next(e.at for e in story.events if isinstance(e, kind) and getattr(e, "attempt", attempt) == attempt)

    def booting(self, attempt: int, stamps: Stamps) -> None:
        """What the machine of an attempt left behind while it came up."""
        stamps["placed"] = self.told(ev.Placed, attempt)
        machine = self.home.workspace.machine_name(self.run, attempt)
        folder = f"{self.home.cloud.root}/machines/{machine}"
        with open(f"{folder}/machine.json", encoding="utf-8") as file:
            stamps["launch called"] = json.load(file)["created_at"]
        stamps["shim runs"] = _booted(f"{folder}/serial.log")
        # Where machines have a root of their own, and where they have not.
        stamps["init runs"] = _written(f"{folder}/disk/*/local/sbin/shutdown", f"{folder}/bin/shutdown")
        stamps["agent has the code"] = _written(f"{folder}/disk/top/root/**/work", f"{folder}/disk/home/work")
        stamps["Started"] = self.told(ev.Started, attempt)

    def end(self) -> None:
        subprocess.run(
            [OUTLAST, "cancel", self.run], cwd=self.home.project, env=self.home.environment, capture_output=True,
            check=True,
        )  # fmt: skip
        self.process.communicate(timeout=60)


def _booted(serial: str) -> float:
    """When the shim wrote its first word: files that it made before may be made again."""
    with open(serial, encoding="utf-8", errors="replace") as file:
        line = next(line for line in file if " outlast: boot " in line)
    return datetime.datetime.fromisoformat(line.split()[0]).timestamp()


def _written(*patterns: str) -> float:
    """When the first of them that is there was written."""
    found = [path for pattern in patterns for path in glob.glob(pattern, recursive=True, include_hidden=True)]
    return os.stat(found[0]).st_mtime


def submitted(journey: Journey) -> Stamps:
    stamps = {"process started": journey.began}
    printed, seen = journey.line()
    spec = f"{journey.home.workspace.bucket.url}/runs/{journey.run}/spec.json"
    stamps["code packed and stored"] = os.stat(spec).st_mtime
    stamps["Submitted"] = journey.told(ev.Submitted, 1)
    journey.booting(1, stamps)
    return {**stamps, "first output": printed, "seen by the follower": seen}


def taken(journey: Journey, *, notice: bool) -> Stamps:
    """Take the machine of attempt 1; follow to the first output of attempt 2."""
    # At rest, as a run is that is preempted after hours; and at no particular moment between two looks.
    time.sleep(2.5 + random.random())
    home = journey.home
    machine = home.workspace.machine_name(journey.run, 1)
    stamps = {"machine taken away": time.time()}
    home.cloud.preempt(machine, notice=notice)
    printed, seen = journey.line()
    if notice:
        stamps["Noticed"] = journey.told(ev.Noticed, 1)
        stamps["Stopped"] = journey.told(ev.Stopped, 1)
    else:
        stamps["Lost"] = journey.told(ev.Lost, 1)
    journey.booting(2, stamps)
    return {**stamps, "first output": printed, "seen by the follower": seen}


def measure(times: int) -> list[Table]:
    submits, notices, kills = [], [], []
    with home() as where:
        for number in range(2 * times + 1):
            journey = Journey(where)
            first = submitted(journey)
            second = taken(journey, notice=number % 2 == 0)
            journey.end()
            if number == 0:
                continue  # the first one tries out how machines can be isolated here, once a boot of the computer
            submits.append(first)
            (notices if number % 2 == 0 else kills).append(second)
            until(lambda: not where.cloud.machines(), "machines are gone")
        imports = interleaved(
            {
                "bare": lambda: where.time_s([PYTHON, "-c", "pass"]),
                "agent": lambda: where.time_s([PYTHON, "-P", "-c", "import outlast.agent.agent, os; os._exit(0)"]),
            },
            times=times,
        )
    peer_launch = "SkyPilot 47 s from a ready image (39 s of it set-up over ssh)"
    peer_back = "SkyPilot 48-128 s, median 66 s, without the cloud's own latency"
    agent = row(
        "for scale: an interpreter that loads the agent",
        [1e3 * sample for sample in imports["agent"]],
        "ms",
        against=f"bare interpreter {1e3 * statistics.median(imports['bare']):.0f} ms",
    )
    return [
        breakdown("Submit to the first line of output", submits, agent, peer_launch),
        breakdown("Notice to the first line of the successor", notices, None, peer_back),
        breakdown("Kill without notice to the first line of the successor", kills, None, peer_back),
    ]


def breakdown(title: str, journeys: Sequence[Stamps], extra: Row | None, peer: str) -> Table:
    """The total, then each stamp's distance from the one before it, in the order of the medians."""
    since = {name: [1e3 * (stamps[name] - next(iter(stamps.values()))) for stamps in journeys] for name in journeys[0]}
    names = sorted(since, key=lambda name: statistics.median(since[name]))
    total = since["seen by the follower"]
    rows = [row("**in all**", total, "ms", goal="< 1 s of our own", met=statistics.median(total) < 1000)]
    for before, name in itertools.pairwise(names):
        step = [after - earlier for after, earlier in zip(since[name], since[before], strict=True)]
        at = f"at {statistics.median(since[name]):.0f} ms"
        rows.append(row(f"... {name}", step, "ms", against=at))
    return Table(f"{title} ({len(journeys)} times)", [*rows, *([extra] if extra else [])], f"Peer: {peer}.")
