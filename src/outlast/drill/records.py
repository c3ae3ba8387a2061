"""Records of drills in the workspace: the report and the compared curves. Written once.

drills/<run>.json   by the name of the preempted run
"""

from __future__ import annotations

import msgspec

from outlast.drill.evidence import Curves, Evidence
from outlast.drill.judge import Report
from outlast.errors import Missing, NoSuchRun
from outlast.store.codec import decoded
from outlast.workspace import Workspace


class Drill(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one drill."""

    report: Report
    at: float
    who: str = ""
    # The curves of both runs: name → step → value. Steps are text, as JSON requires.
    drilled: dict[str, dict[str, float]] = {}
    undisturbed: dict[str, dict[str, float]] = {}


def store_drill(
    workspace: Workspace, report: Report, drilled: Evidence, undisturbed: Evidence | None, *, who: str
) -> None:
    drill = Drill(
        report=report,
        at=workspace.clock(),
        who=who,
        drilled=_with_text_steps(drilled.curves),
        undisturbed=_with_text_steps(undisturbed.curves) if undisturbed else {},
    )
    workspace.bucket.put(_key(report.run), msgspec.json.encode(drill), durable=True)


def _with_text_steps(curves: Curves) -> dict[str, dict[str, float]]:
    return {name: {str(step): value for step, value in points.items()} for name, points in curves.items()}


def drills(workspace: Workspace) -> list[str]:
    """Return the names of the preempted runs, unordered."""
    children = workspace.bucket.children("drills/")
    return [child.removesuffix(".json") for child in children if child.endswith(".json")]


def read(workspace: Workspace, run: str) -> Drill:
    """Read the record of a drill. Raises NoSuchRun."""
    try:
        return decoded(workspace.bucket.get(_key(run)), Drill, _key(run))
    except Missing as problem:
        raise NoSuchRun(f"no drill report for run `{run}`", hint="start one with `outlast drill`") from problem


def _key(run: str) -> str:
    return f"drills/{run}.json"
