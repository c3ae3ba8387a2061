"""Drills as table rows, and the report of one with its curves, as values."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from outlast.drill.findings import DrillPrices, Finding, Handover
from outlast.drill.records import Drill, drills, read
from outlast.errors import StoreUnreachable, WorkspaceError
from outlast.formatting.run_row import unread
from outlast.workspace import Workspace

TONES = {"pass": "good", "note": "done", "warn": "warn", "fail": "bad", "skip": "off"}


class DrillRow(msgspec.Struct, frozen=True, kw_only=True):
    run: str
    passed: bool
    # Verdict → number of findings.
    counts: dict[str, int] = {}
    preemptions: int = 0
    lost_s: float = 0.0
    recovery_s: float = 0.0
    saving: float | None = None
    undisturbed: str = ""
    who: str = ""
    at: float = 0.0
    problem: str = ""
    # `damaged` or `unreadable` if there is a problem.
    unread: str = ""


class DrillDetail(msgspec.Struct, frozen=True, kw_only=True):
    row: DrillRow
    findings: tuple[Finding, ...]
    handovers: tuple[Handover, ...]
    prices: DrillPrices | None
    # Name of the metric → curves; the most useful one first.
    curves: dict[str, Curve]


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    undisturbed: tuple[tuple[int, float], ...]
    drilled: tuple[tuple[int, float], ...]


class DrillReader:
    """The reader of all drills. Reports never change: each is read once."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._known: dict[str, DrillRow] = {}

    def __call__(self) -> tuple[DrillRow, ...]:
        found = [self._row(run) for run in drills(self.workspace)]
        return tuple(sorted(found, key=lambda row: (-row.at, row.run)))

    def _row(self, run: str) -> DrillRow:
        if run not in self._known:
            try:
                self._known[run] = row_of(read(self.workspace, run))
            except StoreUnreachable:
                raise
            except WorkspaceError as problem:
                return DrillRow(run=run, passed=False, problem=problem.message, unread=unread(problem))
        return self._known[run]


def row_of(drill: Drill) -> DrillRow:
    report = drill.report
    verdicts = [finding.verdict for finding in report.findings]
    passed = report.handovers
    return DrillRow(
        run=report.run,
        passed=report.passed,
        counts={verdict: verdicts.count(verdict) for verdict in TONES if verdict in verdicts},
        preemptions=len(passed),
        lost_s=_mean([one.lost_s for one in passed]),
        recovery_s=_mean([one.recovery_s for one in passed]),
        saving=report.prices.saving if report.prices else None,
        undisturbed=report.undisturbed_run,
        who=drill.who,
        at=drill.at,
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def one_drill(workspace: Workspace, run: str) -> DrillDetail:
    """Read one drill. Raises NoSuchRun."""
    drill = read(workspace, run)
    return DrillDetail(
        row=row_of(drill),
        findings=tuple(drill.report.findings),
        handovers=tuple(drill.report.handovers),
        prices=drill.report.prices,
        curves=curves_of(drill),
    )


def curves_of(drill: Drill) -> dict[str, Curve]:
    """Return the curves: first those of both runs, then by length, then losses."""
    names = sorted(
        {*drill.drilled, *drill.undisturbed},
        key=lambda n: (
            n not in drill.undisturbed or n not in drill.drilled,
            -len(drill.drilled.get(n, {})),
            "loss" not in n,
            n,
        ),
    )
    return {
        name: Curve(undisturbed=_points(drill.undisturbed.get(name, {})), drilled=_points(drill.drilled.get(name, {})))
        for name in names
    }


def _points(curve: dict[str, float]) -> tuple[tuple[int, float], ...]:
    return tuple(sorted((int(step), value) for step, value in curve.items() if math.isfinite(value)))


def chart(detail: DrillDetail, name: str) -> dict[str, Any]:
    """Return ECharts options: both runs over steps, with marks at the preemptions."""
    curve = detail.curves[name]
    grey, faint = "rgba(128,138,153,.9)", "rgba(128,138,153,.2)"
    marks = [
        {
            "xAxis": handover.last_step,
            "name": f"{'notice' if handover.notice else 'no notice'}, {handover.moment}",
        }
        for handover in detail.handovers
        if handover.last_step is not None
    ]
    axis = {
        "axisLabel": {"color": grey},
        "nameTextStyle": {"color": grey},
        "splitLine": {"lineStyle": {"color": faint}},
    }
    return {
        "animation": False,
        "grid": {"left": 56, "right": 40, "top": 64, "bottom": 48},
        "tooltip": {"trigger": "axis", "renderMode": "richText"},
        "legend": {"textStyle": {"color": grey}, "top": 4},
        "dataZoom": [{"type": "inside"}],
        "xAxis": {"type": "value", "name": "step", "nameLocation": "middle", "nameGap": 28, "min": "dataMin", **axis},
        "yAxis": {"type": "value", "scale": True, **axis},
        "series": [
            {
                "name": "undisturbed",
                "type": "line",
                "showSymbol": False,
                "lineStyle": {"width": 6, "opacity": 0.35},
                "itemStyle": {"color": "#6366f1"},
                "data": [list(point) for point in curve.undisturbed],
            },
            {
                "name": "drilled",
                "type": "line",
                "symbolSize": 5,
                "itemStyle": {"color": "#0d9488"},
                "data": [list(point) for point in curve.drilled],
                "markLine": {
                    "symbol": "none",
                    "lineStyle": {"color": "#c2410c", "type": "dashed"},
                    "label": {"formatter": "{b}", "color": grey, "position": "end", "rotate": 0},
                    "data": marks,
                },
            },
        ],
    }
