"""Authentication of all requests: pages, files and the websocket.

A request is accepted if its host is a name of this server (otherwise a foreign site whose name points to this computer
could read it), if it carries the session cookie, which the link with the token or the password sets, and, for requests
that change something and for the websocket, if it comes from a page of this server.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from outlast.ui.admission import ATTEMPTS_MAX, Attempts, Refusals, RequestSource, source_of

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_SAFE = {"GET", "HEAD"}
# The maximum size of the password form, and the time in which it must arrive.
_BODY_MAX, _BODY_S = 4096, 20.0
_KEPT_LOGIN_S = 30 * 86400

# NiceGUI compiles templates and starts from an inline script, which requires 'unsafe-inline' and 'unsafe-eval'. Nothing
# is loaded from or sent to another host.
_POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self'",
        "worker-src 'self' blob:",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    # `no-referrer` would make browsers send the login form with `Origin: null`.
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class Guard:
    """The wrapper around an application. `app` is public: the server inspects it."""

    def __init__(
        self,
        app: App,
        *,
        token: str,
        port: int,
        password: str = "",
        names: Iterable[str] = (),
        session: str = "",
        attempts: Attempts | None = None,
        refusals: Refusals | None = None,
    ) -> None:
        """`session`: the secret in the cookie of logged-in browsers, if logins outlast this process."""
        self.app = app
        self.token = token
        self.password = password
        self.attempts = attempts or Attempts()
        self.refusals = refusals or Refusals(lambda _: None)
        self.names = {"localhost", *(name.lower() for name in names)}
        # Cookies do not depend on the port: two dashboards on one computer must not share one.
        self.cookie = f"outlast-{port}"
        self.session = session or secrets.token_urlsafe(32)
        self.max_age_s = _KEPT_LOGIN_S if session else 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        headers = {name.lower(): value.decode("latin-1") for name, value in scope.get("headers", ())}
        socket = scope["type"] == "websocket"
        refusal = self._refusal(scope, headers, socket=socket)
        if refusal is not None:
            self.refusals.report(_source(scope, headers), refusal[1] or "a websocket without an origin")
            await _refuse(send, receive, refusal, socket=socket)
            return
        if self._has_session(headers):
            await self.app(scope, receive, send if socket else _with_headers(send))
        elif socket:
            await _refuse(send, receive, (401, ""), socket=True)
        else:
            await self._authenticate(scope, headers, receive, send)

    def _refusal(self, scope: Scope, headers: dict[bytes, str], *, socket: bool) -> tuple[int, str] | None:
        """Return status and reason if the request must be refused before authentication."""
        host = headers.get(b"host", "")
        if not self._is_own_name(host):
            return 421, "This server does not have that name."
        origin = headers.get(b"origin", "")
        if origin and origin.partition("://")[2].lower() != host.lower():
            return 403, "Requests from other sites are not answered."
        site = headers.get(b"sec-fetch-site", "")
        if socket:
            return None if origin else (403, "")
        if scope["method"] not in _SAFE:
            return None if origin or site == "same-origin" else (403, "Requests from other sites are not answered.")
        # Links from other sites may lead here; other cross-site requests are refused.
        if site in ("cross-site", "same-site") and headers.get(b"sec-fetch-mode") != "navigate":
            return 403, "Requests from other sites are not answered."
        return None

    def _is_own_name(self, host: str) -> bool:
        """Return whether the host is a name of this server. Addresses are: a foreign site always uses a name."""
        if any(sign in host for sign in "/?#@\\"):
            return False  # not a host name: parsers disagree about such text
        try:
            name = urlsplit(f"//{host}").hostname or ""
            if name in self.names:
                return True
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _has_session(self, headers: dict[bytes, str]) -> bool:
        for piece in headers.get(b"cookie", "").split(";"):
            name, _, value = piece.strip().partition("=")
            if name == self.cookie and _same(value, self.session):
                return True
        return False

    async def _authenticate(self, scope: Scope, headers: dict[bytes, str], receive: Receive, send: Send) -> None:
        """Answer a request without a session: check the token or the password."""
        query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        given = dict(query).get("token", "")
        if self.token and given and _same(given, self.token):
            self.attempts.remember(_source(scope, headers))
            await self._start_session(send, _address(scope, query))
            return
        if self.password and scope["method"] == "POST":
            await self._try_password(_source(scope, headers), receive, send, where=_address(scope, query))
            return
        if self.password:
            await _answer(send, 401, _page("Log in", _FORM))
            return
        why = "The link is outdated." if given else "Open the dashboard with the link that `outlast ui` printed."
        await _answer(send, 401, _page(why, _HELP))

    async def _try_password(self, source: RequestSource, receive: Receive, send: Send, *, where: str) -> None:
        # Counted before the first `await`: otherwise requests that arrive together would all pass the limit.
        if not self.attempts.begin(source):
            self.refusals.report(source, f"more than {ATTEMPTS_MAX} password attempts in a minute")
            await _answer(send, 429, _page("Too many attempts. Wait a minute.", _FORM))
            return
        try:
            body = await asyncio.wait_for(_body(receive), _BODY_S)
        except TimeoutError:
            await _answer(send, 408, _page("The password did not arrive in time.", _FORM))
            return
        given = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True)).get("password", "")
        if _same(given, self.password):
            self.attempts.succeed(source)
            await self._start_session(send, where)
            return
        self.refusals.report(source, "a wrong password")
        await _answer(send, 401, _page("Wrong password.", _FORM))

    async def _start_session(self, send: Send, where: str) -> None:
        """Set the cookie and open the page. A redirect from another site would not carry the cookie."""
        cookie = f"{self.cookie}={self.session}; Path=/; HttpOnly; SameSite=Strict"
        cookie += f"; Max-Age={self.max_age_s}" if self.max_age_s else ""
        body = f'<meta http-equiv="refresh" content="0;url={_escaped(where)}"><a href="{_escaped(where)}">Continue</a>'
        await _answer(send, 200, _page("", body), extra=[(b"set-cookie", cookie.encode())])


# Without `action` the form goes to the requested address, which opens after the login.
_FORM = """<form method="post"><label>Password<br>
<input type="password" name="password" autocomplete="current-password" autofocus></label>
<button>Log in</button></form>"""
_HELP = """<p>Open the link that the terminal shows: it ends in <code>?token=…</code></p>"""
_STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:32rem;margin:18vh auto;padding:0 1.5rem;
color-scheme:light dark}button,input{font:inherit;padding:.3rem .6rem;margin-top:.5rem}"""


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>outlast</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
        f"<body><h1 style='font-size:1.3rem'>{_escaped(title)}</h1>{body}</body></html>"
    )


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def _local(path: str) -> str:
    """Return a path of this server: `//somewhere` would be another one."""
    return "/" + path.lstrip("/\\")


