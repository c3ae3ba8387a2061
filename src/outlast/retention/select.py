"""Which ended runs a retention rule deletes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from outlast.runs.ended import EndedRun
from outlast.spec.spec import RetentionSpec

_NUMBER = re.compile(r"-[tw]?\d+$")


def name_of(run: str) -> str:
    """Return the name that a run shares with its repetitions: `census` for `census-7`."""
    return _NUMBER.sub("", run)


def due(
    records: Iterable[EndedRun], rule: RetentionSpec, *, now: float, values: Mapping[str, float] | None = None
) -> list[EndedRun]:
    """Return the runs that the rule deletes, oldest end first. `values`: run → its value of the rule's metric.

    A run that is not over is never due: its machines may still be released.
    """
    candidates = sorted(records, key=lambda record: record.state.ended_at)
    kept = set(best(candidates, rule, values or {}))
    return [
        record
        for record in candidates
        if record.state.closed
        and record.run not in kept
        and now - record.state.ended_at > rule.older_than_s
        and (not rule.failed or record.state.ending == "failed")
    ]


def best(records: Sequence[EndedRun], rule: RetentionSpec, values: Mapping[str, float]) -> list[str]:
    """Return the best runs of each name by the rule's metric. Runs without a value are not among them."""
    if not rule.keep_best:
        return []
    sign = -1.0 if rule.metric.startswith("max:") else 1.0
    by_name: dict[str, list[str]] = {}
    for record in records:
        if record.run in values:
            by_name.setdefault(name_of(record.run), []).append(record.run)
    found: list[str] = []
    for runs in by_name.values():
        found += sorted(runs, key=lambda run: sign * values[run])[: rule.keep_best]
    return found
