"""Properties of every page but the run's: phone layout, dark mode, keys, names of controls, empty places."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.dashboard import Lived, Served, Visit
from tests.support.home import Home

PAGES = ("/sweeps", "/clusters", "/images", "/resources", "/cost", "/drills")
# Screen readers need a name for every control.
NAMELESS = """() => [...document.querySelectorAll('button, input, select, a, [role=button]')].filter(e =>
  e.offsetParent !== null && !(e.getAttribute('aria-label') || e.innerText.trim() || e.labels?.length || e.title ||
  e.closest('[aria-label]') && e.tagName === 'INPUT')).map(e => e.outerHTML.slice(0, 200))"""


def pages_of(lived: Lived) -> list[str]:
    names = lived.names
    ones = [f"/sweeps/{names.sweep}", f"/clusters/{names.cluster}", f"/drills/{names.drill}"]
    return [*PAGES, *ones, f"/images/local/{names.image}"]


def test_every_page_fits_a_phone_and_names_its_controls(visit: Visit, lived: Lived) -> None:
    page = visit.open("/sweeps", width=390, height=844)
    for path in pages_of(lived):
        page.goto(visit.origin + path)
        page.wait_for_selector("main section")
        page.wait_for_function("!document.querySelector('main').innerText.includes('…\\n')")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
        assert page.evaluate(NAMELESS) == [], path


@pytest.mark.full
def test_every_page_has_a_dark_mode(visit: Visit) -> None:
    page = visit.open("/sweeps", dark=True)
    for path in PAGES:
        page.goto(visit.origin + path)
        page.wait_for_selector("body.body--dark")
        light = (
            "getComputedStyle(document.querySelector('main section, main .ol-pile')).color.match(/\\d+/g).map(Number)"
        )
        page.wait_for_selector("main section")
        assert min(page.evaluate(light)) > 150, path


@pytest.mark.full
def test_every_page_is_reached_by_keys(visit: Visit) -> None:
    page = visit.open("/")
    for key, path in {
        "s": "/sweeps",
        "c": "/clusters",
        "i": "/images",
        "v": "/resources",
        "m": "/cost",
        "d": "/drills",
    }.items():
        page.wait_for_selector("main section")
        page.keyboard.press("g")
        page.keyboard.press(key)
        page.wait_for_url(f"**{path}")


@pytest.mark.full
def test_every_empty_page_names_the_command_that_fills_it(
    empty: Home, serve: Callable[..., Served], visits: Callable[[str], Visit]
) -> None:
    page = visits(serve(empty).link).open("/")
    expected = {
        "/sweeps": ("No sweeps yet.", "outlast sweep"),
        "/clusters": ("No clusters.", "outlast cluster up"),
        "/resources": ("No volumes yet.", "outlast volume create"),
        "/cost": ("No spending in this period.", "outlast limits"),
        "/drills": ("No drills yet.", "outlast drill"),
    }
    for path, (nothing, command) in expected.items():
        page.goto(visits_origin(page) + path)
        page.get_by_text(nothing).wait_for()
        page.get_by_text(command).first.wait_for()


def visits_origin(page: object) -> str:
    url = str(getattr(page, "url", ""))
    return "/".join(url.split("/")[:3])
