"""Checkpoints in parts: a restore returns exactly the committed files, for any files and changes."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.errors import StoreUnreachable
from outlast.runs import checkpoints
from outlast.runs.checkpoints import restore
from outlast.runs.manifest import Manifest, manifest_key, read_manifest, write_manifest
from outlast.runs.packs import upload_files
from outlast.runs.retention import collect, kept, prune
from outlast.runs.state import Checkpoint, RunState
from outlast.spec.spec import CheckpointSpec
from outlast.store import parts
from outlast.store.bucket import Bucket, open_bucket
from outlast.store.codec import sealed, unsealed
from outlast.store.object_store import ObjectBucket
from outlast.store.parts import Parts, parts_prefix

RUN = "r"
PART = 64

# Lengths around the places where files are cut.
bodies = st.one_of(
    st.binary(max_size=3 * PART),
    # Small enough to share a part.
    st.binary(max_size=PART // 4),
    st.sampled_from([0, 1, PART - 1, PART, PART + 1, 2 * PART, 5 * PART]).map(bytes),
    st.integers(0, 4 * PART).map(lambda size: (b"0123456789abcdef" * size)[:size]),
)
folders = st.dictionaries(st.sampled_from(["a", "b", "e", "f", "sub/c", "sub/deep/d"]), bodies, min_size=1)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", PART)
    monkeypatch.setattr(checkpoints, "PART_BYTES", PART)
    checkpoints._sha256_of_zeros.cache_clear()


@pytest.fixture(autouse=True, scope="module")
def large_parts_afterwards() -> object:
    yield
    checkpoints._sha256_of_zeros.cache_clear()


def saved(number: int, loss: float | None = None) -> Checkpoint:
    metrics = {} if loss is None else {"loss": float(loss)}
    return Checkpoint(id=f"c{number}", attempt=1, step=None, at=0.0, bytes=0, metrics=metrics)


def commit(own: Parts, files: dict[str, bytes], number: int) -> Manifest:
    with tempfile.TemporaryDirectory() as folder:
        for path, body in files.items():
            Path(folder, path).parent.mkdir(parents=True, exist_ok=True)
            Path(folder, path).write_bytes(body)
        found = upload_files(own, folder, sorted(files))
    manifest = Manifest(run=RUN, checkpoint=f"c{number}", attempt=1, files=found)
    write_manifest(own.bucket, manifest)
    return manifest


def test_files_and_folders_keep_their_times_so_that_the_newest_stays_the_newest(tmp_path: Path) -> None:
    own = Parts(open_bucket(str(tmp_path / "bucket")), RUN, 1)
    manifest = commit(own, {"step-1/a": b"1", "step-2/a": b"2", "step-2/b": b"3"}, 1)
    times = {"step-1/a": 2 * 10**18, "step-2/a": 10**18, "step-2/b": 2 * 10**18 + 1, "../x": 5, "step-1": -1}
    write_manifest(own.bucket, msgspec.structs.replace(manifest, checkpoint="c2", changed_ns=times))
    back = tmp_path / "back"
    restore(own.bucket, RUN, [saved(2)], str(back))
    found = {str(path.relative_to(back)): path.stat().st_mtime_ns for path in back.rglob("*")}
    expected = {path: times[path] for path in ("step-1/a", "step-2/a", "step-2/b")}
    assert found == {**expected, "step-1": times["step-1/a"], "step-2": times["step-2/b"]}
    assert not (tmp_path / "x").exists()


def restored(bucket: Bucket, *numbers: int) -> tuple[dict[str, bytes], list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder, "back")
        _, problems = restore(bucket, RUN, [saved(number) for number in numbers], str(top))
        found = {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}
        return found, problems


@pytest.mark.full
@settings(max_examples=100, deadline=None)
@given(
    states=st.lists(st.tuples(folders, st.none() | st.integers(-3, 3)), min_size=1, max_size=7),
    keep=st.integers(2, 3),
    every=st.integers(0, 3),
    best=st.integers(1, 2),
)
def test_any_files_with_any_changes_come_back_as_they_were(
    states: list[tuple[dict[str, bytes], int | None]], keep: int, every: int, best: int
) -> None:
    bucket = open_bucket("memory://")
    own = Parts(bucket, RUN, 1)
    rule = CheckpointSpec(keep=keep, keep_every=every, keep_best="min:loss", keep_best_count=best)
    story: list[Checkpoint] = []
    for number, (files, loss) in enumerate(states):
        commit(own, files, number)
        story.append(saved(number, loss))
        prune(bucket, RUN, story, rule=rule, parts=own)
        for checkpoint in kept(story, rule):
            at = int(checkpoint.id[1:])
            assert restored(bucket, at) == (states[at][0], [])
    staying = kept(story, rule)
    named = {key for checkpoint in staying for key in read_manifest(bucket, RUN, checkpoint.id).keys}
    assert {entry.key for entry in bucket.list(parts_prefix(RUN))} == named
    assert list(bucket.children(f"runs/{RUN}/checkpoints/")) == sorted(checkpoint.id for checkpoint in staying)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), files=folders.filter(lambda files: any(body.strip(b"\0") for body in files.values())))
def test_a_truncated_altered_or_missing_part_makes_restore_fall_back(
    data: st.DataObject, files: dict[str, bytes]
) -> None:
    bucket = open_bucket("memory://")
    commit(Parts(bucket, RUN, 1), {"old": b"good"}, 1)
    manifest = commit(Parts(bucket, RUN, 2), files, 2)
    zeros = checkpoints._sha256_of_zeros()
    key = data.draw(st.sampled_from(sorted(key for key in manifest.keys if not key.endswith(zeros))))
    body = bucket.get(key)
    harm = data.draw(st.sampled_from(["cut", "alter", "lengthen", "delete"]))
    if harm == "delete":
        bucket.delete(key)
    else:
        bucket.put(key, {"cut": body[:-1], "alter": bytes([body[0] ^ 1]) + body[1:], "lengthen": body + b"x"}[harm])
    found, problems = restored(bucket, 2, 1)
    assert found == {"old": b"good"}
    assert len(problems) == 1


def test_only_changed_files_are_uploaded_again() -> None:
    bucket = open_bucket("memory://")
    own = Parts(bucket, RUN, 1)
    body = bytes(range(256)) * PART
    commit(own, {"model": body}, 1)
    before = len(own.own)
    changed = body[:1000] + b"changed" + body[1007:]
    commit(own, {"model": changed}, 2)
    assert len(own.own) - before == 1
    successor = Parts(bucket, RUN, 2)
    successor.learn(read_manifest(bucket, RUN, "c2").files)
    commit(successor, {"model": changed + b"grown"}, 3)
    assert len(successor.own) == 1
    assert restored(bucket, 3)[0] == {"model": changed + b"grown"}


def test_an_attempt_forgets_the_parts_of_an_earlier_restore() -> None:
    """The predecessor went on, and may have deleted the older one."""
    bucket = open_bucket("memory://")
    first, second = Parts(bucket, RUN, 1), Parts(bucket, RUN, 2)
    second.learn(commit(first, {"n": b"1"}, 1).files)
    second.learn(commit(first, {"n": b"2"}, 2).files)
    assert all("/2/" in key for key in commit(second, {"n": b"1"}, 3).keys)


def test_the_best_checkpoints_are_kept_and_need_a_metric() -> None:
    story = [saved(0, 0.5), saved(1, 0.1), saved(2), saved(3, 0.1), saved(4, 0.9), saved(5), saved(6, 0.7)]

    def ids(rule: CheckpointSpec) -> list[str]:
        return [checkpoint.id for checkpoint in kept(story, rule)]

    assert ids(CheckpointSpec(keep=2)) == ["c5", "c6"]
    assert ids(CheckpointSpec(keep=2, keep_best="min:loss")) == ["c1", "c5", "c6"]
    assert ids(CheckpointSpec(keep=2, keep_best="min:loss", keep_best_count=3)) == ["c0", "c1", "c3", "c5", "c6"]
    assert ids(CheckpointSpec(keep=2, keep_best="max:loss")) == ["c4", "c5", "c6"]
    assert ids(CheckpointSpec(keep=2, keep_best="max:accuracy")) == ["c5", "c6"]


def test_a_former_best_checkpoint_is_deleted() -> None:
    bucket = open_bucket("memory://")
    own = Parts(bucket, RUN, 1)
    rule = CheckpointSpec(keep=2, keep_best="min:loss")
    story: list[Checkpoint] = []
    for number, loss in enumerate([0.1, 0.9, 0.9, 0.9, 0.9, 0.05]):
        commit(own, {"n": b"%d" % number}, number)
        story.append(saved(number, loss))
        prune(bucket, RUN, story, rule=rule, parts=own)
        if number == 4:
            assert list(bucket.children(f"runs/{RUN}/checkpoints/")) == ["c0", "c3", "c4"]
    assert list(bucket.children(f"runs/{RUN}/checkpoints/")) == ["c4", "c5"]


def test_parts_that_could_not_be_made_durable_are_uploaded_again() -> None:
    class Forgetful(ObjectBucket):
        """A store whose disk fails once, when it is to settle."""

        settled: tuple[str, ...] = ()
        written: tuple[str, ...] = ()
        fails = True

        def write(self, key: str, body: bytes | memoryview) -> None:
            self.written += (key,)
            super().write(key, body)

        def make_durable(self, keys: Sequence[str]) -> None:
            if self.fails:
                self.fails = False
                raise StoreUnreachable("input/output error")
            self.settled += tuple(keys)

    bucket = Forgetful("memory://")
    own = Parts(bucket, RUN, 1)
    with pytest.raises(StoreUnreachable):
        commit(own, {"n": b"1"}, 1)
    assert list(bucket.children(f"runs/{RUN}/checkpoints/")) == []
    commit(own, {"n": b"1"}, 2)
    assert len(bucket.written) == 2
    assert bucket.settled == bucket.written[1:]


def test_a_manifest_of_another_run_is_refused_and_the_previous_one_used() -> None:
    bucket = open_bucket("memory://")
    commit(Parts(bucket, RUN, 1), {"n": b"mine"}, 1)
    commit(Parts(bucket, RUN, 1), {"n": b"newer"}, 2)
    body = unsealed(bucket.get(manifest_key(RUN, "c2")), "c2").replace(b'"run":"r"', b'"run":"q"')
    bucket.put(manifest_key(RUN, "c2"), sealed(body))
    found, problems = restored(bucket, 2, 1)
    assert found == {"n": b"mine"}
    assert problems == ["checkpoint c2 is damaged: runs/r/checkpoints/c2/manifest.json belongs to checkpoint c2 of q"]


def test_a_manifest_with_parts_of_another_run_is_refused() -> None:
    bucket = open_bucket("memory://")
    commit(Parts(bucket, RUN, 1), {"n": b"1"}, 1)
    body = unsealed(bucket.get(manifest_key(RUN, "c1")), "c1")
    for lie in (b"runs/other/parts/1/", b"runs/r/parts/../../", b"", b"/"):
        bucket.put(manifest_key(RUN, "c1"), sealed(body.replace(b"runs/r/parts/1/", lie)))
        assert restored(bucket, 1)[0] == {}


def test_a_flipped_bit_anywhere_in_a_manifest_is_detected() -> None:
    """In the name of a field it would make a file empty, and in a path it would rename one."""
    bucket = open_bucket("memory://")
    commit(Parts(bucket, RUN, 1), {"n": b"older"}, 1)
    commit(Parts(bucket, RUN, 1), {"n": b"newer"}, 2)
    body = bucket.get(manifest_key(RUN, "c2"))
    for at in range(len(body)):
        bucket.put(manifest_key(RUN, "c2"), body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :])
        assert restored(bucket, 2, 1)[0] == {"n": b"older"}, at
    bucket.put(manifest_key(RUN, "c2"), body)
    assert restored(bucket, 2, 1)[0] == {"n": b"newer"}


def test_leftovers_of_an_ended_run_are_collected() -> None:
    bucket = open_bucket("memory://")
    own = Parts(bucket, RUN, 1)
    commit(own, {"n": b"committed"}, 1)
    commit(own, {"n": b"its answer was lost"}, 2)
    own.store(b"never named")
    alive = RunState(length=1, checkpoints=(saved(1),))
    assert collect(bucket, RUN, alive) == 0
    over = RunState(length=2, checkpoints=(saved(0), saved(1)), ending="finished")
    assert collect(bucket, RUN, over) == 3
    assert collect(bucket, RUN, over) == 0
    assert restored(bucket, 1)[0] == {"n": b"committed"}
