"""The page of volumes and databases."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outlast.records.resources import ResourceRecords
from outlast.ui.views.resources import ResourceReader
from tests.support.dashboard import Lived, Served, Visit
from tests.support.home import Home


def test_volumes_and_databases_are_listed_with_state_and_cost(visit: Visit, lived: Lived) -> None:
    page = visit.open("/resources")
    row = page.get_by_label("Volumes").get_by_role("row").filter(has_text=lived.names.volume).first
    row.get_by_text("ready").wait_for()
    assert "10 GB" in row.inner_text()
    if lived.names.database:
        row = page.get_by_role("row").filter(has_text=lived.names.database)
        row.get_by_text("ready").wait_for()
        assert "postgres" in row.inner_text()


def test_no_password_of_a_database_is_shown(lived: Lived) -> None:
    if not lived.names.database:
        pytest.skip("needs a database server")
    url = lived.outlast("db", "url", lived.names.database)
    assert url.returncode == 0, url.stderr
    password = url.stdout.split("://")[1].split("@")[0].split(":")[1]
    assert len(password) > 8
    assert password not in repr(ResourceReader(lived.workspace, lambda _: {"local": lived.cloud})())


@pytest.mark.full
def test_volumes_appear_and_disappear_live(
    empty: Home, serve: Callable[..., Served], visits: Callable[[str], Visit]
) -> None:
    page = visits(serve(empty).link).open("/resources")
    page.get_by_text("No volumes yet.").wait_for()
    page.get_by_text("No databases yet.").wait_for()
    records = ResourceRecords(empty.workspace, "volume")
    half = records.claim("half", cloud="local", who="ada", size_gb=3)
    row = page.get_by_role("row").filter(has_text="half")
    row.get_by_text("creating").wait_for()
    # An unreadable record is shown, because its resource may be billed, and hides no other.
    empty.workspace.bucket.put("volumes/torn.json", b"{")
    empty.workspace.bucket.put("databases/torn.json", b"{")
    for kind in ("Volumes", "Databases"):
        torn = page.get_by_label(kind).get_by_role("row").filter(has_text="torn").first
        torn.get_by_text("damaged", exact=True).wait_for()
    row.get_by_text("creating").wait_for()
    empty.workspace.bucket.delete("volumes/torn.json")
    records.remove(half)
    page.get_by_text("No volumes yet.").wait_for()
