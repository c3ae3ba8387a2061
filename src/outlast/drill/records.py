"""What the workspace remembers of drills: the report of each, and the curves that it rests on. Written once.

drills/<run>.json   the report, by the run that was struck
"""

from __future__ import annotations

import msgspec

from outlast.drill.evidence import Curves, Evidence
from outlast.drill.judge import Report
from outlast.errors import Missing, NoSuchRun
from outlast.store.codec import decoded
from outlast.workspace import Workspace


class Drill(msgspec.Struct, frozen=True, kw_only=True):
    """One drill, as it is kept."""

    report: Report
    at: float
    who: str = ""
    # Of both runs the numbers over their steps, by name; JSON has only text for the names of fields.
    drilled: dict[str, dict[str, float]] = {}
    undisturbed: dict[str, dict[str, float]] = {}


def keep(workspace: Workspace, report: Report, drilled: Evidence, undisturbed: Evidence | None, *, who: str) -> None:
    drill = Drill(
        report=report,
        at=workspace.clock(),
        who=who,
        drilled=_named(drilled.curves),
        undisturbed=_named(undisturbed.curves) if undisturbed else {},
    )
    workspace.bucket.put(_key(report.run), msgspec.json.encode(drill), durable=True)


def _named(curves: Curves) -> dict[str, dict[str, float]]:
    return {name: {str(step): value for step, value in points.items()} for name, points in curves.items()}


def drills(workspace: Workspace) -> list[str]:
    """The runs that were struck, in no order."""
    children = workspace.bucket.children("drills/")
    return [child.removesuffix(".json") for child in children if child.endswith(".json")]


def read(workspace: Workspace, run: str) -> Drill:
    """Raises NoSuchRun."""
    try:
        return decoded(workspace.bucket.get(_key(run)), Drill, _key(run))
    except Missing as problem:
        raise NoSuchRun(f"there is no report of a drill `{run}`", hint="start one with `outlast drill`") from problem


def _key(run: str) -> str:
    return f"drills/{run}.json"
