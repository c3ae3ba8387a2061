"""An hour of the local cloud with everything that goes wrong (`make soak`; SOAK_S=300 for five minutes).

Fifty runs at a time: random preemption, kill -9 of supervisors and agents, SIGSTOP for longer than every lease, a disk
that is full for a while (as root), supervisors whose clock is an hour off (with libfaketime). Then the count.
"""

from __future__ import annotations

import collections
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
from outlast.runs.logs import LogReader
from tests.support.home import COUNTER, OUTLAST, Home, kill_9, processes_mentioning
from tests.support.waiting import eventually

SOAK_S = float(os.environ.get("SOAK_S", "3600"))
AT_A_TIME = int(os.environ.get("SOAK_RUNS", "50"))
TOTAL = 60
STOPPED_S = 9.0  # longer than the lease of a supervisor


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    home.clean()


# As the counter of the end-to-end tests, but it looks whether its files were written: on a full disk it crashes, where
# the careless one would go on with an empty file.
CAREFUL = COUNTER.replace(
    'open(path, "w").write(str(count))',
    'with open(path + ".tmp", "w") as file: file.write(str(count))\n    os.replace(path + ".tmp", path)',
).replace(
    'open(os.path.join(os.environ["OUTLAST_OUTPUT_DIR"], "total.txt"), "w").write(str(count))',
    'with open(os.path.join(os.environ["OUTLAST_OUTPUT_DIR"], "total.txt"), "w") as file: file.write(str(count))',
)


