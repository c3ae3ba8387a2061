"""A counter that is preempted and killed in many ways ends with the right total, and no machine is left."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
from pathlib import Path

import pytest

from outlast.clouds.local.processes import descendants
from outlast.errors import BadRequest, NotFound
from tests.support.home import COUNTER, Home, kill_9, processes_mentioning

TOTAL = 60


def start_counter(home: Home, *options: str, total: int = TOTAL, pause: float = 0.05) -> subprocess.Popen[str]:
    home.write("count.py", COUNTER)
    return home.start("run", "--name", "count", *options, "--", "python3", "count.py", str(total), str(pause))


def assert_nothing_left(home: Home) -> None:
    assert home.machines() == []
    assert not list(home.workspace.bucket.list("heartbeats/"))
    home.until(lambda: not processes_mentioning(str(home.root / "cloud")), "end of every process")


def assert_right_total(home: Home, total: int = TOTAL) -> None:
    state = home.state()
    assert state.ending == "finished", state
    assert state.closed
    finals = [a for a in state.attempts if a.outcome == "finished"]
    assert len(finals) == 1
    body = home.workspace.bucket.get(f"runs/{home.only_run()}/outputs/{finals[0].number}/total.txt")
    assert body == str(total).encode()


@pytest.mark.full
def test_the_total_is_right_after_five_preemptions_at_random_times(home: Home) -> None:
    rng = random.Random(20261115)
    process = start_counter(home, total=160)
    for number in range(1, 6):
        # The first preemption precedes the first checkpoint.
        until = 0 if number == 1 else rng.randint(8, 14) * number
        home.until(
            lambda n=number: home.workspace.runs() and len(home.state().attempts) >= n and home.state().current,
            f"attempt {number}",
        )
        if until:
            home.until_counted(until)
        current = home.state().current
        assert current is not None
        answer = home.outlast("preempt", "last", *(["--no-notice"] if number % 2 else []))
        assert answer.returncode == 0, answer.stderr
        home.until(lambda n=current.number: home.state().attempts[n - 1].phase == "over", f"end of attempt {number}")
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert_right_total(home, 160)
    assert sum(a.preempted for a in home.state().attempts) == 5
    result = home.outlast("show", "last").stdout
    assert result.count("preempted") >= 5
    assert "resumed from checkpoint" in result
    assert (home.project / "outputs" / home.only_run() / "total.txt").read_text() == "160"
    assert_nothing_left(home)


SLOW_SAVER = """
import os, sys, time
path = os.path.join(os.environ["OUTLAST_CHECKPOINT_DIR"], "count")
count = int(open(path).read().split()[0]) if os.path.exists(path) else 0
while count < 8:
    count += 1
    with open(path, "w") as file:
        file.write(str(count))
        file.flush()
        print("saving", count, flush=True)
        time.sleep(0.4)                      # in the middle of its save for most of the time
        file.write(" whole")
    assert open(path).read() == f"{count} whole"
    print("count", count, flush=True)
    time.sleep(0.15)
print("whole at the end:", open(path).read(), flush=True)
"""


@pytest.mark.full
@pytest.mark.parametrize("notice", [True, False])
def test_an_incomplete_checkpoint_is_never_restored(home: Home, notice: bool) -> None:
    home.write(
        "save.py",
        SLOW_SAVER.replace("else 0\n", "else 0\nif os.path.exists(path): assert 'whole' in open(path).read()\n", 1),
    )
    process = home.start("run", "--", "python3", "save.py")
    home.until(lambda: home.workspace.runs() and "saving 4" in home.log(), "the fourth save")
    home.cloud.preempt(home.machines()[0].name, notice=notice)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert "whole at the end: 8 whole" in output
    assert home.state().crashes == 0


@pytest.mark.full
def test_a_run_survives_kill_9_of_outlast_run(home: Home) -> None:
    process = start_counter(home)
    home.until_counted(10)
    process.kill()
    home.until_counted(TOTAL)
    assert home.supervise().returncode == 0
    assert_right_total(home)
    assert len(home.state().attempts) == 1  # the death of a supervisor never harms a healthy run
    assert_nothing_left(home)


@pytest.mark.full
def test_a_run_survives_kill_9_of_outlast_run_and_an_unobserved_preemption(home: Home) -> None:
    process = start_counter(home)
    home.until_counted(20)
    process.kill()
    home.cloud.preempt(home.machines()[0].name, notice=False)
    assert home.supervise().returncode == 0
    assert_right_total(home)
    assert len(home.state().attempts) == 2
    assert_nothing_left(home)


def pids_of(home: Home, module: str) -> list[int]:
    """Return the processes of this home's cloud that run one of our modules."""
    found = []
    shims = processes_mentioning(str(home.root / "cloud"))
    # A machine with a separate root does not mention its host; it descends from a shim that does.
    for pid in {*shims, *descendants(shims)}:
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if module.encode() in argv:
            found.append(pid)
    return found


