"""Facts that were wrong on the dashboard: each is compared, in a real browser, with the records or with a command."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.code.record import CodeRecord
from outlast.runs import events as ev
from outlast.runs.metrics import write_piece
from outlast.spec.parse import parse
from outlast.workspace import Heartbeat
from tests.dashboard.test_overview import row, submit_run
from tests.support.dashboard import Lived, Served, Visit, can_serve
from tests.support.home import Home

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    folder: Path = tmp_path_factory.mktemp("facts")
    (folder / "home").mkdir()
    home = Lived(folder)
    yield home
    for machine in home.cloud.machines():
        home.cloud.delete(machine.name)
    Home.clean(home)


@pytest.fixture(scope="module")
def server(home: Home) -> Iterator[Served]:
    can_serve()
    served = Served(home)
    yield served
    served.end()


@pytest.fixture
def look(server: Served, visits: Callable[[str], Visit]) -> Visit:
    return visits(server.link)


def placed(attempt: int, at: float) -> ev.Placed:
    place = {"cloud": "local", "region": "local1", "zone": "local1-a", "type": "local-1", "spot": True}
    return ev.Placed(attempt=attempt, machine=f"m{attempt}", price_usd_per_hour=1.0, at=at, **place)  # type: ignore[arg-type]


def reserved(home: Home, name: str) -> str:
    spec = parse({"name": name, "command": "true"})
    return home.workspace.reserve(spec, CodeRecord(), who="ada", version="0", run=name).run


def tell(home: Home, run: str, *events: ev.Event) -> None:
    for event in events:
        home.workspace.story(run).append_or_raise(event, nonce=home.workspace.ids())


def test_next_has_only_steps_that_are_still_to_come(look: Visit, home: Home) -> None:
    page = look.open()
    run = submit_run(home, "ada")
    planned = page.get_by_label("Next").get_by_text(f"of {run} on")
    planned.wait_for()
    # As beside a supervisor, which deletes the wakeups that it has read.
    tell(home, run, ev.Cancelled(who="ada", at=home.workspace.clock()))
    for entry in list(home.workspace.bucket.list(f"wakeups/{run}/")):
        home.workspace.bucket.delete(entry.key)
    planned.wait_for(state="detached")
    row(page, run).get_by_text("cancelled", exact=True).wait_for()


def test_limits_count_machines_that_no_run_owns(look: Visit, home: Home) -> None:
    assert home.outlast("machine", "create", "box", "--type", "local-1").returncode == 0
    assert home.outlast("limits", "--max-hours", "5", "--per", "month").returncode == 0
    (limit,) = json.loads(home.outlast("limits", "--json").stdout)
    assert limit["used_hours"] > 0
    page = look.open("/cost")
    used = page.get_by_text("of 5 machine hours")
    used.wait_for()
    page.wait_for_function(
        """used => [...document.querySelectorAll('.ol-gauge')].some(
            gauge => parseFloat(gauge.innerText.match(/([\\d.e-]+) of 5/)?.[1]) >= used)""",
        arg=float(f"{limit['used_hours']:.2g}"),
    )
    assert page.locator(".ol-gauge").filter(has_text="a month").count() == 1
    assert home.outlast("limits", "--max-hours", "0", "--per", "month").returncode == 0
    assert home.outlast("machine", "delete", "box", "--yes").returncode == 0


def test_each_run_and_machine_on_the_cost_page_leads_to_a_page(look: Visit, home: Home) -> None:
    run = reserved(home, "spender")
    now = home.workspace.clock()
    released = ev.Released(attempt=1, cost_usd=1.5, seconds=5400.0, at=now)
    tell(home, run, ev.Submitted(who="ada", at=now - 9), placed(1, now - 8), ev.Started(attempt=1, at=now - 7))
    tell(home, run, ev.Finished(attempt=1, at=now), released)
    assert home.outlast("machine", "create", "tool", "--type", "local-1").returncode == 0
    page = look.open("/cost?period=all")
    page.get_by_role("row").filter(has_text="tool").first.wait_for()
    links = page.locator("table a").evaluate_all("links => links.map(a => a.getAttribute('href'))")
    assert f"/run/{run}" in links
    for link in links:
        target = look.open(link)
        target.wait_for_selector("h1", state="attached")
        assert target.get_by_text("There is no", exact=False).count() == 0, link
        target.close()
    assert home.outlast("machine", "delete", "tool", "--yes").returncode == 0


def test_refusals_are_not_attempts(look: Visit, home: Home) -> None:
    run = reserved(home, "refused")
    now = home.workspace.clock()
    tell(home, run, ev.Submitted(who="ada", at=now))
    for number in range(1, 11):
        refused = ev.LaunchRefused(attempt=number, why="no capacity", until=now + 3600, at=now)
        tell(home, run, placed(number, now), refused)
    home.workspace.wake(run)
    page = look.open()
    row(page, run).wait_for()
    assert row(page, run).locator("[col-id=attempts]").inner_text() in ("", "0")
    assert row(page, run).locator("[col-id=where]").inner_text().strip() == ""
    # Why it waits: each zone with its price, and what would help.
    page = look.open(f"/run/{run}")
    page.get_by_text("none yet", exact=True).wait_for()
    waiting = page.get_by_label("Why it waits")
    refused = waiting.get_by_role("row").filter(has_text="no capacity").first
    refused.get_by_text("$", exact=False).first.wait_for()
    waiting.get_by_text("What would help", exact=False).first.wait_for()
    tell(home, run, ev.Cancelled(who="ada", at=now))
    waiting.wait_for(state="hidden")


def test_values_that_are_not_numbers_are_marked(look: Visit, home: Home) -> None:
    run = reserved(home, "diverged")
    now = home.workspace.clock()
    rows = [
        f'{{"step": {step}, "at": {now + step}, "loss": {"NaN" if step == 7 else 1 / step}}}' for step in range(1, 11)
    ]
    tell(home, run, ev.Submitted(who="ada", at=now), placed(1, now), ev.Started(attempt=1, at=now))
    write_piece(home.workspace.bucket, run, 1, 1, "\n".join(rows).encode())
    tell(home, run, ev.Failed(why="bug", at=now), ev.Released(attempt=1, cost_usd=0.1, seconds=9.0, at=now))
    page = look.open(f"/run/{run}?tab=metrics")
    page.get_by_role("img", name="loss, over steps").wait_for()
    page.wait_for_function(f"({_SERIES}).some(one => one.name.endsWith('NaN') && one.data[0][0] === 7)")


# The series of all charts of the page.
_SERIES = """[...document.querySelectorAll("[_echarts_instance_]")].flatMap(e =>
  (window.echarts || {getInstanceByDom: () => null}).getInstanceByDom(e)?.getOption().series ??
  getElement(+e.closest("[id^=c]").id.slice(1)).chart.getOption().series)"""


def test_a_run_that_could_not_be_read_once_returns(look: Visit, home: Home) -> None:
    run = submit_run(home, "ada")
    home.workspace.write_heartbeat(run, Heartbeat(length=1))
    page = look.open()
    row(page, run).get_by_text("waiting", exact=True).wait_for()
    torn = home.root / "workspace" / "runs" / run / "story" / "00000002.json"
    torn.write_text("{")
    row(page, run).get_by_text("damaged", exact=True).wait_for()
    torn.unlink()
    row(page, run).get_by_text("waiting", exact=True).wait_for()
    tell(home, run, ev.Cancelled(who="ada", at=home.workspace.clock()))
    home.workspace.bucket.delete(f"heartbeats/{run}")


def test_a_workspace_without_stories_is_not_live(look: Visit, home: Home) -> None:
    run = submit_run(home, "ada")
    home.workspace.write_heartbeat(run, Heartbeat(length=1))
    page: Any = look.open()
    row(page, run).wait_for()
    runs, aside = home.root / "workspace" / "runs", home.root / "elsewhere"
    runs.rename(aside)
    home.workspace.write_heartbeat(run, Heartbeat(length=1))  # its agent still writes
    page.get_by_role("alert").get_by_text("gone", exact=False).wait_for()
    aside.rename(runs)
    page.get_by_role("alert").get_by_text("gone", exact=False).wait_for(state="hidden")
    tell(home, run, ev.Cancelled(who="ada", at=home.workspace.clock()))
    home.workspace.bucket.delete(f"heartbeats/{run}")
