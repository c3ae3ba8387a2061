"""Who holds a lease, or makes a machine: what is known of a process of this computer."""

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


def test_one_that_was_killed_is_dead_though_nobody_has_asked_for_it() -> None:
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


def test_a_process_of_a_container_with_our_name_is_not_taken_for_dead() -> None:
    told = subprocess.run([*_CONTAINED, sys.executable, "-c", _SAY], capture_output=True, text=True, check=False)
    if told.returncode or not told.stdout:
        pytest.skip(f"no process numbers of one's own here: {told.stderr.strip()}")
    who = told.stdout.strip()
    assert who.startswith(f"{os.uname().nodename}/")
    # Its number is a small one: as one of ours it may be anybody's, or nobody's.
    assert not Holder(who=f"{who.rpartition(':')[0]}:4194303", epoch=1).plainly_dead()


@pytest.mark.skipif(not process_start(os.getpid()), reason="this computer does not tell when a process began")
def test_a_maker_whose_number_another_process_has_by_now_is_gone_and_the_other_one_is_left_alone(
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


def test_a_lease_that_was_lost_is_not_taken_again_by_whoever_only_renews_it(tmp_path: Path) -> None:
    bucket = FolderBucket(str(tmp_path))
    first, second = (Lease(bucket, "image", who=who, ttl_s=0.0) for who in ("one:1", "two:2"))
    assert first.hold()
    assert first.renew()
    assert second.hold(), "the first was silent for too long"
    second.release()
    assert not first.renew(), "somebody else did the work meanwhile"
    assert first.hold(), "who asks for it anew gets it"


def test_the_holder_of_a_lease_that_cannot_be_taken_is_named_though_its_epoch_is_damaged(tmp_path: Path) -> None:
    bucket = FolderBucket(str(tmp_path))
    ours = Lease(bucket, "one", who="elsewhere:1", ttl_s=60.0)
    other = Lease(bucket, "one", who="elsewhere:2", ttl_s=60.0)
    assert ours.hold()
    bucket.put("leases/one/00000001", b"{")
    assert not other.hold()
    assert other.holder() == Holder(who="elsewhere:1", epoch=1)


def test_a_holder_that_changes_its_name_is_known_by_the_new_one(tmp_path: Path) -> None:
    bucket = FolderBucket(str(tmp_path))
    ours = Lease(bucket, "one", who="elsewhere:1", ttl_s=60.0)
    assert ours.hold()
    ours.who = "a machine"
    assert ours.renew()
    holder = Lease(bucket, "one", who="", ttl_s=60.0).holder()
    assert holder is not None
    assert holder.who == "a machine"


def test_a_lease_without_a_beat_is_held_by_the_maker_of_its_epoch(tmp_path: Path) -> None:
    bucket = FolderBucket(str(tmp_path))
    bucket.create("leases/one/00000001", msgspec.json.encode(Holder(who="elsewhere:1", epoch=1)))
    other = Lease(bucket, "one", who="elsewhere:2", ttl_s=60.0)
    assert not other.hold()
    assert other.holder() == Holder(who="elsewhere:1", epoch=1)
