"""Distributed runs that lose machines thirty times, at random moments (`make soak`; SOAK_SEED=2 for other moments).

With and without notice, of any rank, one, two or all at once; agents and supervisors are killed, and agents are cut off
from the workspace for longer than a silence. The result equals that of an undisturbed run, and nothing is left.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.errors import OutlastError
from tests.e2e.test_survival import assert_nothing_left
from tests.support.gang import expected, write_gang
from tests.support.home import OUTLAST, Home, kill_9, processes_mentioning
from tests.support.waiting import eventually

LOSSES = 30


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    home.clean()


class Storm:
    """The faults of one distributed run, at moments that the seed decides."""

    def __init__(self, home: Home, rng: random.Random) -> None:
        self.home = home
        self.rng = rng
        self.supervisor: subprocess.Popen[bytes] | None = None
        self.losses = 0
        self.faults: dict[str, int] = {}

    def supervise(self) -> None:
        if self.supervisor is None or self.supervisor.poll() is not None:
            self.supervisor = subprocess.Popen(
                [OUTLAST, "supervise"],
                env=self.home.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def lose(self) -> None:
        """Preempt one, two or all machines of the run."""
        running = [one.name for one in self.home.machines() if one.status == "running"]
        if not running:
            return
        count = min(len(running), self.rng.choice([1, 1, 1, 2, 2, 4]))
        self.losses += 1
        for name in self.rng.sample(running, count):
            notice = self.rng.random() < 0.5
            self._count("notice" if notice else "no notice")
            with contextlib.suppress(OutlastError):
                self.home.cloud.preempt(name, notice=notice)

    def disturb(self) -> None:
        """Kill the supervisor or an agent, or cut an agent off from the workspace."""
        kind = self.rng.choice(["supervisor", "agent", "cut off"])
        self._count(kind)
        if kind == "supervisor" and self.supervisor is not None:
            self.supervisor.kill()
            self.supervisor.wait()
        agents = self._agents()
        if kind == "agent" and agents:
            kill_9(self.rng.choice(agents))
        if kind == "cut off" and agents:
            self._cut_off(self.rng.choice(agents))

    def _cut_off(self, pid: int) -> None:
        """Suspend an agent while its command goes on, until its attempt has been given up."""
        number = len(self.home.state().attempts)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            # Another loss may end the attempt as well: the one cut off must still not commit when it is back.
            eventually(lambda: self._is_past(number), within_s=120, what="the end of the attempt of a machine cut off")
            os.kill(pid, signal.SIGCONT)

    def _is_past(self, number: int) -> bool:
        self.supervise()
        state = self.home.state()
        return bool(state.ending) or len(state.attempts) > number

    def _agents(self) -> list[int]:
        found = []
        for pid in processes_mentioning(str(self.home.root / "cloud")):
            with contextlib.suppress(OSError):
                if b"outlast.agent" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    found.append(pid)
        return found

    def _count(self, what: str) -> None:
        self.faults[what] = self.faults.get(what, 0) + 1

    def until_over(self) -> None:
        next_at = time.monotonic()
        while not self.home.state().ending:
            self.supervise()
            if time.monotonic() > next_at and (self.losses < LOSSES or self._holds()):
                (self.disturb if self.rng.random() < 0.3 else self.lose)()
                next_at = time.monotonic() + self.rng.uniform(0.0, 8.0)
            shown = f"\r{self.losses} losses, {len(self.home.state().attempts)} attempts"
            print(shown, end="", file=sys.stderr, flush=True)
            self._pass(0.1)

    def is_at_rest(self) -> bool:
        self.supervise()
        return self.home.state().closed and not list(self.home.workspace.bucket.list("heartbeats/"))

    def _holds(self) -> bool:
        """Return whether the training still waits for the end of a machine."""
        return len(self.home.state().attempts) < LOSSES

    def _pass(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        eventually(lambda: time.monotonic() > until, within_s=seconds + 5, what="time")


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("layout", ["shards", "first"])
@pytest.mark.parametrize("nodes", [2, 4])
def test_a_distributed_run_outlasts_thirty_losses(home: Home, nodes: int, layout: str) -> None:
    seed = int(os.environ.get("SOAK_SEED", "1"))
    storm = Storm(home, random.Random(f"{seed} {nodes} {layout}"))
    steps = 10 * LOSSES + 40
    write_gang(home, "local", "", nodes=nodes, hold=LOSSES, steps=steps, layout=layout)
    answer = home.outlast("submit")
    assert answer.returncode == 0, answer.stderr
    try:
        storm.until_over()
        eventually(storm.is_at_rest, within_s=300, what="rest")
    finally:
        if storm.supervisor is not None:
            storm.supervisor.kill()
            storm.supervisor.wait()
    state = home.state()
    print(f"\n{nodes} machines, {layout}: {storm.losses} losses, {len(state.attempts)} attempts, {storm.faults}")
    assert (state.ending, state.why) == ("finished", "")
    final = [one for one in state.attempts if one.outcome == "finished"]
    assert len(final) == 1
    key = f"runs/{home.only_run()}/outputs/{final[0].number}/result.txt"
    assert home.workspace.bucket.get(key).decode() == expected(steps, nodes, layout)
    assert_nothing_left(home)
