"""Sweeps, drills and groups as rows of the overview that others are folded into, and their pages."""

from __future__ import annotations

from typing import Any

from outlast.ui.parents import parent_rows
from outlast.ui.views.runs import RunTableRow
from tests.dashboard.test_overview import row
from tests.support.dashboard import Lived, Visit
from tests.support.waiting import eventually


def _part(run: str, **fields: Any) -> RunTableRow:
    return RunTableRow(**{"run": run, "state": "finished", "tone": "done", "part_of": "sweep:s", **fields})


def test_a_parent_adds_up_its_parts() -> None:
    live = _part("s-t2", state="running", tone="good", alive=True, spent_usd=1.0, spent_at=100.0, usd_per_hour=36.0)
    ended = _part("s-t1", spent_usd=2.0, submitted_at=5.0, ended_at=9.0, user="ada")
    (parent,) = parent_rows([live, ended, _part("other", part_of="")]).values()
    assert (parent.key, parent.kind, parent.run, parent.members) == ("sweep:s", "sweep", "s", 2)
    assert (parent.state, parent.alive, parent.step, parent.steps) == ("running", True, 1, 2)
    assert (parent.spent_usd, parent.spent_at, parent.usd_per_hour, parent.ended_at) == (3.0, 100.0, 36.0, 0.0)
    assert parent.why == "1 running, 1 finished"
    assert parent.user == "", "the runs have different owners"


def test_trials_are_folded_into_their_sweep_and_link_back_to_it(visit: Visit, lived: Lived) -> None:
    sweep = lived.names.sweep
    page = visit.open()
    row(page, sweep).get_by_text("sweep ·").wait_for()
    trials = [run for run in lived.workspace.runs() if run.startswith(f"{sweep}-t")]
    trial = max(trials, key=lambda run: int(run.removeprefix(f"{sweep}-t")))
    assert row(page, trial).count() == 0
    page.get_by_role("button", name=f"Unfold {sweep}").click()
    row(page, trial).wait_for()
    assert "open=sweep" in page.url
    page.get_by_role("button", name=f"Fold {sweep}", exact=True).click()
    row(page, trial).wait_for(state="detached")
    # A filter shows the runs that it matches, whether or not they are folded.
    page.get_by_label("Filter runs").fill(trial)
    row(page, trial).wait_for()
    page.get_by_text("1 shown").wait_for()
    link = page.get_by_role("link", name=trial, exact=True)
    # The folded row fades out while the matching one appears.
    eventually(lambda: link.count() == 1, what="a single row of the trial")
    link.click()
    page.get_by_role("link", name=f"sweep {sweep}").click()
    page.get_by_role("heading", name=sweep, exact=True).wait_for()
    page.goto(f"{visit.origin}/run/{lived.names.undisturbed}")
    page.get_by_role("link", name=f"drill {lived.names.drill}").click()
    page.get_by_role("heading", name=lived.names.drill, exact=True).wait_for()
    page.goto(f"{visit.origin}/")
    row(page, lived.names.demo).wait_for()
    page.get_by_role("link", name=lived.names.drill, exact=True).click()
    page.wait_for_url(f"**/drills/{lived.names.drill}")


def test_a_small_curve_shows_the_goal_of_each_run(visit: Visit, lived: Lived) -> None:
    page = visit.open(f"/?q={lived.names.sweep}&cols=s:loss")
    page.locator(".ol-spark polyline").first.wait_for()
    drawn = page.locator(".ol-spark polyline").first.get_attribute("points")
    assert len(drawn.split()) == 8, "one point per step"
