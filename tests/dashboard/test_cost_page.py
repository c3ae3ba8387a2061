"""The cost page and its sums."""

from __future__ import annotations

import json
import time

import pytest

from outlast.billing.ledger import DAY_S, LedgerLine
from outlast.formatting.quantities import money as exact_money
from outlast.ui.format import money
from outlast.ui.views.cost import begin_of_period, per_day, spending
from tests.support.dashboard import Lived, Visit

NOON = 20_000 * DAY_S + DAY_S / 2


def line(name: str, who: str, days_ago: float, usd: float, **causes: float) -> LedgerLine:
    begin = NOON - days_ago * DAY_S
    return LedgerLine(
        kind="run",
        name=name,
        cloud="gcp",
        zone="europe-west4-b",
        type="n2-standard-4",
        machine=f"{name}-a1",
        spot=True,
        begin=begin,
        end=begin + 3600.0,
        seconds=3600.0,
        cost_usd=usd,
        on_demand_usd=3 * usd,
        causes=causes or {"work": usd},
        who=who,
    )


LINES = [
    line("census-1", "ada", 0, 2.0, work=1.5, boot=0.5),
    line("census-2", "ada", 3, 1.0),
    line("spirals-1", "bob", 40, 7.0),
]


def test_period_and_user_select_the_spending() -> None:
    def cost(period: str, who: str = "") -> float:
        return spending(LINES, period=period, who=who, now=NOON).whole.cost_usd

    assert [cost(period) for period in ("today", "7d", "30d", "all")] == [2.0, 3.0, 3.0, 10.0]
    assert cost("all", "bob") == 7.0
    assert begin_of_period("today", NOON) == 20_000 * DAY_S


def test_causes_days_users_and_savings_add_up() -> None:
    found = spending(LINES, period="all", who="", now=NOON)
    assert sum(cause.usd for cause in found.causes) == pytest.approx(found.whole.cost_usd)
    assert sum(usd for day in found.days.values() for usd in day.values()) == pytest.approx(10.0)
    assert {share.name: share.cost_usd for share in found.users} == {"bob": 7.0, "ada": 3.0}
    assert found.whole.saved == pytest.approx(2 / 3)
    assert [cause.cause for cause in found.causes if cause.waste] == ["boot"]
    chart = per_day(found)
    assert len(chart["xAxis"]["data"]) == 3
    assert [series["name"] for series in chart["series"]] == ["work", "boot", "on demand"]


def test_no_spending_causes_no_division_by_zero() -> None:
    found = spending([], period="all", who="", now=NOON)
    assert (found.days, found.whole.saved, found.causes) == ({}, 0.0, ())


def test_the_page_shows_the_figures_of_the_command(visit: Visit, lived: Lived) -> None:
    page = visit.open("/cost?period=all")
    page.get_by_role("heading", name="By cause").wait_for()
    expected = json.loads(lived.outlast("cost", lived.names.demo, "--json").stdout)["total"]["cost_usd"]
    assert expected > 0
    row = page.get_by_role("row").filter(has_text=lived.names.demo)
    row.wait_for()
    assert money(expected) in row.inner_text()
    assert row.get_by_title(exact_money(expected), exact=True).count()
    assert row.get_by_role("link").get_attribute("href") == f"/run/{lived.names.demo}"
    assert lived.state(lived.names.demo).who in page.get_by_label("By user").first.inner_text()
    page.get_by_text("of $50.00").wait_for()
    page.wait_for_selector('[aria-label="Cost by day"] canvas')


@pytest.mark.full
def test_choices_are_stored_in_the_url(visit: Visit, lived: Lived) -> None:
    page = visit.open("/cost")
    page.get_by_role("heading", name="By cause").wait_for()
    today = page.get_by_role("button", name="Today")
    assert today.get_attribute("aria-pressed") == "false"
    today.click()
    page.wait_for_url("**/cost?period=today")
    other = visit.open("/cost?period=today&user=unknown")
    other.get_by_text("No spending in this period.").wait_for()
    assert other.get_by_role("button", name="Today").get_attribute("aria-pressed") == "true"


@pytest.mark.full
def test_running_machines_are_added_up_live(visit: Visit, lived: Lived) -> None:
    page = visit.open("/cost?period=all")
    row = page.get_by_role("row").filter(has_text=lived.names.running)
    row.wait_for()
    before = row.inner_text()
    exact = row.locator("span[title]").first.get_attribute("title")
    assert exact.startswith("about $"), "an estimate is marked"
    begun = time.time()
    page.wait_for_function(
        "([name, before]) => [...document.querySelectorAll('tr')].some(r => r.innerText.includes(name) && "
        "r.innerText !== before)",
        arg=[lived.names.running, before],
    )
    assert time.time() > begun
