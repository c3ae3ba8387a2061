"""The listing of runs as rows of data: live runs, and the newest ended ones from the index."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from outlast.errors import WorkspaceError
from outlast.formatting.run_row import DAMAGED, UNREADABLE, ended_row, run_row, unread
from outlast.workspace import natural

if TYPE_CHECKING:
    from outlast.workspace import Workspace

# The number of ended runs that a listing includes by default.
ENDED_SHOWN = 100
_ENDED_OFFERED = 100

Row = dict[str, object]


class Listing:
    """The rows of a listing, and whether older ended runs were left out."""

    def __init__(self, rows: list[Row], *, cut: bool = False) -> None:
        self.rows = rows
        self.cut = cut

    @property
    def damaged(self) -> dict[str, str]:
        """Runs whose story cannot be read, with the reason."""
        return {str(one["run"]): str(one["why"]) for one in self.rows if one["state"] in (DAMAGED, UNREADABLE)}


def list_rows(workspace: Workspace, *, everything: bool, who: str = "", limit: int = ENDED_SHOWN) -> Listing:
    """Return one row per run. `everything` adds the last `limit` ended runs (0: all).

    Runs whose story cannot be read are listed too.
    """
    runs = sorted({*workspace.heartbeats(), *workspace.wakeups()})
    found = workspace.each(lambda run: _row(workspace, run), runs)
    rows = [one for one in found if one is not None and who in ("", one.get("user"))]
    _add_hindrances(workspace, rows)
    if not everything:
        return Listing(rows)
    ended, cut = _ended(workspace, runs, who=who, limit=limit)
    return Listing(sorted([*rows, *ended], key=lambda one: natural(str(one["run"]))), cut=cut)


def _add_hindrances(workspace: Workspace, rows: list[Row]) -> None:
    """Add why machines that were requested have not reported yet, as their supervisor found out."""
    silent = [one for one in rows if one["state"] == "booting" and not one["why"] and not one["note"]]
    if not silent:
        return
    from outlast.supervisor.hindrances import read_hindrances

    found = read_hindrances(workspace.bucket)
    for one in silent:
        one["note"] = found.get(str(one["run"]), "")


def _ended(workspace: Workspace, live: list[str], *, who: str, limit: int) -> tuple[list[Row], bool]:
    """Return the newest ended runs, from the index, and whether there are more.

    `live` was listed before: a run that ends in between is in one of the two.
    """
    from outlast.runs.ended import EndedRuns

    index = EndedRuns(workspace, each=workspace.each)
    # The runs of a user may be anywhere in the index.
    found, more = index.newest(0 if who else limit, but=live)
    found = [one for one in found if who in ("", one.state.who)]
    now = time.time()
    rows = [ended_row(one, now=now) for one in found[: limit or None]]
    return rows + [_unread(run, problem) for run, problem in index.unread.items()], bool(more or 0 < limit < len(found))


def names_offered(workspace: Workspace) -> list[str]:
    """Return the live runs and the newest ended ones, for completion."""
    from outlast.runs.ended import EndedRuns

    # Only the newest: completion must be fast however many runs the workspace has.
    live = {*workspace.heartbeats(), *workspace.wakeups()}
    return sorted({*live, *EndedRuns(workspace).submitted_last(_ENDED_OFFERED)}, key=natural)


def _unread(run: str, problem: WorkspaceError) -> Row:
    found = unread(problem)
    # It is unknown whether a run has ended that cannot be read now.
    return {"run": run, "state": found, "why": problem.message, "ending": DAMAGED if found == DAMAGED else ""}


def _row(workspace: Workspace, run: str) -> Row | None:
    try:
        state = workspace.story(run).refresh()
        if not state.exists:
            return None
        heartbeat = workspace.heartbeat(run) if state.alive else None
    except WorkspaceError as problem:
        return _unread(run, problem)
    return run_row(run, state, heartbeat, now=time.time())
