"""Leases and process identities: holders, owners, and processes of this computer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from outlast.records.machines import MachineRecord, MachineRecords
from outlast.store.folder import FolderBucket
from outlast.store.lease import Holder, Lease, host_name, process_name, process_start
from outlast.workspace import open_workspace

_CONTAINED = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
_SAY = "from outlast.store.lease import process_name; print(process_name())"


def test_a_process_that_ended_is_known_to_be_dead_and_one_that_runs_is_not() -> None:
    with subprocess.Popen([sys.executable, "-c", _SAY], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        who = process.stdout.read().strip()
    assert Holder(who=who, epoch=1).plainly_dead()
    assert not Holder(who=process_name(), epoch=1).plainly_dead()


def test_a_killed_process_is_dead_before_its_parent_waits_for_it() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", f"{_SAY}; import sys; sys.stdout.flush(); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdin is not None
    who = Holder(who=child.stdout.readline().decode().strip(), epoch=1)
    assert not who.plainly_dead()
    child.kill()
    # Seen to have ended, and left as it is.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert who.plainly_dead()
    child.stdin.close()
    child.wait()


def test_a_process_in_a_container_with_our_host_name_does_not_count_as_dead() -> None:
    process = subprocess.run([*_CONTAINED, sys.executable, "-c", _SAY], capture_output=True, text=True, check=False)
    if process.returncode or not process.stdout:
        pytest.skip(f"pid namespaces are not available: {process.stderr.strip()}")
    who = process.stdout.strip()
    assert who.startswith(f"{os.uname().nodename}/")
    # Its process id is only meaningful inside the container.
    assert not Holder(who=f"{who.rpartition(':')[0]}:4194303", epoch=1).plainly_dead()


@pytest.mark.skipif(not process_start(os.getpid()), reason="this computer does not report start times of processes")
def test_a_reused_process_id_does_not_count_as_the_owner(
    tmp_path: Path,
) -> None:
    machine_records = MachineRecords(open_workspace(str(tmp_path)))
    machine_record = machine_records.create(MachineRecord(name="box", id="1", cloud="local"))
    view = machine_records.view("box")
    assert view is not None
    assert not view.abandoned
    with subprocess.Popen(["sleep", "60"]) as other:
        # Its own beginning differs from that of the maker who had the number before.
        dead = f"{host_name()}:{other.pid}.1"
        machine_records.bucket.put(
            "machines/box.json", msgspec.json.encode(msgspec.structs.replace(machine_record, by=dead))
        )
        view = machine_records.view("box")
        assert view is not None
        assert view.abandoned
        assert other.poll() is None
        other.kill()


def test_renew_does_not_take_a_lost_lease_again(tmp_path: Path) -> None:
    bucket = FolderBucket(str(tmp_path))
    first, second = (Lease(bucket, "image", who=who, ttl_s=0.0) for who in ("one:1", "two:2"))
    assert first.hold()
    assert first.renew()
    assert second.hold(), "the first was silent for too long"
    second.release()
    assert not first.renew(), "another process did the work meanwhile"
    assert first.hold(), "a new request gets it"


def test_the_holder_of_a_lease_that_cannot_be_taken_is_named_though_its_epoch_is_damaged(tmp_path: Path) -> None:
    bucket = FolderBucket(str(tmp_path))
    ours = Lease(bucket, "one", who="elsewhere:1", ttl_s=60.0)
    other = Lease(bucket, "one", who="elsewhere:2", ttl_s=60.0)
    assert ours.hold()
    bucket.put("leases/one/00000001", b"{")
    assert not other.hold()
    assert other.holder() == Holder(who="elsewhere:1", epoch=1)


def test_a_renamed_holder_is_shown_with_the_new_name(tmp_path: Path) -> None:
    bucket = FolderBucket(str(tmp_path))
    ours = Lease(bucket, "one", who="elsewhere:1", ttl_s=60.0)
    assert ours.hold()
    ours.who = "a machine"
    assert ours.renew()
    holder = Lease(bucket, "one", who="", ttl_s=60.0).holder()
    assert holder is not None
    assert holder.who == "a machine"


def test_a_lease_without_a_heartbeat_is_held_by_the_creator_of_its_epoch(tmp_path: Path) -> None:
    bucket = FolderBucket(str(tmp_path))
    bucket.create("leases/one/00000001", msgspec.json.encode(Holder(who="elsewhere:1", epoch=1)))
    other = Lease(bucket, "one", who="elsewhere:2", ttl_s=60.0)
    assert not other.hold()
    assert other.holder() == Holder(who="elsewhere:1", epoch=1)


def test_a_recent_renewal_counts_without_a_request(tmp_path: Path) -> None:
    now = [100.0]
    bucket = FolderBucket(str(tmp_path))
    lease = Lease(bucket, "one", who="elsewhere:1", ttl_s=8.0, monotonic=lambda: now[0])
    assert lease.hold()
    beat = tmp_path / "leases/one/beat-00000001"
    beat.unlink()
    now[0] += 0.9
    assert lease.hold(fresh_s=1.0)
    assert not beat.exists(), "no heartbeat is due"
    now[0] += 0.2
    assert lease.hold(fresh_s=1.0)
    assert beat.exists()


def test_the_objects_of_earlier_epochs_are_deleted_with_the_next_heartbeat(tmp_path: Path) -> None:
    bucket = FolderBucket(str(tmp_path))
    for who in ("one:1", "two:2", "three:3"):
        lease = Lease(bucket, "one", who=who, ttl_s=0.0)
        assert lease.hold()
    assert lease.hold()
    assert list(bucket.children("leases/one/")) == ["00000003", "beat-00000003", "clock"]


class _Asked(FolderBucket):
    """A folder that counts the requests for the store's time."""

    asked = 0

    def now(self, key: str) -> float:
        self.asked += 1
        return super().now(key)


def test_a_process_that_stands_by_asks_for_the_stores_time_once(tmp_path: Path) -> None:
    now = [100.0]
    bucket = _Asked(str(tmp_path))
    ours = Lease(bucket, "one", who="elsewhere:1", ttl_s=8.0, monotonic=lambda: now[0])
    other = Lease(bucket, "one", who="elsewhere:2", ttl_s=8.0, monotonic=lambda: now[0])
    assert ours.hold()
    for _ in range(5):
        now[0] += 5.0
        assert ours.hold()
        assert not other.hold()
    assert bucket.asked == 1
    assert other.other == Holder(who="elsewhere:1", epoch=1)
    now[0] += 5.0
    assert not other.hold(), "silent for less than the time to live"
    now[0] += 5.0
    assert other.hold(), "silent for longer, without a request for the time"
    assert bucket.asked == 1


def test_a_renewal_after_a_long_pause_of_the_watcher_may_be_old(tmp_path: Path) -> None:
    now = [100.0]
    bucket = _Asked(str(tmp_path))
    ours = Lease(bucket, "one", who="elsewhere:1", ttl_s=8.0, monotonic=lambda: now[0])
    other = Lease(bucket, "one", who="elsewhere:2", ttl_s=8.0, monotonic=lambda: now[0])
    assert ours.hold()
    assert not other.hold()
    assert ours.hold()
    now[0] += 60.0
    assert not other.hold()
    assert bucket.asked == 2
