"""Time to the first line of output after a submit, a notice and a kill, split by the timestamps of each stage.

All timestamps are of this computer's clock: in the story, of the machine's files, and printed by the command.
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

# Prints the time in nanoseconds, and then waits for SIGTERM.
_COMMAND = ["sh", "-c", "date +%s.%N; exec sleep 600"]

Stamps = dict[str, float]


class Journey:
    """One `outlast run`, measured from outside."""

    # Further options of the command.
    options: tuple[str, ...] = ()

    def __init__(self, home: Home) -> None:
        self.home = home
        self.before = set(home.workspace.runs())
        self.began = time.time()
        self.process = home.start(
            [OUTLAST, "run", "--no-pull", "--quiet", "--name", "journey", *self.options, "--", *_COMMAND],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def line(self) -> tuple[float, float]:
        """Return the time of the command's next line, and the time at which it arrived here."""
        assert self.process.stdout is not None
        # Lines of outlast itself may precede the command's.
        line = next(line for line in self.process.stdout if not line.startswith(b"outlast: "))
        return float(line), time.time()

    @property
    def run(self) -> str:
        return next(run for run in self.home.workspace.runs() if run not in self.before)

    def event_at(self, kind: type[ev.Event], attempt: int) -> float:
        story = self.home.workspace.story(self.run)
        story.refresh()
        return next(e.at for e in story.events if isinstance(e, kind) and getattr(e, "attempt", attempt) == attempt)

    def booting(self, attempt: int, stamps: Stamps) -> None:
        """Return the timestamps of a machine's boot."""
        stamps["placed"] = self.event_at(ev.Placed, attempt)
        machine = self.home.workspace.machine_name(self.run, attempt)
        folder = f"{self.home.cloud.root}/machines/{machine}"
        with open(f"{folder}/machine.json", encoding="utf-8") as file:
            stamps["launch called"] = json.load(file)["created_at"]
        stamps["shim runs"] = _booted(f"{folder}/serial.log")
        # With and without a separate root file system.
        stamps["init runs"] = _written(f"{folder}/disk/*/local/sbin/shutdown", f"{folder}/bin/shutdown")
        stamps["agent has the code"] = _written(f"{folder}/disk/top/root/**/work", f"{folder}/disk/home/work")
        stamps["Started"] = self.event_at(ev.Started, attempt)

    def end(self) -> None:
        subprocess.run(
            [OUTLAST, "cancel", self.run], cwd=self.home.project, env=self.home.environment, capture_output=True,
            check=True,
        )  # fmt: skip
        self.process.communicate(timeout=60)


def _booted(serial: str) -> float:
    """Return the time of the shim's first output; its files may be rewritten later."""
    with open(serial, encoding="utf-8", errors="replace") as file:
        line = next(line for line in file if " outlast: boot " in line)
    return datetime.datetime.fromisoformat(line.split()[0]).timestamp()


def _written(*patterns: str) -> float:
    """Return the time of the first existing file."""
    found = [path for pattern in patterns for path in glob.glob(pattern, recursive=True, include_hidden=True)]
    return os.stat(found[0]).st_mtime


def submitted(journey: Journey) -> Stamps:
    stamps = {"process started": journey.began}
    printed, seen = journey.line()
    spec = f"{journey.home.workspace.bucket.url}/runs/{journey.run}/spec.json"
    stamps["code packed and stored"] = os.stat(spec).st_mtime
    stamps["Submitted"] = journey.event_at(ev.Submitted, 1)
    journey.booting(1, stamps)
    return {**stamps, "first output": printed, "received by the follower": seen}


def taken(journey: Journey, *, notice: bool) -> Stamps:
    """Preempt or kill the machine of attempt 1, and wait for the first output of attempt 2."""
    # Wait until all is idle, and then a random time, so that the moment is independent of polling.
    time.sleep(2.5 + random.random())
    home = journey.home
    machine = home.workspace.machine_name(journey.run, 1)
    stamps = {"machine taken away": time.time()}
    home.cloud.preempt(machine, notice=notice)
    printed, seen = journey.line()
    if notice:
        stamps["Noticed"] = journey.event_at(ev.Noticed, 1)
        stamps["Stopped"] = journey.event_at(ev.Stopped, 1)
    else:
        stamps["Lost"] = journey.event_at(ev.Lost, 1)
    journey.booting(2, stamps)
    return {**stamps, "first output": printed, "received by the follower": seen}


def measure(times: int) -> list[Table]:
    submits, notices, kills = [], [], []
    with home() as where:
        for number in range(2 * times + 1):
            journey = Journey(where)
            first = submitted(journey)
            second = taken(journey, notice=number % 2 == 0)
            journey.end()
            if number == 0:
                continue  # the first one probes the isolation modes of this computer
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
    """Return the total, then each stage's duration, in the order of the medians."""
    since = {name: [1e3 * (stamps[name] - next(iter(stamps.values()))) for stamps in journeys] for name in journeys[0]}
    names = sorted(since, key=lambda name: statistics.median(since[name]))
    total = since["received by the follower"]
    rows = [row("**in all**", total, "ms", goal="< 1 s of our own", met=statistics.median(total) < 1000)]
    for before, name in itertools.pairwise(names):
        step = [after - earlier for after, earlier in zip(since[name], since[before], strict=True)]
        at = f"at {statistics.median(since[name]):.0f} ms"
        rows.append(row(f"... {name}", step, "ms", against=at))
    return Table(f"{title} ({len(journeys)} times)", [*rows, *([extra] if extra else [])], f"Peer: {peer}.")
