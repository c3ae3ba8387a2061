"""The timeline of a run: attempts as bars in lanes of zones, with marks for events. Values only."""

from __future__ import annotations

import itertools

import msgspec

from outlast.billing.ledger import end_of, kept_until
from outlast.runs.events import Event, Noticed, Saved, Warned
from outlast.runs.state import Attempt, RunState
from outlast.ui.format import describe_s, money

# Kinds of bars, in the order of the legend.
KINDS = ("boot", "work kept", "work lost", "shutdown")
_SAVES_MAX = 100


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    lane: int
    begin: float
    end: float
    kind: int
    attempt: int
    text: str


class TimelineMark(msgspec.Struct, frozen=True, kw_only=True):
    """A mark: `notice`, `save`, `loss`, `warning` or `finish`."""

    lane: int
    at: float
    kind: str
    text: str


class Handoff(msgspec.Struct, frozen=True, kw_only=True):
    """The time from the end of one attempt's work to the start of the next."""

    from_lane: int
    from_at: float
    to_lane: int
    to_at: float
    text: str


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    begin: float
    end: float
    lanes: tuple[str, ...]
    bars: tuple[Bar, ...]
    marks: tuple[TimelineMark, ...]
    handoffs: tuple[Handoff, ...]


def timeline(state: RunState, events: tuple[Event, ...], now: float) -> Timeline:
    shown = [attempt for attempt in state.attempts if attempt.outcome != "refused"]
    lanes, lane_of = _lanes(shown, state, now)
    bars = tuple(bar for attempt in shown for bar in _bars(attempt, state, lane_of[attempt.number], now))
    begin = state.submitted_at
    end = max([state.ended_at or now, *(bar.end for bar in bars)])
    return Timeline(
        begin=begin,
        end=end,
        lanes=tuple(lanes),
        bars=bars,
        marks=tuple(_marks(state, events, lane_of)),
        handoffs=tuple(_handoffs(shown, lane_of)),
    )


def _lanes(attempts: list[Attempt], state: RunState, now: float) -> tuple[list[str], dict[int, int]]:
    """Return a lane per zone, and a second one for attempts in the same zone at the same time."""
    lanes: list[tuple[str, float]] = []
    lane_of: dict[int, int] = {}
    for attempt in attempts:
        free = next(
            (i for i, (zone, end) in enumerate(lanes) if zone == attempt.zone and end <= attempt.placed_at), None
        )
        if free is None:
            free = len(lanes)
            lanes.append((attempt.zone, 0.0))
        lanes[free] = (attempt.zone, end_of(attempt, state, now))
        lane_of[attempt.number] = free
    return [zone for zone, _ in lanes], lane_of


def _bars(attempt: Attempt, state: RunState, lane: int, now: float) -> list[Bar]:
    over = max(end_of(attempt, state, now), attempt.placed_at)
    kept = kept_until(attempt, state, now) if attempt.started_at else over
    leaves = attempt.noticed_at or over
    spans = [
        (attempt.placed_at, attempt.started_at or over, 0),
        (attempt.started_at, min(kept, leaves), 1),
        (max(kept, attempt.started_at), min(over, leaves), 2),
        (attempt.noticed_at, over, 3),
    ]
    kind = "spot" if attempt.spot else "on demand"
    head = f"attempt {attempt.number} · {attempt.type} {attempt.zone}, {kind}, {money(attempt.price_usd_per_hour)}/hour"
    tail = f"{attempt.outcome}: {attempt.why}" if attempt.why else attempt.outcome
    return [
        Bar(
            lane=lane,
            begin=begin,
            end=end,
            kind=number,
            attempt=attempt.number,
            text="\n".join(filter(None, [head, f"{KINDS[number]} {describe_s(end - begin)}", tail])),
        )
        for begin, end, number in spans
        if begin and end > begin
    ]


def _marks(state: RunState, events: tuple[Event, ...], lane_of: dict[int, int]) -> list[TimelineMark]:
    found: list[TimelineMark] = []
    saves = [event for event in events if isinstance(event, Saved)]
    every = max(1, -(-len(saves) // _SAVES_MAX))
    for event in [*saves[::every], *(e for e in events if isinstance(e, Noticed | Warned))]:
        lane = lane_of.get(event.attempt)
        if lane is None:
            continue
        if isinstance(event, Saved):
            step = f" at step {event.step}" if event.step is not None else ""
            found.append(TimelineMark(lane=lane, at=event.at, kind="save", text=f"checkpoint {event.checkpoint}{step}"))
        elif isinstance(event, Noticed):
            text = f"notice: {event.why}; {describe_s(event.grace_s)} left"
            found.append(TimelineMark(lane=lane, at=event.at, kind="notice", text=text))
        else:
            found.append(TimelineMark(lane=lane, at=event.at, kind="warning", text=event.why))
    for attempt in state.attempts:
        if attempt.number not in lane_of or not attempt.over_at:
            continue
        lane, text = lane_of[attempt.number], f"attempt {attempt.number} {attempt.outcome}"
        if attempt.outcome == "finished":
            found.append(TimelineMark(lane=lane, at=attempt.over_at, kind="finish", text=text))
        elif attempt.outcome in ("lost", "crashed", "killed", "hung", "broken") or attempt.preempted:
            why = f": {attempt.why}" if attempt.why else ""
            found.append(TimelineMark(lane=lane, at=attempt.over_at, kind="loss", text=text + why))
    return found


def _handoffs(attempts: list[Attempt], lane_of: dict[int, int]) -> list[Handoff]:
    found = []
    started = [attempt for attempt in attempts if attempt.started_at]
    for before, after in itertools.pairwise(started):
        since = before.noticed_at or before.over_at
        if not since:
            continue
        how = "handed over" if before.noticed_at else "recovered"
        found.append(
            Handoff(
                from_lane=lane_of[before.number],
                from_at=since,
                to_lane=lane_of[after.number],
                to_at=after.started_at,
                text=f"{how} after {describe_s(max(0.0, after.started_at - since))}",
            )
        )
    return found
