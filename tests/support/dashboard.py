"""Fixtures of the dashboard tests: Chromium, a workspace with history, and `outlast ui` as a separate process."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from tests.dashboard.lived import Life, Names
from tests.dashboard.quiet import Quiet
from tests.support.cluster import Bench
from tests.support.home import OUTLAST, Home

# The headless shell uses a fifth of the CPU time of the full browser.
CHROMIUM = next(filter(os.path.exists, ("/usr/bin/chromium-headless-shell", "/usr/bin/chromium")), "")
SWITCHES = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
# Generous for busy computers; on a quiet one every wait takes less than a tenth of it.
PATIENCE_MS = 60_000
_LINK = re.compile(r"http://\S+")


# The browser


# Not session-scoped: Playwright keeps an event loop in this thread, which other tests may not expect.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright")
    pytest.importorskip("nicegui", reason="needs NiceGUI")
    if not CHROMIUM:
        pytest.skip("needs the Debian package chromium-headless-shell")
    with playwright.sync_playwright() as driver, chromium(driver) as browser:
        yield browser


@contextmanager
def chromium(driver: Any) -> Iterator[Browser]:
    quiet = Quiet(CHROMIUM)
    try:
        browser = driver.chromium.launch(executable_path=quiet.program, args=SWITCHES)
        yield Browser(browser, quiet)
        browser.close()
    finally:
        quiet.end()


class Browser:
    """Chromium, with access to the servers."""

    def __init__(self, chromium: Any, quiet: Quiet) -> None:
        self.chromium = chromium
        self.quiet = quiet
        # Link of a server → context with its cookie and cached scripts.
        self.known: dict[str, Any] = {}

    def forget(self, link: str) -> None:
        if link in self.known:
            self.known.pop(link).close()

    def new_context(self, link: str, **options: Any) -> Any:
        self.quiet.carry(urlsplit(link).port or 80)
        return self.chromium.new_context(**options)


class Visit:
    """Pages of one server in one browser. Fails on requests to other hosts and on errors in the browser."""

    def __init__(self, browser: Browser, link: str) -> None:
        self.browser = browser
        self.link = link
        self.pages: list[Any] = []
        self.strangers: list[str] = []
        self.errors: list[str] = []

    @property
    def origin(self) -> str:
        parts = urlsplit(self.link)
        return f"{parts.scheme}://{parts.netloc}"

    def open(self, path: str = "/", *, width: int = 1280, height: int = 800, dark: bool = False) -> Any:
        """Open a page after logging in with the link."""
        fresh = self.link not in self.browser.known
        if fresh:
            self.browser.known[self.link] = self.browser.new_context(self.link)
        context = self.browser.known[self.link]
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme="dark" if dark else "light")
        self.pages.append(page)
        page.on("request", lambda request: self._watch(request.url))
        page.on("websocket", lambda socket: self._watch(socket.url))
        page.on("console", lambda message: self._hear(message.type, message.text))
        page.on("pageerror", lambda problem: self._complain(str(problem)))
        if fresh:
            page.goto(self.link)
            # The link sets the cookie, and the response forwards to the overview.
            page.wait_for_url(self.origin + "/", wait_until="commit")
        if not fresh or path != "/":
            page.goto(self.origin + path)
        return page

    def _watch(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("data", "blob") and parts.netloc != urlsplit(self.link).netloc:
            self.strangers.append(url)

    def _complain(self, problem: str) -> None:
        # A bug of NiceGUI: a chart that is removed before its script has loaded.
        if not ("reading 'dispose'" in problem and "echart.js" in problem):
            self.errors.append(problem)

    def _hear(self, kind: str, text: str) -> None:
        if kind == "error":
            self._complain(text)

    def end(self) -> None:
        open_ones = [page for page in self.pages if not page.is_closed()]
        hacked = [page.url for page in open_ones if page.evaluate("window.hacked")]
        for page in open_ones:
            page.evaluate("localStorage.clear()")
            page.close()
        assert not hacked, f"text of a user was interpreted as markup: {hacked}"
        assert not self.strangers, f"requests to other hosts: {self.strangers}"
        assert not self.errors, f"errors in the browser: {self.errors}"


@pytest.fixture
def visit(browser: Browser, served: Served) -> Iterator[Visit]:
    """Visit the workspace with history."""
    visit = Visit(browser, served.link)
    yield visit
    visit.end()


@pytest.fixture
def visits(browser: Browser) -> Iterator[Callable[[str], Visit]]:
    """Visit any other server."""
    made: list[Visit] = []

    def begin(link: str) -> Visit:
        made.append(Visit(browser, link))
        return made[-1]

    yield begin
    for visit in made:
        visit.end()
        browser.forget(visit.link)


# The server


class Served:
    """`outlast ui` on a workspace, on a free port."""

    def __init__(self, home: Home | Bench, *argv: str) -> None:
        self.home = home
        self.printed: list[str] = []
        self.process = subprocess.Popen(
            [OUTLAST, "ui", "--port", "0", *argv],
            cwd=home.project,
            env=home.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.link = self._link()

    def _link(self) -> str:
        """Return the link, which is printed once the server accepts connections."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed.append(line)
            if found := _LINK.search(line):
                return found.group()
        _, errors = self.process.communicate(timeout=600)
        raise AssertionError(f"`outlast ui` printed no link: {''.join(self.printed)}{errors}")

    def end(self) -> str:
        """Stop the server. Return its output."""
        self.process.terminate()
        try:
            output, errors = self.process.communicate(timeout=600)
        except subprocess.TimeoutExpired:
            self.process.kill()
            output, errors = self.process.communicate()
        assert "Traceback" not in errors, errors
        return output + errors


