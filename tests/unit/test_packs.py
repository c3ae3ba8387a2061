"""Small files in packs: few objects, only changes uploaded, and exact restores."""

from __future__ import annotations

import gzip
import os
import random
import shutil
from pathlib import Path

import msgspec
import pytest

from outlast.runs import checkpoints, manifest
from outlast.runs.checkpoints import restore
from outlast.runs.manifest import Manifest, manifest_key, read_keys, read_manifest, write_manifest
from outlast.runs.packs import sparse_packs, upload_files
from outlast.runs.retention import collect, prune
from outlast.runs.state import Checkpoint, RunState
from outlast.spec.spec import CheckpointSpec
from outlast.store import parts
from outlast.store.object_store import ObjectBucket
from outlast.store.parts import Part, Parts, StoredFile, parts_prefix

RUN = "r"
PART = 4096
FILES = 1000
BYTES = 100


class Counting(ObjectBucket):
    """A bucket in memory that counts writes."""

    objects = written = 0

    def write(self, key: str, body: bytes | memoryview) -> None:
        self.objects += 1
        self.written += len(body)
        super().write(key, body)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", PART)
    monkeypatch.setattr(checkpoints, "PART_BYTES", PART)


@pytest.fixture
def bucket() -> Counting:
    return Counting("memory://")


def saved(number: int) -> Checkpoint:
    return Checkpoint(id=f"c{number}", attempt=1, step=None, at=0.0, bytes=0)


class Folder:
    """A checkpoint folder of many small files."""

    def __init__(self, path: Path, files: int = FILES) -> None:
        self.path = path
        self.rng = random.Random(7)
        self.names = [f"shard-{n // 100}/sample-{n:05d}" for n in range(files)]
        self.write(self.names)

    def write(self, names: list[str]) -> None:
        for name in names:
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            (self.path / name).write_bytes(self.rng.randbytes(BYTES))

    def commit(self, own: Parts, number: int) -> Manifest:
        files = upload_files(own, str(self.path), sorted(self.names))
        made = Manifest(run=RUN, checkpoint=f"c{number}", attempt=1, files=files)
        write_manifest(own.bucket, made, own)
        return made

    def is_equal(self, other: Path) -> bool:
        return all((self.path / name).read_bytes() == (other / name).read_bytes() for name in self.names)


def test_many_small_files_are_stored_in_few_objects(bucket: Counting, tmp_path: Path) -> None:
    folder = Folder(tmp_path / "saved")
    folder.commit(Parts(bucket, RUN, 1), 1)
    assert bucket.objects <= 1.2 * FILES * BYTES / PART + 5
    assert bucket.written < 1.1 * FILES * BYTES
    found, problems = restore(bucket, RUN, [saved(1)], str(tmp_path / "back"))
    assert (found is not None, problems) == (True, [])
    assert folder.is_equal(tmp_path / "back")


