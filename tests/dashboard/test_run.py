"""A run's page: its live story, tabs and buttons, and escaping of markup."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from outlast.runs import metrics
from outlast.runs.logs import write_piece
from tests.dashboard.lived import ATTACK
from tests.support.dashboard import Lived, Served, Visit
from tests.support.home import COUNTER, Home


def tab(page: Any, name: str) -> Any:
    return page.get_by_role("tab", name=name)


@pytest.mark.full
def test_every_tab_shows_an_ended_run(visit: Visit, lived: Lived) -> None:
    run = lived.names.drill
    page = visit.open(f"/run/{run}")
    page.get_by_role("heading", name=run, exact=True).wait_for()
    page.get_by_label("Story", exact=True).get_by_text("resumed from checkpoint").first.wait_for()
    page.get_by_label("Story", exact=True).get_by_text("lost: its machine is stopped").first.wait_for()
    page.get_by_role("img", name="Timeline of").locator("canvas").wait_for()
    page.get_by_label("Cost by cause").get_by_text("lost").first.wait_for()
    assert page.get_by_role("button", name="Cancel").count() == 0, "an ended run cannot be cancelled"
    tab(page, "Checkpoints").click()
    page.get_by_label("Checkpoints").get_by_role("cell").first.click()
    page.get_by_role("link", name="Download step").wait_for()
    page.keyboard.press("Escape")
    tab(page, "Outputs").click()
    page.get_by_role("button", name="Preview scores.csv").click()
    page.get_by_role("cell", name="accuracy").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Preview weights.png").click()
    page.wait_for_function("() => document.querySelector('img[alt=\"weights.png\"]')?.naturalWidth === 96")
    assert "file=weights.png" in page.url
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Preview notes.txt").click()
    page.locator(".ol-dialog").get_by_text(ATTACK).wait_for()
    page.keyboard.press("Escape")
    tab(page, "Spec and code").click()
    page.get_by_text("python train.py").first.wait_for()
    page.get_by_role("combobox", name="Differences from").click()
    page.get_by_role("option", name=lived.names.undisturbed).click()
    page.get_by_text(f"The code is the same as in {lived.names.undisturbed}").wait_for()


def test_a_download_is_the_file(visit: Visit, lived: Lived) -> None:
    page = visit.open(f"/run/{lived.names.undisturbed}?tab=outputs")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download scores.csv").click()
    assert "accuracy" in download.value.path().read_text()


def test_an_unknown_run_is_reported(visit: Visit) -> None:
    page = visit.open("/run/nowhere-9")
    page.get_by_text("no run nowhere-9").wait_for()
    page.get_by_role("link", name="All runs").wait_for()


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """Return a home with a long-running run under a supervisor."""
    home = Home(tmp_path_factory.mktemp("counting"))
    home.environment["OUTLAST_LOCAL_MODE"] = "plain"
    (home.root / "home").mkdir()
    home.write("count.py", COUNTER)
    argv = [
        "--name",
        "count",
        "--checkpoint",
        "kept",
        "--checkpoint-every",
        "200ms",
        "--",
        "python3",
        "count.py",
        "9999",
        "0.1",
    ]
    try:
        answer = home.outlast("submit", *argv)
        assert answer.returncode == 0, answer.stderr
        home.until(lambda: home.state("count-1").checkpoints, "a checkpoint", within_s=90.0)
        yield home
    finally:
        home.clean()


def test_preempting_cancelling_and_rerunning_from_the_page_appear_live(
    counting: Home, serve: Callable[..., Served], visits: Callable[[str], Visit]
) -> None:
    served = serve(counting)
    visit = visits(served.link)
    page, log = visit.open("/run/count-1"), visit.open("/run/count-1?tab=log")
    log.get_by_label("Output").get_by_text("count 3", exact=True).wait_for()
    page.get_by_role("button", name="Preempt").click()
    page.get_by_text("loses the work since then").wait_for()
    page.get_by_role("button", name="Back").click()
    assert len(counting.state("count-1").attempts) == 1
    page.get_by_role("button", name="Preempt").click()
    page.get_by_role("button", name="With notice").click()
    page.get_by_text("preempted attempt 1").wait_for()
    page.get_by_text("attempt 1: notice").wait_for()
    page.get_by_text("attempt 2: started, resumed from checkpoint").wait_for()
    page.locator(".ol-run-head .ol-pill").get_by_text("running").wait_for()
    # A followed log continues with the running attempt.
    log.get_by_label("Output").get_by_text("resumed at").wait_for()
    assert log.get_by_label("Attempt").input_value() == "2"
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("button", name="Cancel the run").click()
    page.locator(".ol-run-head .ol-pill").get_by_text("cancelled").wait_for()
    counting.until(lambda: counting.state("count-1").ending == "cancelled", "the end")
    page.get_by_role("button", name="Cancel", exact=True).wait_for(state="hidden")
    page.get_by_role("button", name="Rerun").click()
    page.get_by_role("button", name="Start the run").click()
    page.wait_for_url("**/run/count-2")
    counting.until(lambda: counting.state("count-2").attempts, "the second run")
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("button", name="Cancel the run").click()
    counting.until(lambda: counting.state("count-2").ending == "cancelled", "its end")


def test_pull_copies_the_outputs_as_the_command_does(lived: Lived, visit: Visit) -> None:
    page = visit.open(f"/run/{lived.names.undisturbed}")
    page.get_by_role("button", name="Pull").click()
    page.get_by_text("files in").wait_for()
    pulled = lived.project / "outputs" / lived.names.undisturbed
    assert sorted(path.name for path in pulled.iterdir()) == ["notes.txt", "scores.csv", "weights.png"]


LINE = b"%07d \x1b[32msome\x1b[0m words that a program prints all day long, in every step\n"


@pytest.mark.full
def test_a_long_log_is_fetched_in_windows(visit: Visit, lived: Lived) -> None:
    """Append 16 MB to the log of an ended run, of which the browser fetches some kilobytes."""
    run, bucket = lived.names.failed, lived.workspace.bucket
    number = len(list(bucket.list(f"runs/{run}/logs/1/")))
    lines = iter(range(10**9))
    for piece in range(250):
        body = b"".join(LINE % next(lines) for _ in range(900))
        if piece == 100:
            body += f"a needle {ATTACK}\n\u202emirrored\n".encode()
        write_piece(bucket, run, 1, number + 1 + piece, body)
    page = visit.open(f"/run/{run}?tab=log")
    page.get_by_label("Output").get_by_text("0224999 some words").wait_for()
    assert page.evaluate("document.querySelectorAll('.ol-line').length") < 5000
    page.get_by_label("Search the log").fill("NEEDLE")
    page.get_by_label("Lines found").get_by_text(ATTACK).last.click()
    page.get_by_label("Output").get_by_text("a needle").wait_for()
    page.get_by_label("Output").get_by_text("0090899 some words").wait_for()
    page.get_by_label("Output").get_by_text(r"\u202emirrored").wait_for()
    assert "q=NEEDLE" in page.url
    again = visit.open(page.url.removeprefix(visit.origin))
    again.get_by_label("Output").get_by_text("a needle").wait_for()
    again.get_by_role("button", name="Follow").click()
    again.get_by_label("Output").get_by_text("0224999 some words").wait_for()
    # A click during a request takes effect, and the late response is not shown.
    late: list[Any] = []
    again.route("**/api/log/**end=**", lambda route: late.append(route))
    again.get_by_label("Lines found").get_by_text(ATTACK).last.click()
    again.get_by_label("Output").get_by_text("a needle").wait_for()
    waited = time.monotonic() + 30
    while not late and time.monotonic() < waited:
        again.wait_for_timeout(20)
    assert late, "the lines above are requested"
    again.get_by_role("button", name="Follow").click()
    late.pop().continue_()
    again.get_by_label("Output").get_by_text("0224999 some words").wait_for()
    assert again.get_by_label("Output").get_by_text("a needle").count() == 0
    assert "at=" not in again.url


@pytest.mark.full
def test_following_reaches_the_end_of_a_log_whose_lines_wrap(visit: Visit, lived: Lived) -> None:
    run, bucket = lived.names.cancelled, lived.workspace.bucket
    number = len(list(bucket.list(f"runs/{run}/logs/1/")))
    wide = b"".join(b"%04d %s\n" % (line, b"words that wrap " * (line % 90)) for line in range(400))
    write_piece(bucket, run, 1, number + 1, wide)
    page = visit.open(f"/run/{run}?tab=log")
    page.get_by_label("Output").get_by_text("0399 words").wait_for()
    page.wait_for_function(
        "(() => { const b = document.getElementById('ol-log');"
        " return b.scrollHeight - b.scrollTop - b.clientHeight < 2; })()"
    )


@pytest.mark.full
def test_scrolling_through_a_log_shows_each_line_once(visit: Visit, lived: Lived) -> None:
    """Scroll through more lines than the page keeps: removed lines return."""
    run, bucket = lived.names.undisturbed, lived.workspace.bucket
    number = len(list(bucket.list(f"runs/{run}/logs/1/")))
    for piece in range(12):
        body = b"".join(LINE % line for line in range(900 * piece, 900 * (piece + 1)))
        write_piece(bucket, run, 1, number + 1 + piece, body)
    page = visit.open(f"/run/{run}?tab=log")
    output = page.get_by_label("Output")
    output.get_by_text("0010799 some words").wait_for()
    for at, wanted in ((0, "0004000"), (10**9, "0009000"), (0, "0005000")):
        waited = time.monotonic() + 60
        while not output.get_by_text(f"{wanted} some words").count() and time.monotonic() < waited:
            output.evaluate(f"box => box.scrollTop = {at} || 1")
            output.evaluate(f"box => box.scrollTop = {at}")
            page.wait_for_timeout(50)
        assert output.get_by_text(f"{wanted} some words").count() == 1
        lines = page.evaluate("[...document.querySelectorAll('#ol-lines .ol-line')].map(e => parseInt(e.textContent))")
        assert lines == list(range(lines[0], lines[0] + len(lines)))
        assert len(lines) <= 3700


@pytest.mark.full
def test_metrics_are_drawn_live_with_other_runs_and_their_names_are_escaped(visit: Visit, lived: Lived) -> None:
    # Runs with one attempt: repeated steps of later attempts are not drawn twice.
    run, other, bucket = lived.names.undisturbed, lived.names.failed, lived.workspace.bucket
    first = len(list(bucket.list(f"runs/{run}/metrics/1/"))) + 1
    evil = f"{ATTACK} {first}"

    def log(name: str, number: int, steps: range) -> None:
        rows = [metrics.Row(s, time.time(), {evil: 1.0 / (s + 1), ":formatter": 2.0 + s, "loss": 3.0}) for s in steps]
        metrics.write_piece(bucket, name, 1, number, b"".join(map(metrics.line_of, rows)))

    log(run, first, range(50))
    of_other = len(list(bucket.list(f"runs/{other}/metrics/1/"))) + 1
    log(other, of_other, range(30))
    page = visit.open(f"/run/{run}?tab=metrics&with={other}&scale=log")
    page.get_by_role("heading", name=evil, exact=True).wait_for()
    page.get_by_role("heading", name=":formatter", exact=True).wait_for()
    series = """(label) => {
        const charts = [...document.querySelectorAll('.nicegui-echart')];
        const chart = charts.find(e => e.getAttribute('aria-label') === label);
        const vue = chart && getElement(Number(chart.id.slice(1)));
        return vue?.chart?.getOption()?.series.map(s => [s.name, s.data.length]) ?? [];
    }"""
    label = f"{evil}, over steps"
    page.wait_for_function(
        f'(label) => JSON.stringify(({series})(label)) === \'[["{run}",50],["{other}",30]]\'', arg=label
    )
    log(run, first + 1, range(50, 70))
    page.wait_for_function(f"(label) => ({series})(label)[0][1] === 70", arg=label)
    log(other, of_other + 1, range(30, 45))
    page.wait_for_function(f"(label) => ({series})(label)[1][1] === 45", arg=label)
    # NiceGUI cannot remove a chart whose script has not loaded yet.
    drawn = "[...document.querySelectorAll('.nicegui-echart')].every(e => getElement(Number(e.id.slice(1)))?.chart)"
    page.wait_for_function(f"() => {drawn}")
    page.get_by_label("Metric", exact=True).fill("loss")
    page.get_by_role("heading", name=evil, exact=True).wait_for(state="detached")
    assert "metric=loss" in page.url
