"""Text of events, the same in `run`, `show`, `logs` and the dashboard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from outlast.formatting.quantities import money, size
from outlast.runs import events as ev
from outlast.runs.events import Event
from outlast.spec.quantity import describe_s


def sentence(event: Event) -> str:
    """Describe an event. Further lines of a reason are indented, so that none of them looks like an event."""
    return indented(_sentence(event), 10)


def indented(text: str, columns: int) -> str:
    """Indent all lines but the first."""
    return text.replace("\n", "\n" + " " * columns)


def _sentence(event: Event) -> str:
    match event:
        case ev.Submitted():
            return f"submitted by {event.who}" if event.who else "submitted"
        case ev.Placed():
            kind = "spot" if event.spot else "on demand"
            price = f"${event.price_usd_per_hour:.4f}/h"
            others = f", or one of {len(event.pools)} other pools" if event.pools else ""
            return f"attempt {event.attempt}: requesting {event.type} in {event.zone} ({kind}, {price}{others})"
        case ev.Located():
            return f"attempt {event.attempt}: got {event.type} in {event.zone} (${event.price_usd_per_hour:.4f}/h)"
        case ev.LaunchRefused():
            return f"attempt {event.attempt}: refused: {event.why}"
        case ev.Started():
            return f"attempt {event.attempt}: started" + _resumed(event)
        case ev.Saved():
            step = f" at step {event.step}" if event.step is not None else ""
            return f"attempt {event.attempt}: checkpoint {event.checkpoint} saved{step} ({size(event.bytes)})"
        case ev.Noticed():
            return f"attempt {event.attempt}: notice: {event.why}; {describe_s(event.grace_s)} left"
        case ev.Warned():
            return f"attempt {event.attempt}: warning: {event.why}"
        case ev.Stopped():
            return f"attempt {event.attempt}: {event.outcome}" + (f": {event.why}" if event.why else "")
        case ev.Finished():
            return f"attempt {event.attempt}: finished"
        case ev.Lost():
            return f"attempt {event.attempt}: lost: {event.why}"
        case ev.Released():
            lived = describe_s(event.seconds)
            return f"attempt {event.attempt}: machine deleted after {lived}, cost {money(event.cost_usd)}"
        case ev.OwnerChanged():
            return f"handed over to {event.who} by {event.by}"
        case ev.Waiting():
            return f"waiting: {event.why}"
        case ev.Retired():
            return f"attempt {event.attempt}: its machines are not kept" + (f": {event.why}" if event.why else "")
        case ev.LimitNear():
            return f"warning: {event.why}"
        case ev.LimitReached():
            return f"limit: {event.why}; {describe_s(event.grace_s)} to save and stop"
        case ev.Failed():
            return f"failed: {event.why}"
        case ev.Cancelled():
            return f"released: {event.why}" if event.why else f"cancelled by {event.who or 'an unknown user'}"
        case _:
            assert_never(event)


def _resumed(event: ev.Started) -> str:
    if not event.resumed_from:
        return " from the beginning"
    step = f" (step {event.resumed_step})" if event.resumed_step is not None else ""
    return f", resumed from checkpoint {event.resumed_from}{step}"


def event_text(events: Sequence[Event], *, everything: bool) -> list[tuple[float, str]]:
    """Return seconds since the first event, and text, for each event; consecutive checkpoints become one line."""
    if not events:
        return []
    begin = events[0].at
    lines: list[tuple[float, str]] = []
    saves: list[ev.Saved] = []
    for event in [*events, None]:
        if isinstance(event, ev.Saved) and not everything:
            saves.append(event)
            continue
        if saves:
            last = saves[-1]
            text = sentence(last) if len(saves) == 1 else f"{sentence(last)}, after {len(saves) - 1} before it"
            lines.append((last.at - begin, text))
            saves = []
        if event is not None:
            lines.append((event.at - begin, sentence(event)))
    return lines
