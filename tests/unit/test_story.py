"""The story: legal events, one winner per number, fencing, lost responses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.errors import Damaged, InvalidTransition, StoreUnreachable, WorkspaceError
from outlast.runs import events as ev
from outlast.runs.events import Event
from outlast.runs.state import EDGES, RunState, fold, step, why_illegal
from outlast.runs.story import Story, event_key
from outlast.store.bucket import Bucket, Entry, open_bucket
from outlast.store.folder import FolderBucket


def placed(attempt: int) -> ev.Placed:
    where = {"cloud": "c", "region": "r", "zone": "z", "type": "t"}
    return ev.Placed(attempt=attempt, spot=True, price_usd_per_hour=1.0, machine=f"m{attempt}", **where)


def started(attempt: int) -> ev.Started:
    return ev.Started(attempt=attempt)


BEGIN: list[Event] = [ev.Submitted(), placed(1), started(1)]


def legal(events: list[Event], event: Event) -> bool:
    return not why_illegal(fold(events), event)


@pytest.mark.parametrize("text", ["folder", "memory://"])
def test_exactly_one_of_many_writers_wins_each_number(text: str, tmp_path: Path) -> None:
    bucket = open_bucket(str(tmp_path) if text == "folder" else text)
    Story(bucket, "r").append_or_raise(ev.Submitted(), nonce="submit")
    won: list[int] = []

    def place(number: int) -> None:
        if Story(bucket, "r").append(placed(1), nonce=f"w{number}"):
            won.append(number)

    threads = [threading.Thread(target=place, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    story = Story(bucket, "r")
    assert [type(e) for e in (story.refresh(), story.events)[1]] == [ev.Submitted, ev.Placed]


class LosesAnswers(FolderBucket):
    """Does the work of every other create and then says that it could not be reached."""

    calls = 0

    def create(self, key: str, body: bytes, *, durable: bool = True) -> None:
        super().create(key, body, durable=durable)
        LosesAnswers.calls += 1
        if LosesAnswers.calls % 2:
            raise StoreUnreachable("the answer was lost")


def test_a_writer_recognizes_its_own_event_after_a_lost_response(tmp_path: Path) -> None:
    story = Story(LosesAnswers(str(tmp_path)), "r")
    for event, nonce in ((ev.Submitted(), "a"), (placed(1), "b"), (started(1), "c")):
        try:
            story.append(event, nonce=nonce)
        except StoreUnreachable:
            assert story.append(event, nonce=nonce)
    assert len(Story(story.bucket, "r").refresh().attempts) == 1


def test_started_fences_every_earlier_attempt() -> None:
    events: list[Event] = [*BEGIN, ev.Noticed(attempt=1, why="", grace_s=30), placed(2)]
    assert legal(events, ev.Saved(attempt=1, checkpoint="last"))
    events.append(started(2))
    for event in (
        ev.Saved(attempt=1, checkpoint="zombie"),
        ev.Stopped(attempt=1, outcome="preempted"),
        ev.Finished(attempt=1),
        ev.Noticed(attempt=1, why="", grace_s=1),
    ):
        assert not legal(events, event)
    assert legal(events, ev.Saved(attempt=2, checkpoint="mine"))


def test_lost_fences_too() -> None:
    events: list[Event] = [*BEGIN, ev.Lost(attempt=1, why="")]
    assert not legal(events, ev.Finished(attempt=1))
    assert not legal(events, ev.Saved(attempt=1, checkpoint="x"))
    assert legal(events, placed(2))


def test_a_successor_is_placed_only_for_a_noticed_or_ended_attempt() -> None:
    assert not legal(BEGIN, placed(2))
    assert not legal([ev.Submitted(), placed(1)], placed(2))
    assert legal([*BEGIN, ev.Noticed(attempt=1, why="", grace_s=1)], placed(2))
    assert not legal([*BEGIN, ev.Noticed(attempt=1, why="", grace_s=1)], placed(3))


def test_a_run_ends_once() -> None:
    ends: list[Event] = [ev.Finished(attempt=1), ev.Failed(why=""), ev.Cancelled()]
    for first in ends:
        for second in ends:
            assert not legal([*BEGIN, first], second)
        assert not legal([*BEGIN, first], ev.Saved(attempt=1, checkpoint="x"))
        assert legal([*BEGIN, first], ev.Released(attempt=1, cost_usd=0))
    assert not legal([*BEGIN, ev.Cancelled(), ev.Released(attempt=1, cost_usd=0)], ev.Released(attempt=1, cost_usd=0))


def test_a_run_at_a_limit_saves_and_starts_nothing() -> None:
    limited: list[Event] = [*BEGIN, ev.LimitReached(limit="cost_usd", why="spent", grace_s=20)]
    assert legal(limited, ev.Saved(attempt=1, checkpoint="x"))
    assert legal(limited, ev.Stopped(attempt=1, outcome="stopped"))
    assert legal(limited, ev.Finished(attempt=1))
    assert legal(limited, ev.Failed(why="spent"))
    assert not legal(limited, ev.LimitReached(limit="deadline", why=""))
    noticed: list[Event] = [*limited, ev.Noticed(attempt=1, why="", grace_s=1)]
    assert not legal(noticed, placed(2))
    booting: list[Event] = [ev.Submitted(), placed(1), ev.LimitReached(limit="cost_usd", why="spent")]
    assert not legal(booting, started(1))
    assert not legal([*BEGIN, ev.LimitNear(limit="cost_usd", why="")], ev.LimitNear(limit="cost_usd", why=""))


def test_every_attempt_event_has_an_edge() -> None:
    special = {
        ev.Submitted,
        ev.Placed,
        ev.Released,
        ev.Waiting,
        ev.OwnerChanged,
        ev.LimitNear,
        ev.LimitReached,
        ev.Failed,
        ev.Cancelled,
    }
    assert set(EDGES) | special == set(Event.__args__)


def test_an_illegal_event_raises_an_error() -> None:
    with pytest.raises(InvalidTransition, match="illegal event at index 2"):
        step(fold([ev.Submitted()]), started(1))


def test_damage_is_reported_with_the_file(tmp_path: Path) -> None:
    bucket = FolderBucket(str(tmp_path))
    story = Story(bucket, "r")
    story.append_or_raise(ev.Submitted(), nonce="n")
    bucket.create(event_key("r", 2), b'{"event": "nonsense"}')
    with pytest.raises(WorkspaceError, match="00000002"):
        Story(bucket, "r").refresh()


numbers = st.integers(0, 4)
events_of: st.SearchStrategy[Event] = st.one_of(
    st.just(ev.Submitted()),
    numbers.map(placed),
    numbers.map(started),
    numbers.map(lambda n: ev.LaunchRefused(attempt=n, why="", until=0)),
    numbers.map(lambda n: ev.Saved(attempt=n, checkpoint="c")),
    numbers.map(lambda n: ev.Noticed(attempt=n, why="", grace_s=1)),
    numbers.map(lambda n: ev.Stopped(attempt=n, outcome="crashed")),
    numbers.map(lambda n: ev.Finished(attempt=n)),
    numbers.map(lambda n: ev.Lost(attempt=n, why="")),
    numbers.map(lambda n: ev.Released(attempt=n, cost_usd=1)),
    st.just(ev.Waiting(why="")),
    st.just(ev.LimitNear(limit="cost_usd", why="")),
    st.just(ev.LimitReached(limit="cost_usd", why="", grace_s=1)),
    st.just(ev.Failed(why="")),
    st.just(ev.Cancelled()),
)


def invariants(state: RunState) -> None:
    """Design §2, as far as a state alone can show it."""
    committing = [a for a in state.attempts if a.started_at >= 0 and a.phase in ("started", "noticed") and a.saves >= 0]
    able = [a for a in committing if not why_illegal(state, ev.Saved(attempt=a.number, checkpoint="c"))]
    starters = [a.number for a in able if a.phase == "started"]
    assert len(starters) <= 1
    assert sum(a.phase != "over" for a in state.attempts) <= 2
    if state.ending:
        assert all(a.phase == "over" for a in state.attempts)


@settings(max_examples=300, deadline=None)
@given(st.lists(events_of, max_size=40))
def test_the_story_stays_legal_for_any_events(tries: list[Event]) -> None:
    state = RunState()
    kept: list[Event] = []
    for event in tries:
        if why_illegal(state, event):
            continue
        grown = step(state, event)
        assert len(grown.checkpoints) >= len(state.checkpoints)  # a committed checkpoint is never taken back
        state = grown
        kept.append(event)
        invariants(state)
    assert fold(kept) == state
    assert [ev.decode(ev.encode(e)) for e in kept] == kept


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), events_of), max_size=30))
def test_any_interleaving_of_writers_gives_one_legal_story(turns: list[tuple[int, Event]]) -> None:
    bucket: Bucket = open_bucket("memory://")
    writers = [Story(bucket, "r") for _ in range(3)]
    for number, (who, event) in enumerate(turns):
        writers[who].append(event, nonce=str(number))
    story = Story(bucket, "r")
    assert story.refresh() == fold(story.events)
    assert len({e.nonce for e in story.events}) == len(story.events)


class LateListing(FolderBucket):
    """A folder whose listing lacks an event that was written while it was made, and has a later one."""

    lacks = ""

    def list(self, prefix: str, *, after: str = "") -> Iterator[Entry]:
        return (entry for entry in super().list(prefix, after=after) if entry.key != self.lacks)


@pytest.mark.parametrize("lacks", [1, 2, 3])
def test_a_story_is_not_damaged_because_a_listing_lacks_one_of_its_events(tmp_path: Path, lacks: int) -> None:
    bucket = LateListing(str(tmp_path))
    for number, event in enumerate(BEGIN):
        Story(bucket, "r").append_or_raise(event, nonce=str(number))
    bucket.lacks = event_key("r", lacks)
    story = Story(bucket, "r")
    story.refresh()
    # An event that is the last one may be read later: it was not there when the listing was made.
    assert len(story.events) == (2 if lacks == 3 else 3)


def test_a_story_with_a_gap_is_damaged(tmp_path: Path) -> None:
    bucket = FolderBucket(str(tmp_path))
    for number, event in enumerate(BEGIN):
        Story(bucket, "r").append_or_raise(event, nonce=str(number))
    bucket.delete(event_key("r", 2))
    with pytest.raises(Damaged, match=r"00000002\.json is missing"):
        Story(bucket, "r").refresh()
