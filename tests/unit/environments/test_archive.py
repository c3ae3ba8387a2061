"""Packed environments: one builder wins, reads arrive in parallel, and only unused archives are deleted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outlast.code.environment import record_of
from outlast.environments import archive
from outlast.errors import Missing
from outlast.store.bucket import Bucket, Entry, open_bucket

RECORD = record_of("requirements", lock="a==1\n", file="requirements.txt", python="3.12", python_min="3.11")
DAY = 86400.0


@pytest.fixture(params=["folder", "memory"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Bucket:
    return open_bucket(str(tmp_path / "ws") if request.param == "folder" else "memory://")


def _environment(folder: Path, *, pieces: int = 1) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to("/usr/bin/python3")
    (folder / "bin" / "uv").write_text("the machine's")
    for number in range(pieces):
        (folder / f"random-{number}").write_bytes(os.urandom(3_000_000))
    return folder


def test_an_environment_of_many_ranges_arrives_unchanged(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_PIECE", 1 << 20)
    source = _environment(tmp_path / "source", pieces=4)
    assert archive.store(bucket, RECORD, "linux", str(source))
    found = archive.find_archive(bucket, RECORD, "linux")
    assert found is not None
    assert found.bytes > 10 << 20
    seen: list[int] = []
    archive.unpack(bucket, found, str(tmp_path / "target"), progress=seen.append)
    assert seen[-1] == found.bytes
    assert len(seen) == -(-found.bytes // (1 << 20))
    assert os.readlink(tmp_path / "target/bin/python") == "/usr/bin/python3"
    for path in source.glob("random-*"):
        assert (tmp_path / "target" / path.name).read_bytes() == path.read_bytes()
    assert not (tmp_path / "target/bin/uv").exists(), "uv belongs to the machine"


def test_of_two_builders_one_wins_and_the_other_leaves_nothing(bucket: Bucket, tmp_path: Path) -> None:
    one, two = _environment(tmp_path / "one"), _environment(tmp_path / "two")
    assert archive.store(bucket, RECORD, "linux", str(one))
    winner = archive.find_archive(bucket, RECORD, "linux")
    assert not archive.store(bucket, RECORD, "linux", str(two))
    assert archive.find_archive(bucket, RECORD, "linux") == winner
    assert len([entry for entry in bucket.list("environments/") if entry.key.endswith(".zst")]) == 1


def test_a_damaged_archive_is_noticed(bucket: Bucket, tmp_path: Path) -> None:
    archive.store(bucket, RECORD, "linux", str(_environment(tmp_path / "source")))
    found = archive.find_archive(bucket, RECORD, "linux")
    assert found is not None
    body = bytearray(bucket.get(found.key))
    body[len(body) // 2] ^= 0xFF
    bucket.put(found.key, bytes(body))
    with pytest.raises(archive.DamagedArchive):
        archive.unpack(bucket, found, str(tmp_path / "target"))
    bucket.delete(found.key)
    with pytest.raises(Missing):
        archive.unpack(bucket, found, str(tmp_path / "other"))


def test_the_lock_survives_a_prune_and_the_archive_is_built_again(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put(RECORD.lock_key, b"a==1\n")
    archive.store(bucket, RECORD, "linux", str(_environment(tmp_path / "source")))
    archive.mark_used(bucket, RECORD, "linux")
    assert archive.prune(bucket) == []
    assert len(archive.prune(bucket, unused_s=-1.0)) == 1
    assert [entry.key for entry in bucket.list("environments/")] == [RECORD.lock_key]
    assert archive.find_archive(bucket, RECORD, "linux") is None
    assert archive.store(bucket, RECORD, "linux", str(_environment(tmp_path / "again")))


@pytest.mark.parametrize(
    ("ages_in_days", "deleted"),
    [
        ({"lock": 400}, set()),
        ({"lock": 400, "p.json": 31, "p-1.tar.zst": 31}, {"p.json", "p-1.tar.zst"}),
        ({"lock": 400, "p.json": 31, "p-1.tar.zst": 31, "p.used": 29}, set()),
        ({"p.json": 99, "p-1.tar.zst": 99, "p.used": 31}, {"p.json", "p-1.tar.zst", "p.used"}),
        # Another platform of the same environment is judged by itself.
        ({"p.json": 99, "p-1.tar.zst": 99, "q.json": 1, "q-1.tar.zst": 1}, {"p.json", "p-1.tar.zst"}),
        # A builder may be uploading; one that died yesterday is not.
        ({"p-1.tar.zst": 0.5}, set()),
        ({"p-1.tar.zst": 1.5}, {"p-1.tar.zst"}),
    ],
)
def test_only_archives_that_no_machine_uses_are_deleted(ages_in_days: dict[str, float], deleted: set[str]) -> None:
    now = 1e9
    entries = [Entry(f"environments/d/{name}", 1, now - age * DAY) for name, age in ages_in_days.items()]
    found = archive.unused(entries, now=now, unused_s=30 * DAY)
    assert set(found) == {f"environments/d/{name}" for name in deleted}
