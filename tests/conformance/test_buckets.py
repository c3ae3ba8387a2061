"""The conformance suite of buckets for a folder and memory, and tests of folders alone."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest
from tests.conformance.power import watched

from outlast.errors import Exists
from outlast.runs import events as ev
from outlast.runs.story import Story, event_key
from outlast.store import folder
from outlast.store.bucket import Bucket, open_bucket
from outlast.store.folder import FolderBucket
from outlast.store.object_store import ObjectBucket
from outlast.testing.bucket_conformance import BucketConformance


class TestFolder(BucketConformance):
    @pytest.fixture
    def bucket(self, tmp_path_factory: pytest.TempPathFactory) -> Bucket:
        return FolderBucket(str(tmp_path_factory.mktemp("bucket")))


class TestFolderThatIsNotThereYet(BucketConformance):
    @pytest.fixture
    def bucket(self, tmp_path_factory: pytest.TempPathFactory) -> Bucket:
        return open_bucket(str(tmp_path_factory.mktemp("bucket") / "new" / "er"))


class TestMemory(BucketConformance):
    @pytest.fixture
    def bucket(self) -> Bucket:
        return ObjectBucket("memory://")


def _create_all(root: str, writer: int, won: str) -> None:
    bucket = FolderBucket(root)
    for number in range(50):
        try:
            bucket.create(f"race/{number}", b"%d" % writer, durable=False)
        except Exists:
            continue
        with open(won, "a") as file:
            file.write(f"{number}\n")


def test_exactly_one_of_many_processes_wins_in_a_folder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    root = str(tmp_path / "bucket")
    workers = [context.Process(target=_create_all, args=(root, n, str(tmp_path / f"won-{n}"))) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=60)
        assert worker.exitcode == 0
    bucket = FolderBucket(root)
    wins = {n: (tmp_path / f"won-{n}").read_text().split() for n in range(4) if (tmp_path / f"won-{n}").exists()}
    assert sorted(int(number) for won in wins.values() for number in won) == list(range(50))
    for writer, won in wins.items():
        assert all(bucket.get(f"race/{number}") == b"%d" % writer for number in won)


def test_a_folder_removes_only_old_leftovers_of_killed_writers(tmp_path: Path) -> None:
    bucket = FolderBucket(str(tmp_path / "bucket"))
    bucket.put("a", b"x")
    staging = tmp_path / "bucket" / ".staging"
    for name, age_s in (("old", 90_000), ("young", 3600)):
        (staging / name).write_bytes(b"half")
        os.utime(staging / name, (time.time() - age_s,) * 2)
    assert bucket.remove_stale_writes(older_s=86_400) == 1
    assert os.listdir(staging) == ["young"]
    assert [entry.key for entry in bucket.list("")] == ["a"]


def test_a_folder_syncs_bodies_before_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = FolderBucket(str(tmp_path / "bucket"))
    synced: list[str] = []
    fsync = os.fsync

    def note(handle: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{handle}"), bucket.root))
        fsync(handle)

    bucket.write("deep/er/1", b"x" * 3_000_000)
    bucket.write("deep/er/2", b"y")
    monkeypatch.setattr(os, "fsync", note)
    bucket.make_durable(["deep/er/1", "deep/er/2"])
    assert sorted(synced[:2]) == ["deep/er/1", "deep/er/2"]
    assert synced[2:] == ["deep/er", "deep", "."]


@pytest.mark.parametrize("key", ["shallow", "runs/run-1/story/00000001.json"])
def test_a_created_object_in_a_folder_survives_a_power_cut(tmp_path: Path, key: str) -> None:
    bucket = FolderBucket(str(tmp_path / "bucket"))
    os.makedirs(bucket.root)
    with watched(bucket.root) as disk:
        bucket.create(key, b"event")
        assert disk.survives(key)
        bucket.put(f"{key}.put", b"durable", durable=True)
        assert disk.survives(f"{key}.put")


def test_an_appended_event_survives_a_power_cut(tmp_path: Path) -> None:
    bucket = FolderBucket(str(tmp_path / "bucket"))
    os.makedirs(bucket.root)
    story = Story(bucket, "run-1")
    with watched(bucket.root) as disk:
        for number, event in enumerate([ev.Submitted(who="me"), ev.Waiting(why="no capacity"), ev.Cancelled()], 1):
            assert story.append(event, nonce=str(number))
            assert disk.survives(event_key("run-1", number))


def test_a_body_or_a_name_that_is_not_synced_does_not_survive_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model of the disk is as harsh as a disk: without this, the tests above would prove nothing."""
    bucket = FolderBucket(str(tmp_path / "bucket"))
    os.makedirs(bucket.root)
    with watched(bucket.root) as disk:
        bucket.create("deep/er/1", b"event", durable=False)
        assert not disk.survives("deep/er/1")
        bucket.make_durable(["deep/er/1"])
        write = folder._write
        monkeypatch.setattr(folder, "_write", lambda staged, body, *, durable: write(staged, body, durable=False))
        bucket.create("deep/er/2", b"event")
        assert not disk.survives("deep/er/2")


def test_a_folder_keeps_no_staged_bodies(tmp_path: Path) -> None:
    bucket = FolderBucket(str(tmp_path / "bucket"))
    bucket.put("a", b"x")
    bucket.create("b", b"x")
    with pytest.raises(Exists):
        bucket.create("b", b"y")
    (tmp_path / "file").write_bytes(b"z")
    bucket.upload("c", str(tmp_path / "file"))
    assert os.listdir(tmp_path / "bucket" / ".staging") == []