def _address(scope: Scope, query: list[tuple[str, str]]) -> str:
    """Return the requested path and query, without the token."""
    rest = urlencode([(name, value) for name, value in query if name != "token"])
    return _local(str(scope["path"])) + (f"?{rest}" if rest else "")


def _source(scope: Scope, headers: dict[bytes, str]) -> RequestSource:
    return source_of(scope.get("client"), scope.get("server"), headers.get(b"x-forwarded-for", ""))


def _same(given: str, expected: str) -> bool:
    """Compare in a time that does not depend on the texts or their length."""
    first, second = (hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in (given, expected))
    return hmac.compare_digest(first, second)


async def _body(receive: Receive) -> bytes:
    body = b""
    while len(body) <= _BODY_MAX:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    return body[:_BODY_MAX]


async def _answer(send: Send, status: int, body: str, extra: Iterable[tuple[bytes, bytes]] = ()) -> None:
    data = body.encode()
    headers = [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-length", str(len(data)).encode()),
        (b"cache-control", b"no-store"),
        *_HEADERS,
        *extra,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": data})


async def _refuse(send: Send, receive: Receive, refusal: tuple[int, str], *, socket: bool) -> None:
    code, why = refusal
    if socket:
        await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": why})
        return
    await _answer(send, code, _page(why, ""))


def _with_headers(send: Send) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            given = list(message.get("headers", ()))
            names = {name.lower() for name, _ in given}
            message["headers"] = [*given, *(pair for pair in _HEADERS if pair[0] not in names)]
        await send(message)

    return sending
