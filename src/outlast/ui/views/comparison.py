"""Runs side by side as rows of text: parameters first, then metrics; those that differ before the others. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from outlast.app.comparison import Compared


class ComparedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter, metric or property, and its value in each run."""

    name: str
    values: tuple[str, ...]

    @property
    def differs(self) -> bool:
        return len(set(self.values)) > 1


def comparison_rows(runs: Sequence[Compared]) -> list[ComparedRow]:
    """Return all rows; parameters that differ come first."""
    params = [_row(name, [run.params.get(name) for run in runs]) for name in _names(run.params for run in runs)]
    metrics = [_row(name, [run.metrics.get(name) for run in runs]) for name in _names(run.metrics for run in runs)]
    others = [
        _row("machine", [run.machine for run in runs]),
        _row("image", [run.image for run in runs]),
        _row("code", [run.code for run in runs]),
        _row("attempts", [run.attempts for run in runs]),
        _row("preemptions", [run.preemptions for run in runs]),
    ]
    params.sort(key=lambda row: not row.differs)
    return [*params, *metrics, *(row for row in others if any(row.values))]


def _names(found: Any) -> list[str]:
    return list(dict.fromkeys(name for one in found for name in one))


def _row(name: str, values: Sequence[object]) -> ComparedRow:
    return ComparedRow(name=name, values=tuple(_text(value) for value in values))


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
