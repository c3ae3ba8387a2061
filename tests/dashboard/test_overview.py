"""The overview: live runs and cost, and the messages for empty places."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from outlast.code.record import CodeRecord
from outlast.runs.ended import EndedRuns, record_of
from outlast.runs.events import Cancelled, Submitted
from outlast.runs.state import fold
from outlast.spec.parse import parse
from outlast.ui.reader import ENDED_SHOWN
from tests.dashboard.lived import ATTACK
from tests.support.dashboard import Lived, Served, Visit
from tests.support.home import Home


def row(page: Any, run: str) -> Any:
    """Return the row of a run in the table, without rows that fade out."""
    rows = page.locator(".ag-center-cols-container .ag-row:not(.ag-opacity-zero)")
    return rows.filter(has=page.get_by_role("link", name=run, exact=True))


def submit_run(home: Home, name: str, *, run: str = "") -> str:
    """Submit a run without a supervisor."""
    spec = parse({"name": "x", "command": "true"})
    request = home.workspace.reserve(spec, CodeRecord(), who=name, version="0", run=run)
    home.workspace.story(request.run).append_or_raise(Submitted(who=name, at=home.workspace.clock()), nonce=request.run)
    home.workspace.wake(request.run)
    return request.run


def test_runs_have_the_states_that_ps_prints(visit: Visit, lived: Lived) -> None:
    page = visit.open()
    names = lived.names
    for run, state in {
        names.running: "running",
        names.failed: "failed",
        names.cancelled: "cancelled",
        names.demo: "finished",
    }.items():
        assert row(page, run).locator(".ol-pill").inner_text() == state
    assert "crashed" in row(page, names.failed).inner_text()
    assert "$" in row(page, names.running).locator("[col-id=price]").inner_text()
    machine = lived.state(names.running).attempts[-1].machine
    page.get_by_label("Machines").get_by_text(machine).wait_for()
    page.get_by_label("This month").get_by_text("of $50.00").wait_for()
    page.get_by_text("Supervised by").wait_for()
    assert page.title() == "Overview · outlast"


@pytest.mark.full
def test_filter_and_sort_order_are_stored_in_the_url(visit: Visit, lived: Lived) -> None:
    page = visit.open()
    row(page, lived.names.demo).wait_for()
    page.keyboard.press("/")
    page.keyboard.type("broken")
    page.get_by_text("1 shown").wait_for()
    assert "q=broken" in page.url
    page.get_by_label("Filter runs").fill("")
    page.get_by_role("button", name="Failed").click()
    row(page, lived.names.demo).wait_for(state="detached")
    row(page, lived.names.failed).wait_for()
    page.get_by_role("columnheader", name="Spent").click()
    page.wait_for_url("**sort=spent**")
    again = visit.open(page.url.removeprefix(visit.origin))
    row(again, lived.names.failed).wait_for()
    assert row(again, lived.names.demo).count() == 0
    assert again.get_by_role("button", name="Failed").get_attribute("aria-pressed") == "true"


@pytest.mark.full
def test_keys_open_a_run_and_return(visit: Visit, lived: Lived) -> None:
    page = visit.open()
    row(page, lived.names.demo).wait_for()
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keyboard shortcuts").wait_for()
    page.keyboard.press("Escape")
    row(page, lived.names.demo).locator("[col-id=state]").click()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/run/{lived.names.demo}")
    page.get_by_role("heading", name=lived.names.demo).wait_for()
    page.keyboard.press("g")
    page.keyboard.press("o")
    page.wait_for_url(visit.origin + "/")


def test_it_follows_the_systems_dark_mode_and_fits_a_phone(visit: Visit, lived: Lived) -> None:
    page = visit.open(width=390, height=800, dark=True)
    row(page, lived.names.demo).wait_for()
    assert "body--dark" in page.evaluate("document.body.className")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.keyboard.press("t")
    page.wait_for_function("!document.body.classList.contains('body--dark')")


def test_every_control_has_a_name(visit: Visit, lived: Lived) -> None:
    page = visit.open()
    row(page, lived.names.demo).wait_for()
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, a[href], input, select")].filter(e => e.offsetParent
            && !e.getAttribute("aria-label") && !e.textContent.trim() && !e.labels?.length
            && !e.getAttribute("aria-labelledby") && !e.closest(".ag-hidden, [aria-hidden=true]"))
            .map(e => e.outerHTML)"""
    )
    assert not nameless


