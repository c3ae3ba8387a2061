"""A slow cloud: rounds continue, other runs are restarted, and no step is applied twice."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from outlast.app.actions import cancel_run
from outlast.clouds.cloud import Boot, Machine, Offer
from outlast.clouds.local.cloud import LocalCloud
from outlast.store.lease import supervisors
from outlast.supervisor.loop import Supervisor
from tests.support.home import COUNTER, UNHURRIED, Home


class SlowCloud(LocalCloud):
    """The local cloud, with a gate before the deletions and launches of chosen machines."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.open = threading.Event()
        self.held: set[str] = set()
        self.calls: Counter[str] = Counter()

    def _pass(self, call: str, name: str) -> None:
        self.calls[f"{call} {name}"] += 1
        if f"{call} {name}" in self.held:
            self.open.wait()

    def delete(self, name: str) -> None:
        self._pass("delete", name)
        super().delete(name)

    def launch(self, offer: Offer, name: str, *, boot: Boot, labels: Mapping[str, str]) -> Machine:
        self._pass("launch", name)
        return super().launch(offer, name, boot=boot, labels=labels)


@pytest.fixture
def slow(home: Home) -> Iterator[SlowCloud]:
    cloud = SlowCloud(home.cloud.root)
    try:
        yield cloud
    finally:
        cloud.open.set()


@contextmanager
def supervising(home: Home, cloud: LocalCloud) -> Iterator[threading.Event]:
    stop = threading.Event()
    supervisor = Supervisor(home.workspace, {"local": cloud})
    thread = threading.Thread(target=supervisor.run, kwargs={"stop": stop}, daemon=True)
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join(60.0)
        assert not thread.is_alive(), "the supervisor did not leave"


def waiting_run(home: Home) -> str:
    home.write("wait.py", "import time\nprint('ready', flush=True)\ntime.sleep(6000)\n")
    return home.run("python3", "wait.py")


def holder(home: Home) -> str:
    found = supervisors(home.workspace.bucket, home.workspace.url).holder()
    return f"{found.who} {found.epoch}" if found else ""


def machine_of(home: Home, run: str) -> str:
    return home.workspace.machine_name(run, 1)


@pytest.mark.full
def test_a_slow_deletion_delays_neither_other_runs_nor_the_lease(home: Home, slow: SlowCloud) -> None:
    first = waiting_run(home)
    deletion = f"delete {machine_of(home, first)}"
    slow.held = {deletion}
    home.write("count.py", UNHURRIED)
    with supervising(home, slow):
        home.until(lambda: home.state(first).current, "the start of the first run")
        held_by = holder(home)
        cancel_run(home.workspace, first)
        home.until(lambda: slow.calls[deletion], "the deletion")
        second = home.run("python3", "count.py", "5", "0.05")
        home.until(lambda: home.state(second).current, "the start of the second run")
        home.cloud.preempt(machine_of(home, second), notice=False)
        home.until(lambda: home.state(second).closed, "the end of the second run", within_s=120.0)
        assert (home.state(second).ending, len(home.state(second).attempts)) == ("finished", 2)
        assert holder(home) == held_by != ""
        assert not home.state(first).closed
        slow.open.set()
        home.until(lambda: home.state(first).closed, "the end of the first run")
    assert slow.calls[deletion] == 1
    assert home.machines() == []


def test_a_slow_launch_does_not_delay_other_runs(home: Home, slow: SlowCloud) -> None:
    first = waiting_run(home)
    launch = f"launch {machine_of(home, first)}"
    slow.held = {launch}
    home.write("count.py", COUNTER)
    with supervising(home, slow):
        home.until(lambda: slow.calls[launch], "the launch")
        second = home.run("python3", "count.py", "3", "0.05")
        home.until(lambda: home.state(second).closed, "the end of the second run", within_s=120.0)
        slow.open.set()
        home.until(lambda: home.state(first).current, "the start of the first run")
    assert slow.calls[launch] == 1


@pytest.mark.full
def test_a_run_that_is_cancelled_during_its_launch_leaves_no_machine(home: Home, slow: SlowCloud) -> None:
    run = waiting_run(home)
    launch, deletion = f"launch {machine_of(home, run)}", f"delete {machine_of(home, run)}"
    slow.held = {launch}
    with supervising(home, slow):
        home.until(lambda: slow.calls[launch], "the launch")
        cancel_run(home.workspace, run)
        # A whole run passes, so rounds have observed the cancelled one; its machine is deleted only after it exists.
        home.write("count.py", COUNTER)
        other = home.run("python3", "count.py", "3", "0.05")
        home.until(lambda: home.state(other).closed, "the end of the other run", within_s=120.0)
        assert slow.calls[deletion] == 0
        slow.open.set()
        home.until(lambda: home.state(run).closed, "the end of the cancelled run")
    assert slow.calls[deletion] == 1
    assert home.machines() == []


@pytest.mark.full
def test_a_stopping_supervisor_leaves_a_slow_deletion_to_the_next(home: Home, slow: SlowCloud) -> None:
    run = waiting_run(home)
    deletion = f"delete {machine_of(home, run)}"
    slow.held = {deletion}
    with supervising(home, slow) as stop:
        home.until(lambda: home.state(run).current, "the start")
        cancel_run(home.workspace, run)
        home.until(lambda: slow.calls[deletion], "the deletion")
        stop.set()
    assert holder(home) == ""
    assert [machine.name for machine in home.machines()] == [machine_of(home, run)]
    answer = home.supervise()
    assert answer.returncode == 0, answer.stderr
    assert home.state(run).closed
    assert home.machines() == []


# A supervisor with a cloud whose deletions never return.
_STUCK = """
import sys, threading
from outlast.clouds.local.cloud import LocalCloud
from outlast.supervisor.loop import Supervisor
from outlast.workspace import open_workspace

class Stuck(LocalCloud):
    def delete(self, name):
        print("deleting", name, flush=True)
        threading.Event().wait()

Supervisor(open_workspace(sys.argv[1]), {"local": Stuck(sys.argv[2])}).run(stop=threading.Event())
"""


def test_the_next_supervisor_finishes_the_deletion_of_a_killed_one(home: Home) -> None:
    run = waiting_run(home)
    argv = [sys.executable, "-c", _STUCK, home.workspace.url, home.cloud.root]
    with subprocess.Popen(argv, env=home.environment, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        home.until(lambda: home.state(run).current, "the start")
        cancel_run(home.workspace, run)
        assert killed.stdout.readline() == f"deleting {machine_of(home, run)}\n"
        killed.kill()
    answer = home.supervise()
    assert answer.returncode == 0, answer.stderr
    assert home.state(run).closed
    assert home.state(run).cost_usd > 0
    assert home.machines() == []