class Soak:
    def __init__(self, home: Home) -> None:
        self.home = home
        self.rng = random.Random(int(os.environ.get("SOAK_SEED", "1")))
        self.submitted: list[str] = []
        self.faults: collections.Counter[str] = collections.Counter()
        self.supervisors: list[subprocess.Popen[bytes]] = []
        self.stopped: list[tuple[float, int]] = []
        self.filler = home.root / "cloud" / "filler"

    # What goes wrong

    def preempt(self) -> None:
        machines = [m for m in self.home.machines() if m.status == "running"]
        if machines:
            with contextlib.suppress(OutlastError):
                self.home.cloud.preempt(self.rng.choice(machines).name, notice=self.rng.random() < 0.5)

    def kill_supervisor(self) -> None:
        if self.supervisors:
            self.rng.choice(self.supervisors).kill()

    def _agents(self) -> list[int]:
        found = []
        for pid in processes_mentioning(str(self.home.root / "cloud")):
            with contextlib.suppress(OSError):
                if b"outlast.agent" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    found.append(pid)
        return found

    def kill_agent(self) -> None:
        agents = self._agents()
        if agents:
            kill_9(self.rng.choice(agents))

    def suspend_process(self) -> None:
        """A process that is away for longer than every lease, and then back: a zombie."""
        pids = self._agents() + [p.pid for p in self.supervisors if p.poll() is None]
        if pids:
            pid = self.rng.choice(pids)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                self.stopped.append((time.monotonic() + STOPPED_S, pid))

    def wake_up(self) -> None:
        for at, pid in list(self.stopped):
            if time.monotonic() > at:
                self.stopped.remove((at, pid))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def fill_disk(self) -> None:
        """The disk of all machines is full for a moment."""
        if not os.path.ismount(self.home.root / "cloud"):
            return
        with contextlib.suppress(OSError), open(self.filler, "wb") as file:
            while True:
                file.write(b"x" * 65536)
        self._pass(2.0)
        with contextlib.suppress(OSError):
            self.filler.unlink()

    # What goes on

    def supervise(self) -> None:
        self.supervisors = [p for p in self.supervisors if p.poll() is None]
        while len(self.supervisors) < 2:
            environment = dict(self.home.environment)
            library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
            if library is not None and self.rng.random() < 0.3:
                environment |= {"LD_PRELOAD": str(library), "FAKETIME": self.rng.choice(["+1h", "-1h"])}
                self.faults["clock an hour off"] += 1
            self.supervisors.append(
                subprocess.Popen(
                    [OUTLAST, "supervise"],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )

    def submit_more(self) -> None:
        living = sum(not self.home.state(run).ending for run in self.submitted[-AT_A_TIME * 2 :])
        for _ in range(AT_A_TIME - living):
            pause = self.rng.choice(["0.05", "0.2", "0.5"])
            with contextlib.suppress(OutlastError):
                self.submitted.append(self.home.run("python3", "count.py", str(TOTAL), pause))

    def run(self) -> None:
        self.home.write("count.py", CAREFUL)
        faults = [
            (0.8, self.preempt), (6.0, self.kill_supervisor), (3.0, self.kill_agent),
            (5.0, self.suspend_process), (45.0, self.fill_disk),
        ]  # fmt: skip
        next_at = {fault.__name__: time.monotonic() + every for every, fault in faults}
        ends_at = time.monotonic() + SOAK_S
        while time.monotonic() < ends_at:
            self.supervise()
            self.submit_more()
            self.wake_up()
            for every, fault in faults:
                if time.monotonic() > next_at[fault.__name__]:
                    fault()
                    self.faults[fault.__name__] += 1
                    next_at[fault.__name__] = time.monotonic() + self.rng.expovariate(1 / every)
            left_s = ends_at - time.monotonic()
            done = sum(bool(self.home.state(run).ending) for run in self.submitted)
            print(
                f"\r{left_s:5.0f} s left, {len(self.submitted)} runs, {done} over", end="", file=sys.stderr, flush=True
            )
            self._pass(0.3)

    def _pass(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        eventually(lambda: time.monotonic() > until, within_s=seconds + 5, what="time")

    def calm_down(self) -> None:
        while self.stopped:
            self.stopped = [(0.0, pid) for _, pid in self.stopped]
            self.wake_up()
        self.supervise()
        closed = lambda: (self.supervise(), all(self.home.state(r).closed for r in self.submitted))[1]  # noqa: E731
        eventually(closed, within_s=600, what="rest")

    # The count

    def count(self) -> collections.Counter[str]:
        result: collections.Counter[str] = collections.Counter()
        for run in self.submitted:
            state = self.home.state(run)
            finals = [a for a in state.attempts if a.outcome == "finished"]
            if state.ending == "finished" and len(finals) == 1:
                key = f"runs/{run}/outputs/{finals[0].number}/total.txt"
                right = self.home.workspace.bucket.get(key) == str(TOTAL).encode()
                result["finished right" if right else "finished wrong"] += 1
            elif state.ending == "failed":
                result[f"failed: {state.why[:60]}"] += 1
            else:
                result["lost"] += 1
            last = [b"".join(LogReader(self.home.workspace.bucket, run, a.number).read()) for a in finals]
            result["doubled"] += len(finals) > 1 or sum(body.count(b"count 60\n") for body in last) > 1
        result["orphaned machines"] = len(self.home.machines())
        return result

    def last_words(self, run: str) -> Iterator[str]:
        """How each attempt of a run that failed ended: outcome, code, and the last line of its output."""
        for attempt in self.home.state(run).attempts:
            lines = b"".join(LogReader(self.home.workspace.bucket, run, attempt.number).read()).splitlines()
            last = lines[-1].decode(errors="replace")[:160] if lines else "no output"
            yield f"{run} attempt {attempt.number}: {attempt.outcome} {attempt.exit_code}: {last}"


@pytest.mark.soak
@pytest.mark.timeout(SOAK_S + 1200)
def test_runs_survive_an_hour_of_faults(home: Home) -> None:
    cloud = home.root / "cloud"
    cloud.mkdir(exist_ok=True)
    mounted = (
        os.geteuid() == 0
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", str(cloud)], capture_output=True, check=False
        ).returncode
    )
    soak = Soak(home)
    try:
        soak.run()
        soak.calm_down()
        result = soak.count()
        print(f"\n{len(soak.submitted)} runs, {sum(len(home.state(r).attempts) for r in soak.submitted)} attempts")
        print("faults:", dict(soak.faults))
        print("result:", dict(result))
        attempts = [a for run in soak.submitted for a in home.state(run).attempts]
        print("outcomes:", dict(collections.Counter(a.outcome for a in attempts)))
        for run in soak.submitted:
            if home.state(run).ending == "failed":
                print(*soak.last_words(run), sep="\n")
    finally:
        for supervisor in soak.supervisors:
            supervisor.kill()
            supervisor.wait()
        home.clean()
        if mounted:
            subprocess.run(["umount", "-l", str(cloud)], check=False)
    # A full disk may crash a program, and three crashes end a run: that is an honest end, not a loss.
    assert result["lost"] == result["doubled"] == result["finished wrong"] == result["orphaned machines"] == 0, result
    assert result["finished right"] > 0
