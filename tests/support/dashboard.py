"""A real browser, a workspace that has really lived, and `outlast ui` on it as a process of its own."""

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

# The one without windows takes a fifth of the processor: the other one keeps the parts of its window ready.
CHROMIUM = next(filter(os.path.exists, ("/usr/bin/chromium-headless-shell", "/usr/bin/chromium")), "")
SWITCHES = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
# On a computer that also does other things; nothing that is waited for takes a tenth of it when it is left alone.
PATIENCE_MS = 60_000
_LINK = re.compile(r"http://\S+")


# The browser


# Not for the session: while it lives, Playwright has an event loop in this thread, which other tests may not expect.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright, which drives the browser, is missing")
    pytest.importorskip("nicegui", reason="NiceGUI, which the page is made with, is missing")
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
    """Chromium, and its way to the servers."""

    def __init__(self, chromium: Any, quiet: Quiet) -> None:
        self.chromium = chromium
        self.quiet = quiet
        # Somebody who has come by the link of a server, with its cookie and what the browser keeps of its scripts.
        self.known: dict[str, Any] = {}

    def forget(self, link: str) -> None:
        if link in self.known:
            self.known.pop(link).close()

    def new_context(self, link: str, **options: Any) -> Any:
        self.quiet.carry(urlsplit(link).port or 80)
        return self.chromium.new_context(**options)


class Visit:
    """Pages of one server in one browser, watched: no request goes anywhere else, and nothing is an error."""

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
        """A page at a path, by somebody who came by the link."""
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
            # The link earns the cookie, and a page of its own leads on from there.
            page.wait_for_url(self.origin + "/", wait_until="commit")
        if not fresh or path != "/":
            page.goto(self.origin + path)
        return page

    def _watch(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("data", "blob") and parts.netloc != urlsplit(self.link).netloc:
            self.strangers.append(url)

    def _complain(self, problem: str) -> None:
        # The library's own: a chart that is taken away before its script has come has nothing to take down.
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
        assert not hacked, f"somebody's words were obeyed as markup: {hacked}"
        assert not self.strangers, f"asked others: {self.strangers}"
        assert not self.errors, f"the browser complains: {self.errors}"


@pytest.fixture
def visit(browser: Browser, served: Served) -> Iterator[Visit]:
    """The workspace that has lived, in the browser."""
    visit = Visit(browser, served.link)
    yield visit
    visit.end()


@pytest.fixture
def visits(browser: Browser) -> Iterator[Callable[[str], Visit]]:
    """Any other server, in the browser."""
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
        self.said: list[str] = []
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
        """The link is the first thing that it prints, and it prints it when somebody can follow it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            if found := _LINK.search(line):
                return found.group()
        _, told = self.process.communicate(timeout=10)
        raise AssertionError(f"`outlast ui` printed no link: {''.join(self.said)}{told}")

    def end(self) -> str:
        """What it said on its way out."""
        self.process.terminate()
        try:
            output, told = self.process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            output, told = self.process.communicate()
        assert "Traceback" not in told, told
        return output + told


def can_serve() -> None:
    pytest.importorskip("nicegui", reason="NiceGUI, which the page is made with, is missing")


@pytest.fixture(scope="package")
def served(lived: Lived) -> Iterator[Served]:
    can_serve()
    served = Served(lived)
    yield served
    served.end()


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Start a server on any other home."""
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
    """A workspace in which nothing has happened yet."""
    home = Home(tmp_path)
    (tmp_path / "home").mkdir()
    yield home
    home.clean()


# The workspace


class Lived(Home):
    """A home whose workspace has lived, and the names of what is in it."""

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
    """Made once, whoever of the processes that test side by side asks first; the last one to leave tidies up.
    LIVED names one that is left where it is, as `make pictures KEEP=…` makes it, for whoever works on a page."""
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
