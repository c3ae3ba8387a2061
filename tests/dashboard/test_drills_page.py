"""The pages of drills: the list, the report, the curve."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from outlast.drill.records import read
from outlast.ui.views.drills import chart, one_drill
from tests.support.dashboard import Lived, Served, Visit
from tests.support.home import Home


def test_the_list_links_to_the_report_with_every_finding(visit: Visit, lived: Lived) -> None:
    page = visit.open("/drills")
    row = page.get_by_role("row").filter(has_text=lived.names.drill)
    passed = read(lived.workspace, lived.names.drill).report.passed
    row.get_by_text("passed" if passed else "failed").wait_for()
    row.get_by_role("link").click()
    page.get_by_role("heading", name=lived.names.drill).wait_for()
    shown = page.inner_text("#main")
    for finding in read(lived.workspace, lived.names.drill).report.findings:
        assert finding.question in shown
        assert finding.answer in shown
    page.wait_for_selector('[aria-label="Curve"] canvas')
    link = page.get_by_role("link", name="the undisturbed run")
    assert link.get_attribute("href") == f"/run/{lived.names.undisturbed}"


def test_the_curve_has_both_runs_and_marks_at_the_preemptions(lived: Lived) -> None:
    detail = one_drill(lived.workspace, lived.names.drill)
    assert next(iter(detail.curves)) == "loss"
    drawn = chart(detail, "loss")
    undisturbed, drilled = drawn["series"]
    assert len(undisturbed["data"]) >= 15
    # A value logged at the moment of the preemption may be lost.
    assert {step for step, _ in drilled["data"]} <= {step for step, _ in undisturbed["data"]}
    marks = drilled["markLine"]["data"]
    # An attempt that was preempted before its first step has no mark.
    steps = [one.last_step for one in detail.handovers if one.last_step is not None]
    assert [mark["xAxis"] for mark in marks] == steps
    assert all(mark["name"].startswith("no notice") for mark in marks)


def test_the_chosen_metric_is_stored_in_the_url(visit: Visit, lived: Lived) -> None:
    page = visit.open(f"/drills/{lived.names.drill}")
    page.get_by_role("combobox", name="Metric").click()
    page.get_by_role("option", name="accuracy").click()
    page.wait_for_url("**curve=accuracy")


@pytest.mark.full
def test_a_report_appears_in_the_list_when_a_drill_ends(
    lived: Lived, empty: Home, serve: Callable[..., Served], visits: Callable[[str], Visit]
) -> None:
    page = visits(serve(empty).link).open("/drills")
    page.get_by_text("No drills yet.").wait_for()
    name = f"{lived.names.drill}.json"
    body = (Path(lived.root) / "workspace" / "drills" / name).read_bytes()
    empty.workspace.bucket.put(f"drills/{name}", body)
    page.get_by_role("row").filter(has_text=lived.names.drill).wait_for()
    empty.workspace.bucket.put("drills/torn-drill-1.json", b"{")
    page.get_by_role("row").filter(has_text="torn-drill-1").get_by_text("damaged").wait_for()
