"""Volumes and databases in the browser."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outlast.records.resources import ResourceRecords
from outlast.ui.views.stores import StoreReader
from tests.support.dashboard import Lived, Served, Visit
from tests.support.home import Home

pytestmark = pytest.mark.timeout(300)


def test_volumes_and_databases_are_listed_with_state_and_cost(visit: Visit, lived: Lived) -> None:
    page = visit.open("/stores")
    row = page.get_by_label("Volumes").get_by_role("row").filter(has_text=lived.names.volume).first
    row.get_by_text("ready").wait_for()
    assert "10 GB" in row.inner_text()
    if lived.names.database:
        row = page.get_by_role("row").filter(has_text=lived.names.database)
        row.get_by_text("ready").wait_for()
        assert "postgres" in row.inner_text()


def test_no_password_of_a_database_is_among_what_is_shown(lived: Lived) -> None:
    if not lived.names.database:
        pytest.skip("there is no server of databases on this computer")
    url = lived.outlast("db", "url", lived.names.database)
    assert url.returncode == 0, url.stderr
    password = url.stdout.split("://")[1].split("@")[0].split(":")[1]
    assert len(password) > 8
    assert password not in repr(StoreReader(lived.workspace, lambda _: {"local": lived.cloud})())


def test_a_volume_comes_and_goes_live_and_one_half_made_says_what_to_do(
    empty: Home, serve: Callable[..., Served], visits: Callable[[str], Visit]
) -> None:
    page = visits(serve(empty).link).open("/stores")
    page.get_by_text("No volume yet.").wait_for()
    page.get_by_text("No database yet.").wait_for()
    records = ResourceRecords(empty.workspace, "volume")
    half = records.claim("half", cloud="local", who="ada", size_gb=3)
    row = page.get_by_role("row").filter(has_text="half")
    row.get_by_text("creating").wait_for()
    # What cannot be read may bill, and hides none of the others.
    empty.workspace.bucket.put("volumes/torn.json", b"{")
    empty.workspace.bucket.put("databases/torn.json", b"{")
    for kind in ("Volumes", "Databases"):
        torn = page.get_by_label(kind).get_by_role("row").filter(has_text="torn").first
        torn.get_by_text("damaged", exact=True).wait_for()
    row.get_by_text("creating").wait_for()
    empty.workspace.bucket.delete("volumes/torn.json")
    records.remove(half)
    page.get_by_text("No volume yet.").wait_for()
