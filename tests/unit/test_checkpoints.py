"""Checkpoints in parts: whatever the files are and however they change, what comes back is what was committed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.workspace import checkpoints, parts
from outlast.workspace.bucket import Bucket, open_bucket
from outlast.workspace.checkpoints import Manifest, manifest_key, read_manifest, restore, write_manifest
from outlast.workspace.keep import collect, kept, prune
from outlast.workspace.parts import Parts, parts_prefix, upload_files
from outlast.workspace.state import Checkpoint, RunState

RUN = "r"
PART = 64

# Lengths around the places where files are cut.
bodies = st.one_of(
    st.binary(max_size=3 * PART),
    st.sampled_from([0, 1, PART - 1, PART, PART + 1, 2 * PART, 5 * PART]).map(bytes),
    st.integers(0, 4 * PART).map(lambda size: (b"0123456789abcdef" * size)[:size]),
)
folders = st.dictionaries(st.sampled_from(["a", "b", "sub/c", "sub/deep/d"]), bodies, min_size=1)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", PART)
    monkeypatch.setattr(checkpoints, "PART_BYTES", PART)
    checkpoints._sha256_of_zeros.cache_clear()


@pytest.fixture(autouse=True, scope="module")
def large_parts_afterwards() -> object:
    yield
    checkpoints._sha256_of_zeros.cache_clear()


def saved(number: int) -> Checkpoint:
    return Checkpoint(id=f"c{number}", attempt=1, step=None, at=0.0, bytes=0)


def commit(own: Parts, files: dict[str, bytes], number: int) -> Manifest:
    with tempfile.TemporaryDirectory() as folder:
        for path, body in files.items():
            Path(folder, path).parent.mkdir(parents=True, exist_ok=True)
            Path(folder, path).write_bytes(body)
        found = upload_files(own, folder, sorted(files))
    manifest = Manifest(run=RUN, checkpoint=f"c{number}", attempt=1, files=found)
    write_manifest(own.bucket, manifest)
    return manifest


def restored(bucket: Bucket, *numbers: int) -> tuple[dict[str, bytes], list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder, "back")
        _, problems = restore(bucket, RUN, [saved(number) for number in numbers], str(top))
        found = {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}
        return found, problems


@settings(max_examples=100, deadline=None)
@given(states=st.lists(folders, min_size=1, max_size=5), keep=st.integers(2, 3), every=st.integers(0, 3))
def test_any_files_with_any_changes_come_back_as_they_were(
    states: list[dict[str, bytes]], keep: int, every: int
) -> None:
    bucket = open_bucket("memory://")
    own = Parts(bucket, RUN, 1)
    story: list[Checkpoint] = []
    for number, files in enumerate(states):
        commit(own, files, number)
        story.append(saved(number))
        prune(bucket, RUN, story, keep=keep, every=every, parts=own)
        for checkpoint in kept(story, keep=keep, every=every):
            at = int(checkpoint.id[1:])
            assert restored(bucket, at) == (states[at], [])
    staying = kept(story, keep=keep, every=every)
    named = {key for checkpoint in staying for key in read_manifest(bucket, RUN, checkpoint.id).keys}
    assert {entry.key for entry in bucket.list(parts_prefix(RUN))} == named
    assert list(bucket.children(f"runs/{RUN}/checkpoints/")) == sorted(checkpoint.id for checkpoint in staying)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), files=folders.filter(lambda files: any(body.strip(b"\0") for body in files.values())))
def test_a_part_that_is_cut_altered_or_gone_makes_restore_fall_back(
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


def test_only_what_changed_is_uploaded_again() -> None:
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


def test_an_attempt_names_nothing_of_what_it_restored_before_it_restored_anew() -> None:
    """The predecessor went on, and may have deleted the older one."""
    bucket = open_bucket("memory://")
    first, second = Parts(bucket, RUN, 1), Parts(bucket, RUN, 2)
    second.learn(commit(first, {"n": b"1"}, 1).files)
    second.learn(commit(first, {"n": b"2"}, 2).files)
    assert all("/2/" in key for key in commit(second, {"n": b"1"}, 3).keys)


def test_a_manifest_that_names_what_is_not_its_runs_is_refused() -> None:
    bucket = open_bucket("memory://")
    commit(Parts(bucket, RUN, 1), {"n": b"1"}, 1)
    body = bucket.get(manifest_key(RUN, "c1"))
    for lie in (b"runs/other/parts/1/", b"runs/r/parts/../../", b"", b"/"):
        bucket.put(manifest_key(RUN, "c1"), body.replace(b"runs/r/parts/1/", lie))
        assert restored(bucket, 1)[0] == {}


def test_what_a_run_that_is_over_left_behind_is_collected_and_no_more() -> None:
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
