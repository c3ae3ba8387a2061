"""The table of runs as a comparison: conditions in the filter, columns, views, selection; failures and system use."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.code.record import CodeRecord
from outlast.runs import events as ev
from outlast.runs.ended import EndedRuns, record_of
from outlast.runs.events import MetricRange
from outlast.runs.logs import write_piece as write_log
from outlast.runs.metrics import write_piece as write_metrics
from outlast.runs.state import fold
from outlast.runs.usage import Sample, Usage, line_of
from outlast.runs.usage import write_piece as write_usage
from outlast.spec.parse import parse
from tests.support.dashboard import Served, Visit, can_serve
from tests.support.home import Home
from tests.support.waiting import eventually

_TRACE = """Traceback (most recent call last):
  File "train.py", line 9, in <module>
ValueError: bad rate 0.9
"""
_WIDTHS = (1024, 1440)


class Trained(Home):
    """A workspace with three ended runs that were never executed."""

    def run(self, name: str, lr: float, *, fails: bool = False) -> None:
        spec = parse({"name": name, "command": "train {lr}", "params": {"lr": lr}, "limits": {"steps": 40}})
        run = self.workspace.reserve(spec, CodeRecord(), who="ada", version="0", run=name).run
        now = self.workspace.clock()
        last: dict[str, Any] = {"step": 37, "metrics": {"loss": MetricRange(lr + 0.1, lr, 2.0)}}
        usage = Usage(seconds=60.0, cpus=2, cpu=0.5, memory_bytes=10**9, memory_total=4 * 10**9)
        why = "the command exited with 1: ValueError: bad rate 0.9 (train.py, line 9)"
        place = {"cloud": "local", "region": "local1", "zone": "local1-a", "type": "local-1", "spot": True}
        story: list[ev.Event] = [
            ev.Submitted(who="ada", at=now - 90),
            ev.Placed(attempt=1, machine=f"{name}-a1", price_usd_per_hour=0.01, at=now - 80, **place),
            ev.Started(attempt=1, at=now - 70),
            ev.Saved(attempt=1, checkpoint="1-1", step=30, at=now - 20),
        ]
        if fails:
            story += [
                ev.Stopped(attempt=1, outcome="crashed", exit_code=1, why=why, usage=usage, at=now, **last),
                ev.Failed(why=f"it crashed once; the last time: {why}", hint=f"see `outlast logs {name}`", at=now),
            ]
        else:
            story += [ev.Finished(attempt=1, usage=usage, outputs=1, at=now, **last)]
        story += [ev.Released(attempt=1, cost_usd=0.001, seconds=80.0, at=now)]
        for number, event in enumerate(story):
            self.workspace.story(run).append_or_raise(event, nonce=f"{name}{number}")
        bucket = self.workspace.bucket
        rows = [{"step": step, "at": now - 70 + step, "loss": lr + 1 / step} for step in range(1, 38)]
        write_metrics(bucket, run, 1, 1, b"".join(json.dumps(row).encode() + b"\n" for row in rows))
        write_log(bucket, run, 1, 1, b"step 37\n" + (_TRACE.encode() if fails else b""))
        samples = [Sample(at=now - 60 + 5 * n, seconds=5.0, cpu=0.5, memory_bytes=10**9) for n in range(10)]
        write_usage(bucket, run, 1, 1, b"".join(map(line_of, samples)))
        bucket.put(f"runs/{run}/outputs/1/scores.csv", b"name,score\n")
        EndedRuns(self.workspace).add(record_of(run, fold(story), spec=spec))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    folder: Path = tmp_path_factory.mktemp("trained")
    home = Trained(folder)
    (folder / "home").mkdir()
    home.run("low", 0.01)
    home.run("high", 0.5)
    home.run("broken", 0.9, fails=True)
    yield home
    home.clean()


@pytest.fixture(scope="module")
def server(trained: Trained) -> Iterator[Served]:
    can_serve()
    served = Served(trained)
    yield served
    served.end()


@pytest.fixture
def look(server: Served, visits: Callable[[str], Visit]) -> Visit:
    return visits(server.link)


def shown(page: Any) -> list[str]:
    rows = page.locator(".ag-center-cols-container .ag-row:not(.ag-opacity-zero) [col-id=run]")
    return sorted(rows.all_inner_texts())


def filter_runs(page: Any, text: str, count: int) -> list[str]:
    page.get_by_label("Filter runs").fill(text)
    page.wait_for_function(f"document.getElementById('ol-count').textContent === '{count} shown'")
    return shown(page)


def test_conditions_on_parameters_metrics_state_and_owner(look: Visit) -> None:
    page = look.open()
    page.get_by_role("link", name="high", exact=True).wait_for()
    assert filter_runs(page, "lr>0.1", 2) == ["broken", "high"]
    assert filter_runs(page, "lr<=0.5 state:finished user:ada", 2) == ["high", "low"]
    assert filter_runs(page, "loss<0.2", 1) == ["low"]
    assert filter_runs(page, "state!=finished", 1) == ["broken"]
    assert filter_runs(page, "user:bob", 0) == []
    assert filter_runs(page, "valueerror", 1) == ["broken"], "words search the reason, too"
    assert "q=valueerror" in page.url


def test_an_ended_run_shows_its_last_step_not_the_one_of_its_checkpoint(look: Visit) -> None:
    page = look.open()
    progress = page.locator(".ag-row", has=page.get_by_role("link", name="low", exact=True)).locator("[col-id=step]")
    progress.get_by_text("37/40").wait_for()
    page = look.open("/run/low")
    page.get_by_text("37 of 40").wait_for()


def test_columns_of_parameters_and_metrics_are_chosen_sorted_and_stored_in_the_address(look: Visit) -> None:
    page = look.open()
    page.get_by_role("link", name="low", exact=True).wait_for()
    page.get_by_text("Columns", exact=True).click()
    page.get_by_label("lr", exact=True).check()
    page.get_by_label("loss (lowest)").check()
    page.get_by_role("columnheader", name="lr").click()
    page.wait_for_url("**sort=p%3Alr**")
    again = look.open(page.url.removeprefix(look.origin))
    again.get_by_role("columnheader", name="loss (lowest)").wait_for()
    first = again.locator('.ag-row[row-index="0"]')
    first.get_by_role("link", name="low", exact=True).wait_for()
    assert first.locator('[col-id="p:lr"]').inner_text() == "0.01"


def test_the_arrow_key_leads_from_the_filter_into_the_table(look: Visit) -> None:
    page = look.open()
    page.get_by_role("link", name="low", exact=True).wait_for()
    page.keyboard.press("/")
    page.keyboard.type("lr=0.01")
    page.get_by_text("1 shown").wait_for()
    page.keyboard.press("ArrowDown")
    page.wait_for_function("document.activeElement.getAttribute('col-id') === 'run'")
    page.keyboard.press("Enter")
    page.wait_for_url("**/run/low")


def test_a_view_is_saved_by_name(look: Visit) -> None:
    page = look.open("/?q=state%3Afinished")
    page.get_by_text("2 shown").wait_for()
    page.get_by_text("Views", exact=True).click()
    page.get_by_label("Name of this view").fill("good ones")
    page.get_by_role("button", name="Save").click()
    page.goto(look.origin + "/")
    page.get_by_text("3 shown").wait_for()
    page.get_by_text("Views", exact=True).click()
    page.get_by_role("link", name="good ones").click()
    page.get_by_text("2 shown").wait_for()


def test_selected_runs_are_compared_on_one_page(look: Visit) -> None:
    page = look.open()
    page.get_by_role("link", name="low", exact=True).wait_for()
    for name in ("low", "high"):
        page.locator(".ag-row", has=page.get_by_role("link", name=name, exact=True)).get_by_role("checkbox").check()
    page.get_by_text("2 runs selected").wait_for()
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url("**/compare?runs=**")
    page.get_by_role("heading", name="Compare runs").wait_for()
    assert page.locator(".ol-strong", has_text="0.01").count() >= 1
    page.get_by_role("img", name="loss, over steps").wait_for()


def test_what_went_wrong_is_above_the_fold_and_on_the_overview(look: Visit) -> None:
    page = look.open()
    page.get_by_label("Failed in the last 24 hours").get_by_text("ValueError: bad rate 0.9").wait_for()
    page.get_by_label("Failed in the last 24 hours").get_by_role("link", name="broken").click()
    lines = page.get_by_label("The last lines of its output")
    lines.get_by_text("Traceback (most recent call last)").wait_for()
    box = lines.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < 800, "the traceback is visible without scrolling"
    assert "`" not in page.locator("#main").inner_text(), "names are set as code, without backticks"


def test_what_a_run_used_of_its_machine(look: Visit) -> None:
    page = look.open("/run/low?tab=system")
    page.get_by_text("Attempt 1: CPU 50 % of 2, memory at most 1.0 GB of 4.0 GB").wait_for()
    page.get_by_role("img", name="CPU (%), over time").wait_for()
    page.get_by_role("img", name="Memory (GB), over time").wait_for()


def test_curves_are_smoothed_enlarged_shown_over_time_and_exported(look: Visit) -> None:
    page = look.open("/run/low?tab=metrics&smooth=0.9")
    page.get_by_text("last 0.03703 · lowest 0.03703 · highest 1.01").wait_for()
    page.get_by_role("button", name="Large chart of loss").click()
    page.wait_for_url("**large=loss**")
    page.get_by_role("button", name="Small chart of loss").wait_for()
    page.get_by_role("switch", name="Time").click()
    page.wait_for_url("**x=time**")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert lines[0] == "step,at,attempt,loss"
    assert len(lines) == 38


def test_all_outputs_and_the_log_of_all_attempts_are_downloads(look: Visit) -> None:
    page = look.open("/run/broken?tab=log")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    text = Path(download.value.path()).read_text()
    assert text.startswith("==== attempt 1: local-1 in local1-a, started 2")
    assert text.endswith(_TRACE)
    answer = page.request.get(f"{look.origin}/api/outputs.zip?runs=low,high")
    assert zipfile.ZipFile(io.BytesIO(answer.body())).namelist() == ["low/scores.csv", "high/scores.csv"]
    assert page.request.get(f"{look.origin}/api/outputs.zip?runs=nothing").status == 404


@pytest.mark.parametrize("width", _WIDTHS)
def test_no_table_is_cut(look: Visit, width: int) -> None:
    cut = """() => [...document.querySelectorAll(".q-table__middle, .ag-center-cols-viewport, .ol-scroll, body")]
        .filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.className)"""
    for path in ("/", "/cost", "/run/low?tab=checkpoints", "/run/low?tab=outputs", "/compare?runs=low,high"):
        page = look.open(path, width=width)
        page.wait_for_selector("#main")
        page.wait_for_load_state("networkidle")
        assert page.evaluate(cut) == [], path
        page.close()


@pytest.mark.full
def test_a_run_is_rerun_with_another_parameter_and_deleted(look: Visit, trained: Trained) -> None:
    page = look.open("/run/broken")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Back").click()
    page.get_by_role("button", name="Rerun").click()
    page.wait_for_url("**/new?run=broken")
    page.get_by_label("Price and odds").get_by_text("Spot $/hour").wait_for()
    assert page.get_by_label("lr", exact=True).input_value() == "0.9"
    page.get_by_label("lr", exact=True).fill("0.25")
    page.get_by_label("work: duration").fill("soon")
    page.get_by_text("[limits] work", exact=False).first.wait_for()
    page.get_by_label("work: duration").fill("1h")
    page.get_by_text("Simulated 200 times").wait_for()
    page.get_by_role("button", name="Start the run").click()
    page.wait_for_url("**/run/broken-*")
    (fresh,) = set(trained.workspace.runs()) - {"low", "high", "broken"}
    spec = trained.workspace.request(fresh).spec
    assert (spec.params, spec.limits.work_s, spec.limits.steps) == ({"lr": 0.25}, 3600.0, 40)
    trained.outlast("cancel", fresh)
    trained.run("doomed", 0.2)
    page = look.open()
    page.get_by_role("link", name="doomed", exact=True).wait_for()
    page.locator(".ag-row", has=page.get_by_role("link", name="doomed", exact=True)).get_by_role("checkbox").check()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete 1 run").click()
    page.get_by_role("link", name="doomed", exact=True).wait_for(state="detached")
    assert not trained.workspace.story("doomed").refresh().exists
    # Tests run in any order, and the others count the runs.
    eventually(
        lambda: trained.outlast("delete", fresh, "--yes").returncode == 0, within_s=120, what="the new run to go"
    )


def test_a_note_and_tags_are_written_on_the_page_and_found_by_the_filter(look: Visit) -> None:
    page = look.open("/run/high")
    page.get_by_role("button", name="Note").click()
    page.get_by_label("Tags, separated by spaces").fill("paper seed/3")
    page.get_by_label("Note", exact=True).fill("too noisy")
    page.get_by_role("button", name="Save").click()
    page.get_by_text("too noisy").wait_for()
    page.get_by_role("link", name="seed/3").click()
    page.get_by_text("1 shown").wait_for()
    assert shown(page) == ["high"]
