"""The index of ended runs: the newest first, complete, and read in a few calls; numbers and names without a listing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from outlast.code.record import CodeRecord
from outlast.errors import NoSuchRun, StoreUnreachable
from outlast.runs import events as ev
from outlast.runs.ended import PAGE, EndedRuns, record_of
from outlast.runs.state import fold
from outlast.spec.parse import parse
from outlast.store.bucket import Entry
from outlast.store.folder import FolderBucket
from outlast.store.object_store import ObjectBucket
from outlast.workspace import Workspace


class Counting(ObjectBucket):
    """A bucket in memory that counts calls, and notes which listings were made."""

    def __init__(self) -> None:
        super().__init__("memory://")
        self.calls = 0
        self.listed: list[str] = []

    def get(self, key: str) -> bytes:
        self.calls += 1
        return super().get(key)

    def head(self, key: str) -> Entry:
        self.calls += 1
        return super().head(key)

    def list(self, prefix: str, *, after: str = "", limit: int = 0) -> Iterator[Entry]:
        self.calls += 1
        self.listed.append(f"{prefix} {limit or ''}".strip())
        return super().list(prefix, after=after, limit=limit)

    def children(self, prefix: str) -> Sequence[str]:
        self.calls += 1
        self.listed.append(prefix)
        return super().children(prefix)


@pytest.fixture
def workspace() -> Workspace:
    return Workspace(Counting())


def past(number: int) -> list[ev.Event]:
    return [ev.Submitted(who="ada", at=1000.0 + number), ev.Cancelled(who="ada", at=2000.0 + number)]


def ended(workspace: Workspace, number: int, *, name: str = "run") -> str:
    """A run that is over, with its record."""
    run = f"{name}-{number}"
    for at, event in enumerate(past(number)):
        workspace.story(run).append_or_raise(event, nonce=str(at))
    EndedRuns(workspace).add(record_of(run, fold(past(number))))
    return run


def names(workspace: Workspace, limit: int = 0) -> list[str]:
    return [record.run for record in EndedRuns(workspace).newest(limit)[0]]


def test_all_ended_runs_are_listed_newest_first(workspace: Workspace) -> None:
    EndedRuns(workspace).rebuild()
    runs = [ended(workspace, number) for number in range(1, 3 * PAGE + 51)]
    assert len(workspace.bucket.children("ended/pages/")) == 2
    assert names(workspace) == runs[::-1]
    for limit in (1, 7, PAGE, 2 * PAGE + 1):
        found, more = EndedRuns(workspace).newest(limit)
        assert [record.run for record in found] == runs[: -limit - 1 : -1]
        assert more
    assert EndedRuns(workspace).newest(len(runs))[1] is False


def test_the_newest_runs_cost_few_calls_for_any_total(workspace: Workspace) -> None:
    EndedRuns(workspace).rebuild()
    records = [record_of(f"run-{n}", fold(past(n))) for n in range(40 * PAGE)]
    for begin in range(0, len(records), PAGE):
        EndedRuns(workspace).write_page(records[begin : begin + PAGE])
    bucket = workspace.bucket
    assert isinstance(bucket, Counting)
    bucket.calls = 0
    bucket.listed.clear()
    assert len(names(workspace, 50)) == 50
    assert bucket.calls <= 5
    assert bucket.listed == ["ended/loose/", "ended/pages/"]


def test_a_record_that_is_also_in_a_page_is_listed_once(workspace: Workspace) -> None:
    """As after a crash between the two: the page is stored, and the loose record not deleted yet."""
    EndedRuns(workspace).rebuild()
    runs = [ended(workspace, number) for number in range(5)]
    EndedRuns(workspace).write_page([record_of(runs[2], fold(past(2)))])
    assert names(workspace) == runs[::-1]
    assert names(workspace, 3) == [runs[4], runs[3], runs[2]]


def test_runs_that_ended_before_there_was_an_index_are_listed_and_then_indexed(workspace: Workspace) -> None:
    for at, event in enumerate(past(1)):
        workspace.story("old-1").append_or_raise(event, nonce=str(at))
    assert names(workspace) == ["old-1"]
    assert EndedRuns(workspace).submitted_last(5) == ["old-1"]
    EndedRuns(workspace).rebuild()
    assert EndedRuns(workspace).complete()
    assert names(workspace) == ["old-1"]


def test_rebuild_wakes_a_live_run_without_a_heartbeat(workspace: Workspace) -> None:
    workspace.story("lost-1").append_or_raise(ev.Submitted(), nonce="0")
    EndedRuns(workspace).rebuild()
    assert list(workspace.wakeups()) == ["lost-1"]


@pytest.mark.parametrize("where", ["ended/loose/", "ended/pages/"])
def test_damaged_records_of_the_index_are_read_from_the_stories(workspace: Workspace, where: str) -> None:
    EndedRuns(workspace).rebuild()
    runs = [ended(workspace, number) for number in range(2 * PAGE)]
    (name, *_) = workspace.bucket.children(where)
    workspace.bucket.put(where + name, b"{")
    assert names(workspace) == runs[::-1]
    assert names(workspace, 2) == runs[:-3:-1]


class Packing(Counting):
    """Another process packs a page between a reader's listing and its reading of records."""

    def __init__(self) -> None:
        super().__init__()
        self.packs = False

    def get(self, key: str) -> bytes:
        if self.packs and key.startswith("ended/loose/"):
            self.packs = False
            records = EndedRuns(Workspace(self)).newest()[0]
            EndedRuns(Workspace(self)).write_page(records)
            for entry in self.list("ended/loose/"):
                self.delete(entry.key)
        return super().get(key)


