"""Slow deletions: the machine is gone at once, its files later, and no other call waits for them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from outlast.clouds.local.cloud import LocalCloud
from outlast.testing.cloud_conformance import MachineFactory, eventually

# Deletes a machine, and waits for a signal before it removes the first file.
_PAUSED = """
import sys
from outlast.clouds.local import power
from outlast.clouds.local.cloud import LocalCloud

remove = power.remove_tree

def pause(path, **options):
    print("removing", flush=True)
    sys.stdin.readline()
    remove(path, **options)

power.remove_tree = pause
LocalCloud(sys.argv[1], mode="plain").delete(sys.argv[2])
"""


@contextmanager
def paused_deletion(cloud: LocalCloud, name: str) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", _PAUSED, cloud.root, name]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "removing\n"
        try:
            yield process
        finally:
            process.kill()


def trash(cloud: LocalCloud) -> list[str]:
    return os.listdir(f"{cloud.root}/trash")


def test_a_machine_is_gone_and_its_name_is_free_while_its_files_are_removed(
    plain_cloud: LocalCloud, plain_fleet: MachineFactory
) -> None:
    name = plain_fleet.launch(script="sleep 1000").name
    plain_fleet.wait(name, "running")
    with paused_deletion(plain_cloud, name) as deleter:
        assert plain_cloud.machines() == []
        plain_fleet.launch(name, script="sleep 1000")
        plain_fleet.wait(name, "running")
        assert len(trash(plain_cloud)) == 1
        deleter.communicate("go on\n")
        assert deleter.returncode == 0
    assert trash(plain_cloud) == []
    assert [machine.name for machine in plain_cloud.machines()] == [name]


def test_a_deletion_neither_waits_for_nor_touches_the_files_of_another(
    plain_cloud: LocalCloud, plain_fleet: MachineFactory
) -> None:
    slow, quick = plain_fleet.launch(script="sleep 1000").name, plain_fleet.launch(script="sleep 1000").name
    with paused_deletion(plain_cloud, slow):
        plain_cloud.delete(quick)
        assert [remains.split(".")[0] for remains in trash(plain_cloud)] == [slow]


def test_the_files_of_a_killed_deletion_are_removed_by_the_next_deletion(
    plain_cloud: LocalCloud, plain_fleet: MachineFactory
) -> None:
    killed, other = plain_fleet.launch(script="sleep 1000").name, plain_fleet.launch(script="sleep 1000").name
    with paused_deletion(plain_cloud, killed):
        pass
    assert len(trash(plain_cloud)) == 1
    plain_cloud.delete(other)
    assert trash(plain_cloud) == []


def test_deleting_the_same_machine_again_returns_when_its_files_are_gone(
    plain_cloud: LocalCloud, plain_fleet: MachineFactory
) -> None:
    name = plain_fleet.launch(script="sleep 1000").name
    again = "import sys; from outlast.clouds.local.cloud import LocalCloud as C; C(sys.argv[1]).delete(sys.argv[2])"
    with paused_deletion(plain_cloud, name) as deleter:
        with subprocess.Popen([sys.executable, "-c", again, plain_cloud.root, name]) as second:
            eventually("it waits for the lock", lambda: _waits(second.pid))
            assert len(trash(plain_cloud)) == 1
            deleter.communicate("go on\n")
            assert second.wait(60.0) == 0
        assert trash(plain_cloud) == []


def _waits(pid: int) -> bool:
    """Return whether the process waits for a lock, as the kernel lists it."""
    with open("/proc/locks", encoding="ascii") as file:
        return any("->" in line and f" {pid} " in line for line in file)
