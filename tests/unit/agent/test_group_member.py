"""The exclusive lock: a holder that slept, or that cannot renew its lease, stops before another run can take it."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from tests.support.waiting import eventually

from outlast.agent.attempt import AttemptWriter
from outlast.agent.effects import ExclusiveLost
from outlast.agent.group_member import GroupMember, exclusive_lease
from outlast.agent.instance import GceInstance
from outlast.agent.paths import paths_for
from outlast.agent.watch import AgentWatch
from outlast.code.record import CodeRecord
from outlast.errors import StoreUnreachable
from outlast.runs.group import Groups
from outlast.spec.spec import Member, Spec
from outlast.store.folder import FolderBucket
from outlast.workspace import RunRequest, Workspace

TTL_S = 0.6


class Interruptible(FolderBucket):
    """A store that can become unreachable or unresponsive."""

    unreachable = False

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.responds = threading.Event()
        self.responds.set()

    def _put(self, key: str, body: bytes, *, durable: bool) -> float:
        self.responds.wait()
        if self.unreachable:
            raise StoreUnreachable("the store is unreachable")
        return super()._put(key, body, durable=durable)


class Addressed(GceInstance):
    def address(self) -> str:
        return "127.0.0.1"


class Run:
    """One attempt of a run with an exclusive lock, on a separate machine."""

    def __init__(self, root: Path, name: str, member: Member | None = None) -> None:
        self.bucket = Interruptible(str(root / "workspace"))
        self.workspace = Workspace(self.bucket)
        spec = Spec(name=name, command="true", exclusive="" if member else "db:genomes", member=member)
        request = RunRequest(run=f"{name}-1", spec=spec, code=CodeRecord())
        attempt = AttemptWriter(self.workspace, request.run, 1, clock=time.time, ids=lambda: "nonce")
        home = root / name
        home.mkdir()
        instance = Addressed("127.0.0.1:1")
        paths = paths_for(request, str(home), cache="")
        self.member = GroupMember(attempt, request, instance=instance, paths=paths)
        self.member.beat_s = 0.05
        self.member.lease.ttl_s, self.member.lease.sure_s = TTL_S, 0.1
        self.watch = AgentWatch(attempt, instance, beat_s=1.0, unreachable_s=60.0)

    def has_lock(self) -> bool:
        return self.member.try_acquire(self.watch, lambda _: None)

    def fenced(self) -> str:
        """Wait until the lock is lost, and return the reason."""
        event = self.watch.events.get(timeout=10)
        assert isinstance(event, ExclusiveLost)
        return event.why


def test_the_second_run_waits_and_takes_the_lock_when_the_first_releases_it(tmp_path: Path) -> None:
    first, second = Run(tmp_path, "first"), Run(tmp_path, "second")
    assert first.has_lock()
    assert not second.has_lock()
    first.member.leave()
    assert second.has_lock()
    assert second.member.environment()["OUTLAST_FENCE"] == "2"


@pytest.mark.full
def test_a_holder_that_keeps_renewing_it_keeps_it(tmp_path: Path) -> None:
    first, second = Run(tmp_path, "first"), Run(tmp_path, "second")
    assert first.has_lock()
    until = time.monotonic() + 3 * TTL_S
    while time.monotonic() < until:
        assert not second.has_lock()
    first.watch.stop()


def test_a_holder_that_slept_stops_when_another_run_has_the_lock(tmp_path: Path) -> None:
    first = Run(tmp_path, "first")
    assert first.has_lock()
    second = exclusive_lease(first.workspace, "db:genomes", who="second-1 attempt 1", beat_s=0)
    eventually(second.hold, within_s=10, what="the second has the lock, as if the first had slept")
    assert first.fenced() == "`db:genomes` was taken over by second-1 attempt 1"
    killed = threading.Event()
    first.member.begin(first.watch, str(tmp_path), kill=killed.set)
    assert killed.is_set(), "a command that was just being started is killed as well"


def test_a_holder_that_cannot_renew_stops_before_another_run_can_take_the_lock(tmp_path: Path) -> None:
    first, second = Run(tmp_path, "first"), Run(tmp_path, "second")
    assert first.has_lock()
    first.bucket.unreachable = True
    assert "could not be renewed: the store is unreachable" in first.fenced()
    assert first.member.lease.epoch == 1
    eventually(second.has_lock, within_s=10, what="the second has the lock")


def test_a_holder_with_an_unresponsive_store_is_killed_before_another_run_can_take_the_lock(
    tmp_path: Path,
) -> None:
    first, second = Run(tmp_path, "first"), Run(tmp_path, "second")
    killed = threading.Event()
    assert first.has_lock()
    first.member.begin(first.watch, str(tmp_path), kill=killed.set)
    first.bucket.responds.clear()
    eventually(second.has_lock, within_s=10, what="the second has the lock")
    assert killed.is_set()
    assert "does not respond" in first.fenced()
    first.bucket.responds.set()


def test_a_renewal_in_progress_does_not_take_the_lock_again_after_the_release(tmp_path: Path) -> None:
    first, second = Run(tmp_path, "first"), Run(tmp_path, "second")
    for run in (first, second):
        run.member.lease.ttl_s = 600.0
    assert first.has_lock()
    first.bucket.responds.clear()
    eventually(first.member._renewing.locked, what="the renewal")
    releasing = threading.Thread(target=first.member.leave)
    releasing.start()
    eventually(lambda: first.member._left, what="the release")
    first.bucket.responds.set()
    releasing.join(10)
    assert second.has_lock()


def test_a_clock_that_jumps_forward_does_not_take_the_lock_from_a_living_holder(tmp_path: Path) -> None:
    first, second = Run(tmp_path, "first"), Run(tmp_path, "second")
    assert first.has_lock()
    beat = tmp_path / "workspace/leases/exclusive/db%3Agenomes/beat-00000001"
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        os.utime(beat, (time.time() - 3600, time.time() - 3600))
        assert not second.has_lock()
    first.watch.stop()


def test_a_clock_that_is_set_back_does_not_keep_the_lock_of_a_dead_holder(tmp_path: Path) -> None:
    first, second = Run(tmp_path, "first"), Run(tmp_path, "second")
    assert exclusive_lease(first.workspace, "db:genomes", who="first", beat_s=1).hold()
    beat = tmp_path / "workspace/leases/exclusive/db%3Agenomes/beat-00000001"
    os.utime(beat, (time.time() + 3600, time.time() + 3600))
    assert not second.has_lock()
    eventually(second.has_lock, within_s=10, what="the second has the lock when the lease of the first expires")


def test_a_second_release_does_not_release_the_lock_of_the_next_holder(tmp_path: Path) -> None:
    first, second, third = Run(tmp_path, "first"), Run(tmp_path, "second"), Run(tmp_path, "third")
    assert first.has_lock()
    first.member.leave()
    assert second.has_lock()
    first.member.leave()
    assert not third.has_lock()


def test_names_that_differ_in_any_character_are_separate_locks(tmp_path: Path) -> None:
    workspace = Workspace(FolderBucket(str(tmp_path)))
    assert exclusive_lease(workspace, "db:a/b", who="one", beat_s=1).hold()
    assert exclusive_lease(workspace, "db:a_b", who="two", beat_s=1).hold()
    assert not exclusive_lease(workspace, "db:a/b", who="two", beat_s=1).hold()


@pytest.mark.parametrize("ready", ["started", "file:up", "port"])
def test_a_member_publishes_that_it_is_ready(tmp_path: Path, ready: str) -> None:
    import socket

    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    port = listener.getsockname()[1]
    if ready == "port":
        listener.close()
        ready = f"port:{port}"
    run = Run(tmp_path, "one", Member(task="master", group="evolve-1", ready=ready))
    groups = Groups(run.workspace)
    run.member.join()
    assert [(seat.task, seat.ready) for seat in groups.seats("evolve-1")] == [("master", False)]
    run.member.begin(run.watch, str(tmp_path), kill=lambda: None)
    if ready.startswith("port"):
        assert not groups.seats("evolve-1")[0].ready
        listener = socket.create_server(("127.0.0.1", port))
    elif ready.startswith("file"):
        assert not groups.seats("evolve-1")[0].ready
        (tmp_path / "up").touch()
    eventually(lambda: groups.seats("evolve-1")[0].ready, within_s=10, what="the member is ready")
    run.watch.stop()
    listener.close()
