"""Access to the dashboard: only with the link, not from other sites, and no files outside the workspace."""

from __future__ import annotations

import http.client
import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from tests.support.dashboard import Browser, Lived, Served, Visit
from tests.support.home import Home

# All kinds of URLs: pages, files of NiceGUI, our files, data, and the websocket.
ADDRESSES = [
    *("/", "/run/demo-1", "/assets/page.js", "/api/log/demo-1/1", "/api/output/demo-1?path=x"),
    *("/_nicegui_ws/socket.io/?EIO=4&transport=polling", "/_nicegui/3.18.0/static/nicegui.js", "/nowhere"),
]


class DashboardClient:
    """An HTTP client with arbitrary headers."""

    def __init__(self, link: str) -> None:
        self.parts = urlsplit(link)
        self.cookie = ""

    def request(
        self, path: str, method: str = "GET", body: str = "", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.parts.port or 0, timeout=30)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookie:
            named["Cookie"] = self.cookie
        connection.request(method, path, body or None, named)
        answer = connection.getresponse()
        found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        connection.close()
        return found

    def follow_link(self) -> None:
        status, headers, _ = self.request(f"/?{self.parts.query}")
        assert status == 200
        self.cookie = headers["set-cookie"].partition(";")[0]


@pytest.fixture
def client(served: Served) -> DashboardClient:
    return DashboardClient(served.link)


@pytest.mark.parametrize("path", ADDRESSES)
def test_every_url_requires_the_link(client: DashboardClient, path: str) -> None:
    status, headers, body = client.request(path)
    assert status == 401
    assert "set-cookie" not in headers
    assert b"demo-1" not in body


def test_a_wrong_token_is_refused(client: DashboardClient) -> None:
    status, headers, _ = client.request("/?token=" + "x" * 32)
    assert status == 401
    assert "set-cookie" not in headers
    client.cookie = f"outlast-{client.parts.port}=" + "x" * 43
    assert client.request("/")[0] == 401


def test_the_link_sets_a_cookie_that_scripts_and_other_sites_cannot_use(client: DashboardClient) -> None:
    status, headers, body = client.request(f"/run/demo-1?tab=log&{client.parts.query}")
    assert status == 200
    assert "HttpOnly" in headers["set-cookie"]
    assert "SameSite=Strict" in headers["set-cookie"]
    assert b"/run/demo-1?tab=log" in body
    assert b"token" not in body, "the token stays out of the address bar"
    client.follow_link()
    status, headers, body = client.request("/")
    assert status == 200
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "connect-src 'self'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"


