"""`[notify]`: which events are reported, and where to. Targets are references: the spec never contains a secret."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

from outlast.spec import quantity
from outlast.spec.reader import Reader, of, texts
from outlast.spec.spec import NotifySpec, NotifyTarget, TargetKind

EVENTS = (
    "started",
    "preempted",
    "resumed",
    "finished",
    "failed",
    "cancelled",
    "waiting",
    "limit_near",
    "limit",
    "budget",
    "drill_failed",
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read_notify(reader: Reader) -> NotifySpec | None:
    """Read the table; None if it is absent."""
    if not reader.table:
        return None
    found = NotifySpec(
        events=reader.take("events", _events, NotifySpec().events),
        waiting_after_s=reader.take("waiting_after", quantity.duration_s, NotifySpec().waiting_after_s),
        targets=tuple(_targets(reader)),
        desktop=reader.take("desktop", of(bool), False),
    )
    if not found.targets and not found.desktop and not reader.problems:
        reader.wrong("webhook", 'missing: set a target, e.g. webhook = "SLACK_WEBHOOK_URL"')
    reader.finish()
    return found


def _targets(reader: Reader) -> Iterator[NotifyTarget]:
    for kind in get_args(TargetKind):
        references: tuple[str, ...] = reader.take(kind, _references, ())
        yield from (NotifyTarget(kind=kind, reference=reference) for reference in references)


def _events(value: Any) -> tuple[str, ...]:
    names = texts(value)
    if names == ("all",):
        return EVENTS
    for name in names:
        if name not in EVENTS:
            raise ValueError(f"unknown event {name!r}: expected some of {', '.join(EVENTS)}, or `all`")
    return names


def _references(value: Any) -> tuple[str, ...]:
    found = texts(value)
    for one in found:
        if not (_VARIABLE.fullmatch(one) or one.removeprefix("file:").strip() not in ("", one)):
            # The message omits the value: a webhook's URL is a secret.
            raise ValueError(
                "expected the name of an environment variable that holds the target, or `file:PATH`, "
                "never the target itself"
            )
    return found