def survive_kill_9_of(home: Home, module: str) -> None:
    process = start_counter(home)
    home.until_counted(20)
    pids = pids_of(home, module)
    assert pids
    for pid in pids:
        kill_9(pid)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert_right_total(home)


def test_a_run_survives_kill_9_of_the_agent(home: Home) -> None:
    survive_kill_9_of(home, "outlast.agent")
    assert len(home.state().attempts) == 2
    assert_nothing_left(home)


@pytest.mark.full
def test_a_run_survives_kill_9_of_the_shim(home: Home) -> None:
    survive_kill_9_of(home, "outlast.clouds.local.shim")
    assert_nothing_left(home)


@pytest.mark.full
def test_a_run_survives_repeated_kills_of_its_supervisor(home: Home) -> None:
    home.write("count.py", COUNTER)
    run = home.run("python3", "count.py", "40", "0.05")
    rng = random.Random(7)
    for _ in range(6):
        supervisor = home.start("supervise", "--until-idle")
        try:
            supervisor.wait(timeout=rng.uniform(0.15, 0.6))
        except subprocess.TimeoutExpired:
            supervisor.kill()
            supervisor.wait()
    assert home.supervise().returncode == 0
    state = home.state(run)
    assert state.ending == "finished"
    assert sum(bool(a.started_at) for a in state.attempts) == 1
    assert_nothing_left(home)


@pytest.mark.full
def test_two_supervisors_never_duplicate_an_attempt(home: Home) -> None:
    home.write("count.py", COUNTER)
    runs = [home.run("python3", "count.py", "20", "0.05") for _ in range(4)]
    supervisors = [home.start("supervise") for _ in range(3)]
    for _ in range(3):
        home.until(lambda: len(home.machines()) > 0, "machines")
        for machine in home.machines()[:2]:
            with contextlib.suppress(BadRequest, NotFound):  # deleted in the meantime, which this test provokes
                home.cloud.preempt(machine.name, notice=False)
    home.until(lambda: all(home.state(run).closed for run in runs), "end of all runs", 60)
    for supervisor in supervisors:
        supervisor.send_signal(signal.SIGTERM)
        supervisor.communicate(timeout=600)
    for run in runs:
        assert home.state(run).ending == "finished"
        assert home.log(run).count("count 20\n") == 1
    assert home.machines() == []


@pytest.mark.full
def test_a_successor_boots_during_the_grace_period(home: Home) -> None:
    home.write(
        "slow.py",
        """
import os, signal, sys, time
path = os.path.join(os.environ["OUTLAST_CHECKPOINT_DIR"], "state")
if os.path.exists(path):
    print("resumed with", open(path).read(), flush=True)
    sys.exit(0)
def leave(*_):
    time.sleep(1.5)
    open(path, "w").write("the last word")
    assert os.path.exists(os.environ["OUTLAST_NOTICE_FILE"])
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
while True: time.sleep(0.05)
""",
    )
    output = home.preempt_when_ready(home.start("run", "--", "python3", "slow.py"))
    assert "resumed with the last word" in output
    first, second = home.state().attempts
    assert second.placed_at < first.over_at  # it existed before the first one had left
    assert second.started_at >= first.over_at
    assert second.started_at - first.over_at < 1.0
    assert second.zone != first.zone  # not back to where it was just preempted


@pytest.mark.full
def test_an_interrupt_without_a_terminal_detaches_and_a_background_supervisor_continues(home: Home) -> None:
    process = start_counter(home)
    home.until_counted(5)
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "detached" in output
    home.cloud.preempt(home.machines()[0].name, notice=False)
    home.until(lambda: home.state().closed, "the end", 60)
    assert_right_total(home)
    home.until(lambda: not processes_mentioning(str(home.root)), "end of the background supervisor")


@pytest.mark.full
def test_a_machine_may_be_preempted_while_its_predecessor_is_still_leaving(home: Home) -> None:
    endless = COUNTER.replace("while count < total:", 'while not os.path.exists("/tmp/never"):')
    home.write("train.py", endless)
    home.start("run", "--no-pull", "--", "python", "train.py", "0", "0.05")
    home.until_counted(3)
    for _ in range(4):
        answer = home.outlast("preempt", "last", "--no-notice")
        assert (answer.returncode, answer.stderr.startswith("error")) == (0, False), answer.stderr
    assert home.outlast("cancel", "last").returncode == 0
    home.until(lambda: home.machines() == [], "the last machine being gone")