def test_the_link_redirects_to_no_other_host(client: DashboardClient) -> None:
    _, _, body = client.request(f"//evil.example/?{client.parts.query}")
    assert b"url=//" not in body
    assert b'href="//' not in body


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:8640", "", "[::1", "localhost#.evil.example"])
def test_foreign_host_names_are_refused_even_with_a_cookie(client: DashboardClient, host: str) -> None:
    client.follow_link()
    assert client.request("/", Host=host)[0] in (400, 421)


def test_requests_from_other_sites_are_refused_even_with_a_cookie(client: DashboardClient) -> None:
    client.follow_link()
    path = "/_nicegui_ws/socket.io/?EIO=4&transport=polling"
    assert client.request(path, "POST", "40", Origin="http://evil.example")[0] == 403
    assert client.request(path, "POST", "40", Origin="null")[0] == 403
    assert client.request(path, "POST", "40")[0] == 403
    assert client.request(path, Origin="http://localhost:1")[0] == 403
    # A browser counts another port of this computer as the same site; the dashboard does not.
    assert client.request("/api/log/demo-1/1", Sec_Fetch_Site="same-site", Sec_Fetch_Mode="no-cors")[0] == 403
    assert client.request("/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")[0] == 200


@pytest.fixture
def other_site() -> Iterator[str]:
    """Serve a foreign page on this computer."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<p>a foreign page</p>")

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://localhost:{server.server_port}/"
    server.shutdown()
    server.server_close()


_LISTEN = """(url) => new Promise(done => {
    const socket = new WebSocket(url);
    socket.onmessage = () => done("heard");
    socket.onclose = () => done("closed");
    setTimeout(() => done("nothing"), 20000);
})"""
_FETCH = "(url) => fetch(url, {credentials: 'include', mode: 'no-cors'}).then(a => a.type + a.status, () => 'refused')"


def test_another_site_in_the_same_browser_has_no_access(browser: Browser, served: Served, other_site: str) -> None:
    context = browser.new_context(served.link)
    browser.quiet.carry(urlsplit(other_site).port)
    try:
        page = context.new_page()
        page.goto(served.link)
        page.wait_for_selector(".ol-header")
        origin = f"localhost:{urlsplit(served.link).port}"
        socket = f"ws://{origin}/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
        assert page.evaluate(_LISTEN, socket) == "heard", "the dashboard's own page has access"
        stranger = context.new_page()
        stranger.goto(other_site)
        assert stranger.evaluate(_LISTEN, socket) == "closed"
        assert stranger.evaluate(_FETCH, f"http://{origin}/api/log/demo-1/1") == "refused"
        framed = stranger.evaluate(
            """(url) => new Promise(done => {
                const frame = document.createElement("iframe");
                frame.onload = () => { try { done(frame.contentDocument ? "open" : "shut") } catch { done("shut") } };
                frame.src = url;
                document.body.append(frame);
            })""",
            f"http://{origin}/",
        )
        assert framed == "shut"
    finally:
        context.close()


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../server.py",
        "/assets/%2e%2e/server.py",
        "/assets/%2e%2e%2fserver.py",
        "/api/output/demo-1?path=../spec.json",
        "/api/output/demo-1?path=../../../../etc/passwd",
        "/api/output/demo-1?path=%2Fetc%2Fpasswd",
        "/api/output/..?path=workspace.json",
        "/api/output/%2e%2e%2fdemo-1?path=x",
        "/api/log/../1",
        "/api/log/%2e%2e/1",
        "/api/checkpoint/demo-1/..?path=spec.json",
        "/api/checkpoint/demo-1/%2e%2e%2f%2e%2e?path=x",
    ],
)
def test_no_path_leads_outside_a_runs_files(client: DashboardClient, path: str) -> None:
    client.follow_link()
    status, _, body = client.request(path)
    assert status == 404 or body in (b'{"begin":0,"end":0,"size":0,"text":""}',)
    assert b"root:" not in body
    assert b"outlast.workspace" not in body


def test_outputs_are_downloads_and_only_images_are_shown(client: DashboardClient, lived: Lived) -> None:
    client.follow_link()
    address = f"/api/output/{lived.names.undisturbed}?path="
    status, headers, body = client.request(address + "notes.txt")
    assert status == 200
    assert headers["content-disposition"].startswith("attachment")
    assert headers["content-type"] == "application/octet-stream"
    assert "sandbox" in headers["content-security-policy"]
    assert b"<script>" in body
    assert client.request(address + "notes.txt&show=1")[0] == 415
    status, headers, body = client.request(address + "weights.png&show=1")
    assert (status, headers["content-type"]) == (200, "image/png")
    assert body.startswith(b"\x89PNG")


def test_a_public_address_requires_a_password(empty: Home, serve: Callable[..., Served], tmp_path: Path) -> None:
    answer = empty.outlast("ui", "--host", "0.0.0.0", "--port", "0", "--no-open")
    assert answer.returncode == 2
    assert "--password-file" in answer.stderr
    assert not answer.stdout
    secret = tmp_path / "secret"
    secret.write_text("short")
    answer = empty.outlast("ui", "--host", "0.0.0.0", "--port", "0", "--password-file", str(secret))
    assert answer.returncode == 2
    assert "too short" in answer.stderr


def test_a_password_is_required_and_guessing_is_limited(
    empty: Home, serve: Callable[..., Served], tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("correct horse\n")
    served = serve(empty, "--host", "127.0.0.1", "--password-file", str(secret))
    assert "token" not in served.link
    client = DashboardClient(served.link)
    origin = f"http://127.0.0.1:{client.parts.port}"

    def attempt(password: str, come_from: str = origin) -> tuple[int, dict[str, str], bytes]:
        host = come_from.partition("//")[2]
        return client.request(
            "/", "POST", f"password={quote(password)}", Origin=come_from, Host=urlsplit(origin).netloc or host
        )

    assert b'type="password"' in client.request("/")[2]
    assert client.request("/?token=")[0] == 401
    status, headers, _ = attempt("wrong")
    assert status == 401
    assert "set-cookie" not in headers
    assert attempt("correct horse", "http://evil.example")[0] == 403
    status, headers, _ = attempt("correct horse")
    assert status == 200
    client.cookie = headers["set-cookie"].partition(";")[0]
    assert client.request("/")[0] == 200
    client.cookie = ""
    codes = {attempt(f"guess {number}")[0] for number in range(12)}
    assert codes == {401, 429}
    assert attempt("correct horse")[0] == 429, "not even the right password, for a minute"


def test_a_used_port_is_a_readable_error(empty: Home, served: Served) -> None:
    answer = empty.outlast("ui", "--port", str(urlsplit(served.link).port), "--no-open")
    assert answer.returncode == 2
    assert "cannot listen" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_the_token_disappears_from_the_browsers_url(visit: Visit) -> None:
    page = visit.open()
    page.wait_for_selector(".ol-header")
    page.wait_for_url(visit.origin + "/")
    assert "token" not in page.url
