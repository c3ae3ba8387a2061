"""The ledger: causes add up to the cost, days to the total, and old stories can be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.billing.ledger import DAY_S, LedgerLine, after, by_day, grouped, lines_of, total
from outlast.billing.ledger_store import LedgerStore
from outlast.billing.limits import Limits, key_of, read_limits, write_limits
from outlast.errors import UsageError
from outlast.formatting.run_summary import summarize
from outlast.runs import events as ev
from outlast.runs.ended import EndedRuns
from outlast.runs.events import Event
from outlast.runs.state import fold
from outlast.runs.story import event_key
from outlast.store.bucket import open_bucket
from outlast.workspace import Workspace

NOON = 1_700_000_000.0 - 1_700_000_000.0 % DAY_S + DAY_S / 2


def placed(attempt: int, at: float) -> ev.Placed:
    return ev.Placed(
        attempt=attempt,
        cloud="local",
        region="here",
        zone="here-a",
        type="small",
        spot=True,
        price_usd_per_hour=1.0,
        on_demand_usd_per_hour=3.0,
        machine=f"run-1-a{attempt}",
        at=at,
    )


# Boots for 60 s, works for 600 s, saves at 400 s of it, is lost, and is deleted 40 s later.
LOST: list[Event] = [
    ev.Submitted(at=NOON, who="ann"),
    placed(1, NOON),
    ev.Started(attempt=1, at=NOON + 60),
    ev.Saved(attempt=1, checkpoint="c1", at=NOON + 460),
    ev.Lost(attempt=1, why="its machine vanished", at=NOON + 660),
    ev.Released(attempt=1, cost_usd=700 / 3600 + 0.01, seconds=700, disk_usd=0.01, at=NOON + 700),
]


def hours(**spans_s: float) -> dict[str, float]:
    return {cause: pytest.approx(seconds / 3600) for cause, seconds in spans_s.items()}  # type: ignore[misc]


def test_the_cost_of_a_lost_machine_is_split_by_its_work() -> None:
    (line,) = lines_of("run-1", fold(LOST), NOON + 9999)
    disk = line.causes.pop("disk")
    assert disk == pytest.approx(0.01)
    assert line.causes == hours(boot=60, work=400, lost=200, idle=40)
    assert line.cost_usd == LOST[-1].cost_usd  # type: ignore[union-attr]
    assert line.on_demand_usd == pytest.approx(3 * 700 / 3600 + 0.01)
    assert (line.who, line.machine, line.estimated) == ("ann", "run-1-a1", False)


def test_the_cost_of_running_attempts_is_an_estimate_and_their_work_counts() -> None:
    (line,) = lines_of("run-1", fold(LOST[:4]), NOON + 760)
    assert line.estimated
    assert line.cost_usd == pytest.approx(760 / 3600)
    assert line.causes == hours(boot=60, work=700)


def test_a_refusal_costs_nothing_and_a_machine_that_never_started_counts_as_boot() -> None:
    refused: list[Event] = [LOST[0], placed(1, NOON), ev.LaunchRefused(attempt=1, why="no capacity", until=0)]
    assert lines_of("run-1", fold(refused), NOON) == []
    booting: list[Event] = [
        LOST[0],
        placed(1, NOON),
        ev.Lost(attempt=1, why="did not come up", at=NOON + 90),
        ev.Released(attempt=1, cost_usd=0.02, seconds=72),
    ]
    (line,) = lines_of("run-1", fold(booting), NOON + 99)
    assert line.causes == {"boot": pytest.approx(0.02)}


def test_a_story_from_before_prices_on_demand_and_disks_is_read() -> None:
    """As 0.1.0 wrote them at first: no price on demand, no part for the disk."""
    bucket = open_bucket("memory://")
    old = [
        {"event": "submitted", "at": NOON, "who": "bob"},
        {
            "event": "placed", "at": NOON, "attempt": 1, "cloud": "local", "region": "here", "zone": "here-a",
            "type": "small", "spot": True, "price_usd_per_hour": 1.0, "machine": "run-1-a1",
        },
        {"event": "started", "at": NOON + 10, "attempt": 1},
        {"event": "finished", "at": NOON + 100, "attempt": 1},
        {"event": "released", "at": NOON + 101, "attempt": 1, "cost_usd": 0.03, "seconds": 108.0},
    ]  # fmt: skip
    for number, event in enumerate(old, 1):
        bucket.create(event_key("run-1", number), json.dumps(event).encode())
    (page,) = LedgerStore(Workspace(bucket)).runs(NOON + 999)
    assert total(page.lines).cost_usd == 0.03
    assert total(page.lines).on_demand_usd == pytest.approx(0.03)


def test_the_record_of_an_ended_run_agrees_with_its_story() -> None:
    workspace = Workspace(open_bucket("memory://"))
    for number, event in enumerate([*LOST, ev.Cancelled(at=NOON + 701)], 1):
        workspace.bucket.create(event_key("run-1", number), ev.encode(event))
    (from_story,) = LedgerStore(workspace).runs(NOON + 9999)
    EndedRuns(workspace).rebuild()
    # The record is enough: the story is not read again.
    for number in range(1, 8):
        workspace.bucket.delete(event_key("run-1", number))
    workspace.bucket.put("runs/run-1/spec.json", b"")
    assert LedgerStore(workspace).runs(NOON + 99999) == [from_story]


def test_an_unreadable_story_is_reported_and_the_others_are_counted() -> None:
    workspace = Workspace(open_bucket("memory://"))
    for number, event in enumerate(LOST, 1):
        workspace.bucket.create(event_key("good-1", number), ev.encode(event))
    workspace.bucket.create(event_key("bad-1", 1), b"{")
    ledger = LedgerStore(workspace)
    pages = ledger.runs(NOON)
    assert list(ledger.damaged) == ["bad-1"]
    assert sum(total(page.lines).cost_usd for page in pages) == pytest.approx(LOST[-1].cost_usd)  # type: ignore[union-attr]


amounts = st.floats(0, 1e4)


@st.composite
def lines(draw: st.DrawFn) -> LedgerLine:
    begin = draw(st.floats(0, 1e7))
    seconds = draw(st.floats(0, 20 * DAY_S))
    causes = {cause: draw(amounts) for cause in draw(st.sets(st.sampled_from(["work", "boot", "lost", "disk"])))}
    return LedgerLine(
        kind="run",
        name=draw(st.sampled_from(["a-1", "b-1"])),
        who=draw(st.sampled_from(["ann", "bob", ""])),
        cloud="local",
        zone="z",
        type="t",
        machine="m",
        spot=True,
        begin=begin,
        end=begin + seconds,
        seconds=seconds,
        cost_usd=sum(causes.values()),
        on_demand_usd=draw(amounts),
        causes=causes,
    )


@given(st.lists(lines(), max_size=8))
def test_sums_are_the_same_for_every_grouping(found: list[LedgerLine]) -> None:
    whole = total(found)
    for by in ("run", "user", "day", "cloud", "machine"):
        sums = grouped(found, by)  # type: ignore[arg-type]
        assert sum(one.cost_usd for one in sums.values()) == pytest.approx(whole.cost_usd, abs=1e-6)
        assert sum(one.seconds for one in sums.values()) == pytest.approx(whole.seconds, abs=1e-3)
        assert sum(one.wasted_usd for one in sums.values()) == pytest.approx(whole.wasted_usd, abs=1e-6)


@given(lines(), st.floats(0, 2e7))
def test_the_parts_before_and_after_a_time_add_up(line: LedgerLine, at: float) -> None:
    pieces = [after(line, 0.0, at), after(line, at)]
    assert sum(piece.cost_usd for piece in pieces if piece) == pytest.approx(line.cost_usd, abs=1e-6)


def test_the_cost_of_a_machine_is_split_at_midnight() -> None:
    (line,) = lines_of("run-1", fold(LOST), NOON)
    late = [piece for _, piece in by_day(_shifted(line, DAY_S / 2 - 350))]
    assert [piece.seconds for piece in late] == [pytest.approx(350), pytest.approx(350)]
    assert [day for day, _ in by_day(_shifted(line, DAY_S / 2 - 350))] == ["2023-11-14", "2023-11-15"]


def _shifted(line: LedgerLine, by_s: float) -> LedgerLine:
    import msgspec

    return msgspec.structs.replace(line, begin=line.begin + by_s, end=line.end + by_s)


def test_limits_are_set_changed_and_removed(tmp_path: Path) -> None:
    bucket = open_bucket(str(tmp_path))
    write_limits(bucket, Limits(cost_usd=5))
    write_limits(bucket, Limits(who="ann", max_machines=2))
    assert [limits.whose for limits in read_limits(bucket)] == ["the workspace", "user `ann`"]
    write_limits(bucket, Limits(cost_usd=0))
    assert [limits.who for limits in read_limits(bucket)] == ["ann"]
    with pytest.raises(UsageError, match="invalid user name"):
        key_of("../../etc")


def test_the_total_of_a_run_that_has_just_ended_includes_the_machine_that_is_not_deleted_yet() -> None:
    ended = [placed(2, NOON + 700), ev.Started(attempt=2, at=NOON + 760), ev.Finished(attempt=2, at=NOON + 1060)]
    whole = summarize(fold([*LOST, *ended]), NOON + 1100)
    assert whole.machine_s == 700 + 400
    assert whole.cost_usd == pytest.approx(1100 / 3600 + 0.01)
    assert whole.on_demand_usd == pytest.approx(3 * 1100 / 3600 + 0.01)
    assert whole.estimated
    released = ev.Released(attempt=2, cost_usd=450 / 3600, seconds=450, at=NOON + 1150)
    exact = summarize(fold([*LOST, *ended, released]), NOON + 9999)
    assert (exact.machine_s, exact.estimated) == (1150, False)
    assert exact.cost_usd == pytest.approx(1150 / 3600 + 0.01)
