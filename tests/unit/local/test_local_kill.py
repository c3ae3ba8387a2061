"""When a machine ends, everything that it ever started is dead."""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import sys
from pathlib import Path

import pytest

from outlast.clouds.local.cloud import LocalCloud
from outlast.testing.cloud_conformance import MachineFactory, eventually

# One of each kind that survives killpg.
_ESCAPERS = """
import os, signal, sys, time
sleep = ["sleep", sys.argv[1]]
def spawn(prepare, variables=None):
    if os.fork() == 0:
        prepare()
        os.execve("/bin/sleep", sleep, dict(os.environ) if variables is None else variables)
def daemonize():
    os.setsid()
    if os.fork(): os._exit(0)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
    os.closerange(0, 64)
spawn(lambda: None)
spawn(os.setsid)
spawn(daemonize)
spawn(daemonize, {})
spawn(lambda: None, {})
os.execv("/bin/sleep", sleep)
"""
_COUNT = 6


@pytest.fixture
def seconds() -> str:
    """Return a unique sleep duration, by which the test finds its processes in the process list."""
    return f"{secrets.randbelow(10**9) + 10**9}"


def sleepers(seconds: str) -> list[int]:
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")[:2] == [b"sleep", seconds.encode()]:
                found.append(int(entry))
        except OSError:
            continue
    return found


def launch_escapers(fleet: MachineFactory, tmp_path: Path, seconds: str) -> str:
    # Inside the script: machines in modes root and userns do not see files of the test.
    name = fleet.launch(script=f"exec {shlex.quote(sys.executable)} -c {shlex.quote(_ESCAPERS)} {seconds}").name
    eventually("all of them run", lambda: len(sleepers(seconds)) == _COUNT)
    # Its shim reports it a moment later.
    fleet.wait(name, "running")
    return name


@pytest.mark.parametrize("end", ["stop", "delete", "preempt"])
def test_no_process_outlives_its_machine(
    cloud: LocalCloud, fleet: MachineFactory, tmp_path: Path, seconds: str, end: str
) -> None:
    name = launch_escapers(fleet, tmp_path, seconds)
    if end == "preempt":
        cloud.preempt(name, notice=False)
        fleet.wait(name, "stopped")
    else:
        getattr(cloud, end)(name)
    assert sleepers(seconds) == []


def test_a_machine_whose_shim_was_killed_is_broken_and_its_deletion_leaves_nothing(
    cloud: LocalCloud, fleet: MachineFactory, tmp_path: Path, seconds: str
) -> None:
    name = launch_escapers(fleet, tmp_path, seconds)
    kill_shim(cloud, name)
    machine = fleet.wait(name, "broken")
    assert machine.why == "its shim was killed"
    assert [listed.status for listed in cloud.machines(fleet.labels)] == ["broken"]
    cloud.delete(name)
    eventually("no process is left", lambda: sleepers(seconds) == [])
    assert cloud.machines() == []


def test_a_broken_plain_machine_without_shim_and_init_is_found_by_its_marker(
    plain_cloud: LocalCloud, plain_fleet: MachineFactory, seconds: str
) -> None:
    name = plain_fleet.launch(script=f"setsid sleep {seconds} & sleep {seconds}").name
    eventually("both run", lambda: len(sleepers(seconds)) == 2)
    shim_pid = shim_of(plain_cloud, name)
    init_pid = int(Path(f"/proc/{shim_pid}/task/{shim_pid}/children").read_text().split()[0])
    # Stopped, so that init cannot see that its shim dies.
    os.kill(init_pid, signal.SIGSTOP)
    os.kill(shim_pid, signal.SIGKILL)
    os.kill(init_pid, signal.SIGKILL)
    plain_fleet.wait(name, "broken")
    assert len(sleepers(seconds)) == 2
    plain_cloud.delete(name)
    assert sleepers(seconds) == []


def test_a_stuck_shim_does_not_keep_its_machine_alive(
    cloud: LocalCloud, fleet: MachineFactory, tmp_path: Path, seconds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlast.clouds.local.power._PATIENCE_S", 0.3)
    name = launch_escapers(fleet, tmp_path, seconds)
    os.kill(shim_of(cloud, name), signal.SIGSTOP)
    cloud.delete(name)
    eventually("no process is left", lambda: sleepers(seconds) == [])


def test_a_broken_machine_cannot_be_started_but_stopped(cloud: LocalCloud, fleet: MachineFactory) -> None:
    name = fleet.launch(script="sleep 1000").name
    fleet.wait(name, "running")
    kill_shim(cloud, name)
    fleet.wait(name, "broken")
    cloud.stop(name)
    assert cloud.machine(name).status == "stopped"


def test_processes_see_only_their_own_machine(fleet: MachineFactory, mode: str) -> None:
    name = fleet.launch(script="echo pid $$ host $(hostname) end").name
    serial = fleet.wait_serial(name, " end")
    if mode == "pidns":
        assert f"pid 2 host {name} end" in serial


def shim_of(cloud: LocalCloud, name: str) -> int:
    eventually("the machine runs", lambda: cloud.machine(name).status == "running")
    pid = (cloud._folder(name).state() or {})["shim_pid"]
    assert isinstance(pid, int)
    return pid


def kill_shim(cloud: LocalCloud, name: str) -> None:
    os.kill(shim_of(cloud, name), signal.SIGKILL)