def can_serve() -> None:
    pytest.importorskip("nicegui", reason="needs NiceGUI")


@pytest.fixture(scope="package")
def served(lived: Lived) -> Iterator[Served]:
    can_serve()
    served = Served(lived)
    yield served
    served.end()


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Start servers on other homes."""
    can_serve()
    made: list[Served] = []

    def begin(home: Home | Bench, *argv: str) -> Served:
        made.append(Served(home, *argv))
        return made[-1]

    yield begin
    for served in made:
        served.end()


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Home]:
    """Return an empty workspace."""
    home = Home(tmp_path)
    (tmp_path / "home").mkdir()
    yield home
    home.clean()


# The workspace


class Lived(Home):
    """A home with a workspace that has history, and the names of its contents."""

    names: Names

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.environment |= {"OUTLAST_LOCAL_MODE": "plain", "LOGNAME": "ada"}
        self.environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), self.environment["PATH"]])

    def clean(self) -> None:
        for database in self.cloud.databases.list_all():
            self.cloud.databases.delete(database.name)
        super().clean()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lived]:
    """Create the workspace in the first of the parallel test processes; the last one deletes it.

    LIVED names a folder with an existing one, as created by `make pictures KEEP=…`, for work on the dashboard.
    """
    if given := os.environ.get("LIVED"):
        yield _found(Path(given))
        return
    if shutil.which("ssh") is None or shutil.which("sshd", path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None:
        pytest.skip("images are built over ssh: needs the Debian packages openssh-client and openssh-server")
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    users = base / "lived.users"
    with _locked(base / "lived.lock"):
        count = int(users.read_text()) if users.exists() else 0
        home = _made(base / "lived") if not count else _found(base / "lived")
        users.write_text(str(count + 1))
    yield home
    with _locked(base / "lived.lock"):
        count = int(users.read_text()) - 1
        users.write_text(str(count))
        if not count:
            home.clean()
            shutil.rmtree(home.root, ignore_errors=True)


def _made(root: Path) -> Lived:
    home = Lived(root)
    try:
        home.names = Life(home, epochs=9, trials=6, steps=15, preemptions=1).lead()
    except BaseException:
        home.clean()
        raise
    (home.root / "names.json").write_bytes(msgspec.json.encode(home.names))
    return home


def _found(root: Path) -> Lived:
    home = Lived(root)
    home.names = msgspec.json.decode((root / "names.json").read_bytes(), type=Names)
    return home
