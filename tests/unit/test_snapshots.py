"""Snapshots of stories are used only if the story confirms them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from outlast.errors import Damaged, Missing
from outlast.runs import events as ev
from outlast.runs import snapshot
from outlast.runs.snapshot import GAP, Snapshot, read_snapshot, snapshot_key, write_snapshot
from outlast.runs.state import RunState
from outlast.runs.story import Story, event_key
from outlast.store.bucket import Bucket, Entry
from outlast.store.folder import FolderBucket

PLACED = {"cloud": "c", "region": "r", "zone": "z", "type": "t", "machine": "m1"}


class Counting(FolderBucket):
    """Counts the events that are fetched."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.fetched: list[str] = []

    def get(self, key: str) -> bytes:
        if "/story/" in key:
            self.fetched.append(key)
        return super().get(key)

    def list(self, prefix: str, *, after: str = "", limit: int = 0) -> Iterator[Entry]:
        return super().list(prefix, after=after, limit=limit)


@pytest.fixture
def bucket(tmp_path: Path) -> Counting:
    return Counting(str(tmp_path))


def long_story(bucket: Bucket, run: str = "r", *, saves: int = 100) -> Story:
    story = Story(bucket, run)
    story.append_or_raise(ev.Submitted(who="ada"), nonce="0")
    story.append_or_raise(ev.Placed(attempt=1, spot=True, price_usd_per_hour=1.0, **PLACED), nonce="1")
    story.append_or_raise(ev.Started(attempt=1), nonce="2")
    for number in range(saves):
        story.append_or_raise(ev.Saved(attempt=1, checkpoint=f"c{number}", step=number), nonce=f"s{number}")
    return story


def test_a_long_story_is_read_with_few_events_and_the_same_result(bucket: Counting) -> None:
    written = long_story(bucket).state
    bucket.fetched.clear()
    reader = Story(bucket, "r")
    assert reader.refresh() == written
    assert len(bucket.fetched) <= GAP + 1
    assert [event.nonce for event in reader.events] == ["0", "1", "2", *(f"s{n}" for n in range(100))]
    assert reader.state == written


def test_events_after_the_snapshot_are_read(bucket: Counting) -> None:
    long_story(bucket)
    Story(bucket, "r").append_or_raise(ev.Cancelled(who="ada"), nonce="end")
    assert Story(bucket, "r").refresh().ending == "cancelled"
    assert not Story(bucket, "r").append(ev.Saved(attempt=1, checkpoint="late"), nonce="late")


def test_a_writer_recognizes_its_own_event_in_a_snapshot(bucket: Counting) -> None:
    length = long_story(bucket).length
    assert Story(bucket, "r").append(ev.Saved(attempt=1, checkpoint="c5", step=5), nonce="s5")
    assert Story(bucket, "r").refresh().length == length


def rewritten(bucket: Bucket, change: Callable[[Snapshot], Snapshot]) -> None:
    """A snapshot whose own checksum fits, with something wrong in it."""
    found = read_snapshot(bucket, "r")
    assert found is not None
    made = change(found)
    write_snapshot(bucket, "r", made.state, last_crc32=made.last_crc32, nonces=made.nonces)


def forged_state(found: Snapshot) -> Snapshot:
    """Of another story: one that has ended, with as many events."""
    state = msgspec.structs.replace(found.state, ending="cancelled", who="mallory")
    return msgspec.structs.replace(found, state=state, last_crc32=found.last_crc32 ^ 1)


def ahead(found: Snapshot) -> Snapshot:
    """Of a story that has lost its end since, as after a restore from a backup."""
    state = msgspec.structs.replace(found.state, length=found.length + 500)
    return msgspec.structs.replace(found, state=state, nonces=found.nonces + ("x",) * 500)


@pytest.mark.parametrize("change", [forged_state, ahead])
def test_a_snapshot_of_another_story_is_not_used(bucket: Counting, change: Callable[[Snapshot], Snapshot]) -> None:
    written = long_story(bucket).state
    rewritten(bucket, change)
    assert Story(bucket, "r").refresh() == written
    assert Story(bucket, "r").append(ev.Saved(attempt=1, checkpoint="next"), nonce="next")


@pytest.mark.parametrize(
    "damage",
    [
        lambda body: b"",
        lambda body: body[: len(body) // 2],
        lambda body: b"\xff\x00" * 40,
        lambda body: b"[" * 100_000,
        lambda body: body.replace(b'"who":"ada"', b'"who":"eve"'),
        lambda body: json.dumps({**json.loads(body), "snapshot": {}}).encode(),
    ],
    ids=["empty", "cut", "noise", "deep", "changed", "hollow"],
)
def test_a_damaged_snapshot_is_ignored(bucket: Counting, damage: Callable[[bytes], bytes]) -> None:
    written = long_story(bucket).state
    body = bucket.get(snapshot_key("r"))
    assert damage(body) != body
    bucket.put(snapshot_key("r"), damage(body))
    assert Story(bucket, "r").refresh() == written


def test_a_snapshot_of_another_fold_is_not_used(bucket: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    written = long_story(bucket).state
    monkeypatch.setattr(snapshot, "_known", "another version")
    bucket.fetched.clear()
    assert Story(bucket, "r").refresh() == written
    assert len(bucket.fetched) == written.length


def test_a_snapshot_does_not_hide_its_missing_last_event(bucket: Counting) -> None:
    length = long_story(bucket).length
    found = read_snapshot(bucket, "r")
    assert found is not None
    assert found.length < length
    bucket.delete(event_key("r", found.length + 1))
    with pytest.raises(Damaged, match=event_key("r", found.length + 1)):
        Story(bucket, "r").refresh()


def test_a_story_is_written_though_its_snapshot_cannot_be(bucket: Counting, tmp_path: Path) -> None:
    (tmp_path / snapshot_key("r")).mkdir(parents=True)  # a folder where the object belongs
    (tmp_path / snapshot_key("r") / "x").touch()
    story = long_story(bucket)
    assert Story(bucket, "r").refresh() == story.state
    with pytest.raises(Missing):
        bucket.get(snapshot_key("r"))


def test_the_empty_story_has_no_snapshot(bucket: Counting) -> None:
    assert Story(bucket, "r").refresh() == RunState()
    assert read_snapshot(bucket, "r") is None
