"""The login with a password, typed into a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.dashboard import PATIENCE_MS, Browser, Served
from tests.support.home import Home
from tests.support.ports import free_port

PASSWORD = "correct horse"


@pytest.fixture
def secret(tmp_path: Path) -> str:
    path = tmp_path / "secret"
    path.write_text(f"{PASSWORD}\n")
    return str(path)


@pytest.fixture
def page(browser: Browser) -> Iterator[Any]:
    context = browser.chromium.new_context()
    context.set_default_timeout(PATIENCE_MS)
    yield context.new_page()
    context.close()


def _open(browser: Browser, page: Any, served: Served, path: str = "/") -> None:
    parts = urlsplit(served.link)
    browser.quiet.carry(parts.port or 80)
    page.goto(f"{parts.scheme}://{parts.netloc}{path}")


def _log_in(page: Any, password: str) -> None:
    page.fill("input[name=password]", password)
    page.click("button")


def test_the_login_opens_the_requested_page(
    browser: Browser, page: Any, empty: Home, serve: Callable[..., Served], secret: str
) -> None:
    served = serve(empty, "--no-open", "--password-file", secret)
    _open(browser, page, served, "/cost?days=7")
    _log_in(page, "a wrong password")
    page.wait_for_selector("text=Wrong password.")
    _log_in(page, PASSWORD)
    page.wait_for_selector(".ol-header")
    assert urlsplit(page.url).path == "/cost"
    assert urlsplit(page.url).query == "days=7"


@pytest.mark.full
def test_a_kept_login_survives_a_restart_of_the_server(
    browser: Browser, page: Any, empty: Home, serve: Callable[..., Served], secret: str
) -> None:
    argv = ("--no-open", "--password-file", secret, "--keep-logins", "--port", str(free_port()))
    first = serve(empty, *argv)
    _open(browser, page, first)
    _log_in(page, PASSWORD)
    page.wait_for_selector(".ol-header")
    # An open page reloads itself when the server is back, which would interrupt our own navigation.
    page.goto("about:blank")
    first.end()
    second = serve(empty, *argv)
    _open(browser, page, second)
    page.wait_for_selector(".ol-header")
    page.goto("about:blank")
    second.end()
    Path(secret).write_text("another password\n")
    third = serve(empty, *argv)
    _open(browser, page, third)
    page.wait_for_selector("input[name=password]")


def test_kept_logins_require_a_password(empty: Home) -> None:
    answer = empty.outlast("ui", "--keep-logins", "--no-open", "--port", "0")
    assert answer.returncode == 2
    assert "--password-file" in answer.stderr
