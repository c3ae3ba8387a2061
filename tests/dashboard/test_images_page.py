"""The pages of images: list, families, failed builds, one image with its recipe."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outlast.images.records import BuildFailure, ImageRecords
from outlast.ui.views.images import ImageReader
from tests.dashboard.lived import ATTACK
from tests.support.dashboard import Lived, Served, Visit
from tests.support.home import Home


def test_the_list_has_tests_and_cost_and_links_to_recipe_and_output(visit: Visit, lived: Lived) -> None:
    page = visit.open("/images")
    row = page.get_by_role("row").filter(has_text=lived.names.image)
    row.get_by_text("current").wait_for()
    text = row.inner_text()
    assert "1 passed" in text
    assert "$" in text
    row.get_by_role("link").click()
    page.get_by_role("heading", name="Recipe").wait_for()
    assert "echo it works" in page.inner_text("#main")
    page.get_by_role("heading", name="Build output").wait_for()
    assert "is the newest image of `env`" in page.inner_text("#main")


@pytest.mark.full
def test_a_failed_build_appears_live_with_its_step_and_reason_as_text(
    empty: Home, serve: Callable[..., Served], visits: Callable[[str], Visit]
) -> None:
    page = visits(serve(empty).link).open("/images")
    page.get_by_role("row").filter(has_text="base").wait_for()
    failure = BuildFailure(
        why=f"no such package {ATTACK}", hint="correct the recipe", step="packages", who="ada", at=1.79e9
    )
    ImageRecords(empty.workspace).write_failure("feed" * 8, failure)
    page.get_by_text(f"no such package {ATTACK}").wait_for()
    page.get_by_text("packages", exact=True).wait_for()
    page.get_by_text("correct the recipe").wait_for()


def test_an_unknown_image_is_reported(visit: Visit) -> None:
    visit.open("/images/local/nothing").get_by_text("image nothing does not exist on local").wait_for()


def test_the_page_shows_the_records(lived: Lived) -> None:
    reader = ImageReader(lived.workspace, lambda _: {"local": lived.cloud})
    found = reader()
    assert found.unreachable == {}
    assert found.failed == ()
    row = next(row for row in found.rows if row.name == lived.names.image)
    result = ImageRecords(lived.workspace).result(row.digest)
    assert result is not None
    assert (row.state, row.family, row.cost_usd) == ("current", "env", result.cost_usd)
    one = reader.one("local", lived.names.image)
    assert ("test", "echo it works") in one.recipe
    assert one.script.strip() == "true"