@pytest.mark.full
def test_a_commit_uploads_in_proportion_to_the_change(bucket: Counting, tmp_path: Path) -> None:
    folder = Folder(tmp_path / "saved")
    own = Parts(bucket, RUN, 1)
    folder.commit(own, 1)
    folder.write(folder.rng.sample(folder.names, FILES // 20))
    before = bucket.written
    folder.commit(own, 2)
    # Twenty files in each of the packs changed: only they and the list of files are uploaded.
    assert (bucket.written - before) / (FILES * BYTES) < 0.12
    restore(bucket, RUN, [saved(2)], str(tmp_path / "back"))
    assert folder.is_equal(tmp_path / "back")


def test_an_attempt_does_not_upload_restored_parts(bucket: Counting, tmp_path: Path) -> None:
    folder = Folder(tmp_path / "saved")
    folder.commit(Parts(bucket, RUN, 1), 1)
    found, _ = restore(bucket, RUN, [saved(1)], str(tmp_path / "back"))
    assert found is not None
    successor = Parts(bucket, RUN, 2)
    successor.learn(found.files, found.digests)
    before = bucket.written
    folder.commit(successor, 2)
    assert bucket.written - before < 0.05 * FILES * BYTES
    before = bucket.written
    folder.commit(Parts(bucket, RUN, 3), 3)
    assert bucket.written - before > FILES * BYTES


def test_storage_and_requests_stay_bounded_for_any_number_of_changes(bucket: Counting, tmp_path: Path) -> None:
    folder = Folder(tmp_path / "saved", files=300)
    own = Parts(bucket, RUN, 1)
    rule, story = CheckpointSpec(keep=2), [saved(0)]
    folder.commit(own, 0)
    for number in range(1, 80):
        folder.write(folder.rng.sample(folder.names, folder.rng.choice([1, 3, 15])))
        made = folder.commit(own, number)
        story.append(saved(number))
        prune(bucket, RUN, story, rule=rule, parts=own)
        packs = {part for file in made.files for part in file.parts}
        assert sum(part.bytes for part in packs) <= 2.2 * 300 * BYTES
        assert len(packs) <= 300 * BYTES / (PART / 2) + 18
        named = read_keys(bucket, RUN, story[-1].id) | read_keys(bucket, RUN, story[-2].id)
        assert {entry.key for entry in bucket.list(parts_prefix(RUN))} == named
    restore(bucket, RUN, [story[-1]], str(tmp_path / "back"))
    assert folder.is_equal(tmp_path / "back")


@pytest.mark.parametrize(
    ("in_use", "again"),
    [
        ([], 0),
        ([(PART, PART)] * 5, 0),
        # The rest of the files, and some small commits.
        ([(PART, PART), (100, 100)], 0),
        ([(PART, PART)] * 3 + [(100, 100)] * 16, 0),
        ([(PART, PART)] * 3 + [(100, 100)] * 17, 17),
        # More is unused than used; those that are half in use stay.
        ([(PART, PART // 2)] * 4, 0),
        ([(PART, PART // 4)] * 4, 4),
        ([(PART, PART), (PART, 10)], 0),
        ([(PART, PART // 2), (PART, 10), (PART, 10)], 2),
    ],
)
def test_packs_are_written_again_when_too_little_of_them_is_in_use(in_use: list[tuple[int, int]], again: int) -> None:
    packs = {Part(f"k{n}", f"{n}", size): used for n, (size, used) in enumerate(in_use)}
    assert len(sparse_packs(packs)) == again


def test_files_with_the_same_content_are_stored_once(bucket: Counting, tmp_path: Path) -> None:
    folder = Folder(tmp_path / "saved", files=0)
    folder.names = [f"file-{n}" for n in range(50)]
    for name in folder.names:
        (tmp_path / "saved").mkdir(exist_ok=True)
        (tmp_path / "saved" / name).write_bytes(b"the same")
    folder.commit(Parts(bucket, RUN, 1), 1)
    assert bucket.written == len(b"the same")
    restore(bucket, RUN, [saved(1)], str(tmp_path / "back"))
    assert folder.is_equal(tmp_path / "back")


def test_a_long_list_of_files_keeps_all_properties(bucket: Counting, tmp_path: Path) -> None:
    folder = Folder(tmp_path / "saved")
    top = tmp_path / "saved"
    (top / "empty").write_bytes(b"")
    (top / "large").write_bytes(os.urandom(3 * PART + 5))
    os.chmod(top / folder.names[3], 0o755)
    os.chmod(top / "large", 0o755)
    paths = sorted([*folder.names, "empty", "large"])
    own = Parts(bucket, RUN, 1)
    links = (StoredFile(path="latest", link=folder.names[5]), StoredFile(path="gone", link="nowhere"))
    whole = Manifest(
        run=RUN, checkpoint="c1", attempt=1, files=upload_files(own, str(top), paths) + links, folders=("a/b",), step=4
    )
    write_manifest(bucket, whole, own)
    assert len(bucket.get(manifest_key(RUN, "c1"))) < 20_000
    found = read_manifest(bucket, RUN, "c1")
    assert sorted(found.files, key=lambda file: file.path) == sorted(whole.files, key=lambda file: file.path)
    assert (found.folders, found.step, found.bytes) == (whole.folders, 4, whole.bytes)
    assert read_keys(bucket, RUN, "c1") == found.keys
    restore(bucket, RUN, [saved(1)], str(tmp_path / "back"))
    back = tmp_path / "back"
    assert folder.is_equal(back)
    assert (back / "large").read_bytes() == (top / "large").read_bytes()
    assert [name for name in paths if os.access(back / name, os.X_OK)] == sorted(["large", folder.names[3]])
    assert (back / "empty").read_bytes() == b""
    assert (back / "a" / "b").is_dir()
    assert (os.readlink(back / "latest"), os.readlink(back / "gone")) == (folder.names[5], "nowhere")


@pytest.mark.parametrize("kind", ["packs", "table"])
@pytest.mark.parametrize("harm", ["cut", "alter", "delete"])
def test_a_damaged_pack_or_list_of_files_makes_restore_fall_back(
    bucket: Counting, tmp_path: Path, kind: str, harm: str
) -> None:
    folder = Folder(tmp_path / "saved")
    folder.commit(Parts(bucket, RUN, 1), 1)
    shutil.copytree(tmp_path / "saved", tmp_path / "first")
    folder.write(folder.names)
    folder.commit(Parts(bucket, RUN, 2), 2)
    stored = msgspec.json.decode(bucket.get(manifest_key(RUN, "c2")))
    key = stored[kind][0]["key"]
    body = bucket.get(key)
    if harm == "delete":
        bucket.delete(key)
    else:
        bucket.put(key, body[:-1] if harm == "cut" else bytes([body[0] ^ 1]) + body[1:])
    found, problems = restore(bucket, RUN, [saved(2), saved(1)], str(tmp_path / "back"))
    assert found is not None
    assert (found.checkpoint, len(problems)) == ("c1", 1)
    for name in folder.names:
        assert (tmp_path / "back" / name).read_bytes() == (tmp_path / "first" / name).read_bytes()


LIES = {
    "columns of different lengths": {"sizes": [1]},
    "a pack that is not there": {"packs": [7] * 2},
    "before the pack": {"gaps": [-1, 0]},
    "behind the pack": {"gaps": [PART, 0]},
    "no size": {"sizes": [0, 1]},
    "less than no size": {"sizes": [-5, 1]},
    "outside": {"paths": ["../evil", "b"]},
    "twice": {"paths": ["a", "a"]},
    "a link and a file": {"links": {"a": "b"}},
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_an_inconsistent_list_of_files_restores_nothing(
    bucket: Counting, tmp_path: Path, lie: dict[str, object]
) -> None:
    own = Parts(bucket, RUN, 1)
    pack = own.store(b"x" * 50)
    table = {"paths": ["a", "b"], "packs": [0, 0], "gaps": [0, 0], "sizes": [10, 10], "executable": [], "links": {}}
    body = own.store(gzip.compress(msgspec.json.encode({**table, "folders": [], **lie})))
    stored = {"run": RUN, "checkpoint": "c1", "attempt": 1, "files": [], "packs": [pack], "table": [body]}
    bucket.put(manifest_key(RUN, "c1"), msgspec.json.encode(stored))
    found, problems = restore(bucket, RUN, [saved(1)], str(tmp_path / "back"))
    assert (found, len(problems)) == (None, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_list_of_files_that_expands_too_much_is_refused(
    bucket: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "_TABLE_BYTES_MAX", 1000)
    Folder(tmp_path / "saved").commit(Parts(bucket, RUN, 1), 1)
    found, [problem] = restore(bucket, RUN, [saved(1)], str(tmp_path / "back"))
    assert found is None
    assert "larger than" in problem


def test_leftovers_of_an_ended_run_are_collected_and_referenced_packs_stay(bucket: Counting, tmp_path: Path) -> None:
    folder = Folder(tmp_path / "saved")
    own = Parts(bucket, RUN, 1)
    folder.commit(own, 1)
    folder.write(folder.names[:100])
    upload_files(own, str(folder.path), sorted(folder.names))
    over = RunState(length=2, checkpoints=(saved(1),), ending="finished")
    assert collect(bucket, RUN, over) > 0
    assert {entry.key for entry in bucket.list(parts_prefix(RUN))} == read_keys(bucket, RUN, "c1")
    assert restore(bucket, RUN, [saved(1)], str(tmp_path / "back"))[1] == []
