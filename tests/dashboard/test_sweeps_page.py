"""The pages of sweeps: the list, and one with Optuna's plots, live while trials end."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from outlast.sweep.record import SweepStory
from outlast.sweep.state import best
from tests.support.dashboard import Lived, Served, Visit
from tests.support.home import Home

pytest.importorskip("optuna", reason="sweeps are chosen by Optuna")


def test_the_list_links_to_a_sweep_and_the_sweep_to_its_best_run(visit: Visit, lived: Lived) -> None:
    state = SweepStory(lived.workspace.bucket, lived.names.sweep).refresh()
    [leader] = best(state, ("min:loss",))
    page = visit.open("/sweeps")
    row = page.get_by_role("row").filter(has_text=lived.names.sweep)
    row.wait_for()
    ended = len(state.ended)
    assert f"{ended}/{ended}" in row.inner_text()
    assert f"{leader.values[0]:.6g}" in row.inner_text()
    row.get_by_role("link", name=lived.names.sweep, exact=True).click()
    page.get_by_role("heading", name=lived.names.sweep, exact=True).wait_for()
    trials = page.get_by_role("table").filter(has_text="depth")
    trials.get_by_role("row").nth(ended).wait_for()
    # The best trial comes first, with a label.
    first = trials.get_by_role("row").nth(1)
    assert "best" in first.inner_text()
    assert f"{leader.values[0]:.6g}" in first.inner_text()
    assert first.get_by_role("link", name=leader.run).get_attribute("href") == f"/run/{leader.run}"


@pytest.mark.full
def test_a_sweep_has_optunas_plots_and_parallel_coordinates(visit: Visit, lived: Lived) -> None:
    page = visit.open(f"/sweeps/{lived.names.sweep}")
    for name in ("history", "importance", "slice", "contour", "edf", "timeline"):
        page.wait_for_selector(f".ol-picture-{name} .main-svg")
    assert page.locator(".ol-picture-history .points path").count() >= 6
    page.wait_for_selector('[aria-label="Parallel coordinates"] canvas')


@pytest.mark.full
def test_the_filter_is_stored_in_the_url(visit: Visit, lived: Lived) -> None:
    ended = len(SweepStory(lived.workspace.bucket, lived.names.sweep).refresh().ended)
    page = visit.open(f"/sweeps/{lived.names.sweep}")
    page.get_by_role("table").get_by_role("row").nth(ended).wait_for()
    page.keyboard.press("/")
    page.keyboard.type("sgd")
    page.wait_for_url("**q=sgd")
    page.wait_for_function(f"document.querySelectorAll('.ol-qtable tbody tr').length < {ended}")
    count = page.locator(".ol-qtable tbody tr").count()
    other = visit.open(page.url.removeprefix(visit.origin))
    other.wait_for_function(f"document.querySelectorAll('.ol-qtable tbody tr').length === {count}")
    assert other.get_by_role("searchbox").input_value() == "sgd"


@pytest.fixture
def half(lived: Lived, empty: Home) -> tuple[Home, Callable[[], None]]:
    """Return the same sweep without its last events, and a function that adds them."""
    source = Path(lived.root) / "workspace" / "sweeps"
    here = Path(empty.root) / "workspace" / "sweeps"
    shutil.copytree(source, here)
    story = here / lived.names.sweep / "story"
    late = sorted(story.iterdir())[-3:]
    bodies = {path: path.read_bytes() for path in late}
    for path in late:
        path.unlink()

    def add_events() -> None:
        for path, body in bodies.items():
            path.write_bytes(body)

    return empty, add_events


@pytest.mark.full
def test_a_sweep_is_live_in_the_list_and_on_its_page(
    half: tuple[Home, Callable[[], None]],
    serve: Callable[..., Served],
    visits: Callable[[str], Visit],
    lived: Lived,
) -> None:
    home, add_events = half
    ended = len(SweepStory(lived.workspace.bucket, lived.names.sweep).refresh().ended)
    visit = visits(serve(home).link)
    listed, shown = visit.open("/sweeps"), visit.open(f"/sweeps/{lived.names.sweep}")
    listed.get_by_text("running", exact=True).wait_for()
    shown.get_by_text("running", exact=True).first.wait_for()
    assert f"{ended} of {ended}" not in shown.inner_text("#main")
    shown.get_by_text("no process", exact=True).wait_for()
    add_events()
    listed.get_by_text(f"{ended}/{ended}").wait_for()
    shown.get_by_text(f"{ended} of {ended}, 0 running").wait_for()
    listed.get_by_text("over", exact=True).wait_for()


def test_an_unknown_sweep_is_reported_with_a_link_to_the_list(visit: Visit) -> None:
    page = visit.open("/sweeps/census-s99")
    page.get_by_text("no sweep census-s99").wait_for()
    page.get_by_role("link", name="Back to the list").click()
    page.wait_for_url("**/sweeps")


@pytest.mark.full
def test_a_damaged_sweep_does_not_hide_the_others(
    half: tuple[Home, Callable[[], None]], serve: Callable[..., Served], visits: Callable[[str], Visit], lived: Lived
) -> None:
    home, _ = half
    broken = Path(home.root) / "workspace" / "sweeps" / "broken-s1"
    broken.mkdir()
    (broken / "sweep.json").write_text("{")
    page = visits(serve(home).link).open("/sweeps")
    page.get_by_role("row").filter(has_text="broken-s1").get_by_text("damaged").wait_for()
    page.get_by_role("row").filter(has_text=lived.names.sweep).wait_for()