@pytest.mark.full
def test_changes_appear_without_a_reload(
    empty: Home, serve: Callable[..., Served], visits: Callable[[str], Visit]
) -> None:
    visit = visits(serve(empty).link)
    page = visit.open()
    page.get_by_text("No runs match.").wait_for()
    page.get_by_text("No machines; nothing is billed.").wait_for()
    page.get_by_text("No supervisor is running", exact=False).first.wait_for()
    run = submit_run(empty, "ada")
    row(page, run).wait_for()
    assert row(page, run).locator(".ol-pill").inner_text() == "waiting"
    page.get_by_label("Next").get_by_text(f"of {run} on").wait_for()
    empty.workspace.story(run).append_or_raise(Cancelled(who="ada", at=empty.workspace.clock()), nonce="c")
    row(page, run).get_by_text("cancelled", exact=True).wait_for()
    # Markup in names, reasons and users is shown as text.
    evil = submit_run(empty, ATTACK, run=ATTACK.replace("/", "-"))
    page.get_by_role("link", name=evil, exact=True).wait_for()
    page.get_by_role("link", name=evil, exact=True).click()
    page.get_by_role("heading", name=evil, exact=True).wait_for()
    plain = submit_run(empty, ATTACK)
    page.goto(f"{visit.origin}/run/{plain}")
    page.get_by_text(f"submitted by {ATTACK}").wait_for()


@pytest.mark.full
def test_more_ended_runs_are_shown_on_demand(
    empty: Home, serve: Callable[..., Served], visits: Callable[[str], Visit]
) -> None:
    index = EndedRuns(empty.workspace)
    index.rebuild()
    states = [fold([Submitted(at=1.0), Cancelled(at=2.0 + number)]) for number in range(ENDED_SHOWN + 20)]
    index.write_page([record_of(f"old-{number}", state) for number, state in enumerate(states)])
    page = visits(serve(empty).link).open()
    page.get_by_text(f"newest {ENDED_SHOWN} shown").wait_for()
    page.get_by_role("button", name="Show more ended runs").click()
    page.get_by_text(f"{ENDED_SHOWN + 20} in total").wait_for()
    page.get_by_role("button", name="Show more ended runs").wait_for(state="hidden")


@pytest.mark.full
def test_problems_are_shown_until_they_end(
    empty: Home, serve: Callable[..., Served], visits: Callable[[str], Visit]
) -> None:
    run = submit_run(empty, "ada")
    served = serve(empty)
    visit = visits(served.link)
    page = visit.open()
    row(page, run).wait_for()
    # The store does not answer: a symbolic link to itself.
    workspace, aside = empty.root / "workspace", empty.root / "aside"
    workspace.rename(aside)
    workspace.symlink_to(workspace)
    alert = page.get_by_role("alert")
    alert.get_by_text("has not answered since").wait_for()
    assert row(page, run).count() == 1, "earlier data is still shown"
    workspace.unlink()
    aside.rename(workspace)
    alert.get_by_text("has not answered since").wait_for(state="hidden")
    # The workspace is gone.
    workspace.rename(aside)
    alert.get_by_text("the workspace has no runs any more").wait_for()
    aside.rename(workspace)
    alert.get_by_text("the workspace has no runs any more").wait_for(state="hidden")
    # An unreadable story appears in the row of its run.
    story = workspace / "runs" / run / "story" / "00000002.json"
    story.write_text("{")
    row(page, run).get_by_text("damaged", exact=True).wait_for()
    os.kill(served.process.pid, signal.SIGINT)
    page.get_by_text("The dashboard's server has not answered since").wait_for()
    assert re.search(r"\d\d:\d\d:\d\d", page.locator("#ol-gone-since").inner_text())
    serve(empty, "--port", str(urlsplit(served.link).port))
    page.get_by_text("Open the new link").wait_for()
    visit.errors.clear()  # the browser reports the lost server as an error