def test_records_that_are_packed_while_they_are_read_are_found_in_their_page() -> None:
    bucket = Packing()
    workspace = Workspace(bucket)
    EndedRuns(workspace).rebuild()
    runs = [ended(workspace, number) for number in range(4)]
    bucket.packs = True
    assert names(workspace) == runs[::-1]
    assert not bucket.packs


# Numbers and names


def reserve(workspace: Workspace, name: str = "run") -> str:
    spec = parse({"name": name, "command": "true"})
    return workspace.reserve(spec, CodeRecord(), who="ada", version="0").run


def test_numbers_go_on_and_no_submit_lists_all_runs(workspace: Workspace) -> None:
    assert [reserve(workspace) for _ in range(5)] == [f"run-{n}" for n in range(1, 6)]
    assert reserve(workspace, "other") == "other-1"
    bucket = workspace.bucket
    assert isinstance(bucket, Counting)
    assert not [prefix for prefix in bucket.listed if prefix == "runs/"]


@pytest.mark.parametrize("hint", [b"", b"3", b"999999", b"nonsense", b"-1", b"9" * 400])
def test_a_wrong_hint_of_the_last_number_is_harmless(workspace: Workspace, hint: bytes) -> None:
    for _ in range(37):
        reserve(workspace)
    workspace.bucket.put("numbers/run", hint)
    assert reserve(workspace) == "run-38"


def test_a_lost_hint_costs_few_requests(workspace: Workspace) -> None:
    for number in range(1, 1001):
        workspace.bucket.create(f"runs/run-{number}/spec.json", b"")
    bucket = workspace.bucket
    assert isinstance(bucket, Counting)
    bucket.calls = 0
    assert workspace.next_number("run") == 1001
    assert bucket.calls <= 25


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_runs_are_found_by_name_by_prefix_and_as_the_last(kind: str, tmp_path: Path) -> None:
    workspace = Workspace(FolderBucket(str(tmp_path)) if kind == "folder" else Counting())
    EndedRuns(workspace).rebuild()
    for number in range(1, 13):
        ended(workspace, number)
    ended(workspace, 1, name="census")
    ended(workspace, 1, name="census-2")
    assert workspace.find("run-3") == "run-3"
    assert workspace.find("run-12") == "run-12"
    assert workspace.find("census-1") == "census-1"
    assert workspace.find("census-2") == "census-2-1"
    with pytest.raises(NoSuchRun, match="matches 2 runs: census-1, census-2-1"):
        workspace.find("cens")
    with pytest.raises(NoSuchRun, match="more than 8 runs"):
        workspace.find("run")
    with pytest.raises(NoSuchRun, match=r"no run `x/\.\./y`"):
        workspace.find("x/../y")
    workspace.story("live-1").append_or_raise(ev.Submitted(at=1.0), nonce="0")
    workspace.wake("live-1")
    assert workspace.find("last") == "live-1"


def test_last_is_the_newest_by_its_submit_though_others_ended_later(workspace: Workspace) -> None:
    EndedRuns(workspace).rebuild()
    for number in range(2 * PAGE + 10):
        ended(workspace, number)
    story: list[ev.Event] = [ev.Submitted(at=1900.0), ev.Cancelled(at=1901.0)]
    for at, event in enumerate(story):
        workspace.story("brief-1").append_or_raise(event, nonce=str(at))
    EndedRuns(workspace).add(record_of("brief-1", fold(story)))
    assert workspace.find("last") == "brief-1"


class Unreachable(Counting):
    def head(self, key: str) -> Entry:
        raise StoreUnreachable("no answer")


def test_an_unreachable_store_does_not_count_as_a_missing_index() -> None:
    with pytest.raises(StoreUnreachable):
        EndedRuns(Workspace(Unreachable())).newest()
