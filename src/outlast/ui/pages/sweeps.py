"""The list of sweeps."""

from __future__ import annotations

from typing import Any

from outlast.ui.format import moment
from outlast.ui.layout import PageView, panel
from outlast.ui.pages.components import Column, Listing, href
from outlast.ui.topics import TopicUpdate, follow
from outlast.ui.views.sweeps import SweepReader, SweepRow, goal_names

_COLUMNS = (
    Column("name", "Sweep", "link"),
    Column("state", "State", "pill"),
    Column("trials", "Trials", "bar"),
    Column("running", "Running", right=True),
    Column("failed", "Failed", right=True),
    Column("goal", "Goal"),
    Column("best", "Best", "told", right=True),
    Column("run", "Best trial", "link"),
    Column("who", "User"),
    Column("opened", "Opened", "told"),
    Column("why", "Remarks"),
)


def build(view: PageView) -> None:
    command = "outlast sweep --param lr=log(1e-4..1e-1) --goal min:loss -- python train.py"
    with panel("Sweeps", note="many trials of one program"):
        listing = Listing(view, "Sweeps", _COLUMNS, key="name", none="No sweep yet.", command=command)

    def tell(told: TopicUpdate[tuple[SweepRow, ...]]) -> None:
        listing.tell(told, (_cells(row) for row in told.value or ()))

    follow(view, "sweeps", lambda: SweepReader(view.workspace), tell)


def _cells(row: SweepRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "name_href": href("sweeps", row.name),
        "state": row.state,
        "state_tone": row.tone,
        "trials": row.told / row.wanted if row.wanted else 0.0,
        "trials_text": f"{row.told}/{row.wanted}",
        "running": row.running,
        "failed": row.failed,
        "goal": ", ".join(row.goals),
        "best": row.best[0] if row.best else None,
        "best_text": ", ".join(f"{value:.6g}" for value in row.best),
        "run": row.best_run,
        "run_href": href("run", row.best_run) if row.best_run else "",
        "who": row.who,
        "opened": row.opened_at,
        "opened_text": moment(row.opened_at),
        "why": row.why,
        "names": " ".join(goal_names(row.goals)),
    }
