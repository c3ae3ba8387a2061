"""Messages about the events of a run. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from outlast.runs import events as ev
from outlast.runs.events import Event
from outlast.runs.state import RunState
from outlast.spec.quantity import describe_s
from outlast.spec.spec import NotifySpec


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message: the event that it reports, and its text."""

    # The number of the event in the story; 0: the message belongs to none.
    number: int
    event: str
    run: str
    text: str
    attempt: int | None = None
    at: float = 0.0

    @property
    def key(self) -> str:
        return f"{self.number:08d}-{self.event}"


def messages_of(run: str, events: Sequence[Event], state: RunState, rule: NotifySpec, *, now: float) -> list[Message]:
    """Return the messages that are due, in the order of the events."""
    found: list[Message] = []
    for number, event in enumerate(events, 1):
        kind, text = _described(event, events[: number - 1])
        if kind in rule.events:
            attempt = getattr(event, "attempt", None)
            found.append(
                Message(number=number, event=kind, run=run, text=f"{run} {text}", attempt=attempt, at=event.at)
            )
    waiting = _waiting(run, events, state, rule, now)
    return [*found, *([waiting] if waiting else [])]


def _described(event: Event, before: Sequence[Event]) -> tuple[str, str]:
    """Return the kind of an event and what happened to the run; empty if it is never reported."""
    match event:
        case ev.Started():
            where = f" from {event.resumed_from}" if event.resumed_from else ""
            return ("started", "started") if event.attempt == 1 else ("resumed", f"resumed{where}")
        case ev.Noticed() if not event.moves:
            return "preempted", f"is being preempted: {event.why}"
        case ev.Lost() if event.preempted and not _was_noticed(event.attempt, before):
            return "preempted", f"was preempted: {event.why}"
        case ev.Finished():
            return "finished", "finished"
        case ev.Failed():
            return "failed", f"failed: {event.why}"
        case ev.Cancelled():
            return "cancelled", "was cancelled" + (f": {event.why}" if event.why else "")
        case ev.LimitNear():
            return "limit_near", f"is near a limit: {event.why}"
        case ev.LimitReached():
            # Limits of users and of the workspace have a scope before their name.
            kind = "budget" if " " in event.limit else "limit"
            return kind, f"reached a limit: {event.why}"
        case _:
            return "", ""


def _was_noticed(attempt: int, before: Sequence[Event]) -> bool:
    return any(isinstance(event, ev.Noticed) and event.attempt == attempt for event in before)


def _waiting(run: str, events: Sequence[Event], state: RunState, rule: NotifySpec, now: float) -> Message | None:
    """Return the message of a run that waits too long. It belongs to the first of the waits that follow each other."""
    if "waiting" not in rule.events or not state.waiting or not state.alive:
        return None
    since = 0
    for number, event in enumerate(events, 1):
        if isinstance(event, ev.Started):
            since = 0
        elif isinstance(event, ev.Waiting) and not since:
            since = number
    if not since or now - events[since - 1].at < rule.waiting_after_s:
        return None
    lasted = describe_s(now - events[since - 1].at)
    return Message(
        number=since, event="waiting", run=run, at=events[since - 1].at,
        text=f"{run} has waited for a machine for {lasted}: {state.waiting}",
    )  # fmt: skip


def sample_message() -> Message:
    return Message(number=0, event="test", run="test", text="outlast: this is a test message")
