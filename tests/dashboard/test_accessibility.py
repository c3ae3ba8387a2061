"""Accessibility of every page in both themes, checked with axe-core."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.dashboard import Lived, Visit


def _violations(page: Any) -> list[str]:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    found = axe.Axe().run(page).response["violations"]
    return [f"{one['id']}: {node['html'][:160]}" for one in found for node in one["nodes"]]


def _paths(lived: Lived) -> list[str]:
    names = lived.names
    tabs = [f"/run/{names.demo}?tab={tab}" for tab in ("log", "metrics", "system", "checkpoints", "outputs", "spec")]
    return [
        f"/compare?runs={names.demo},{names.failed}",
        *("/", "/sweeps", "/clusters", "/images", "/resources", "/cost", "/drills"),
        *(f"/run/{names.demo}", f"/run/{names.failed}", *tabs),
        *(f"/sweeps/{names.sweep}", f"/clusters/{names.cluster}", f"/images/local/{names.image}"),
        f"/drills/{names.drill}",
    ]


@pytest.mark.full
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_no_page_has_an_accessibility_violation(visit: Visit, lived: Lived, dark: bool) -> None:
    wrong: dict[str, list[str]] = {}
    for path in _paths(lived):
        page = visit.open(path, dark=dark)
        page.wait_for_selector(".ol-header")
        page.wait_for_selector("h1", state="attached")
        page.wait_for_load_state("networkidle")
        if found := _violations(page):
            wrong[path] = found
        page.close()
    assert not wrong, "\n".join(f"{path}\n  " + "\n  ".join(found) for path, found in wrong.items())
