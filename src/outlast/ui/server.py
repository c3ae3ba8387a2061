"""Starts the page: who may reach it, the link, the readers, and the end."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from outlast.errors import OutlastError, UsageError
from outlast.workspace import Workspace

if TYPE_CHECKING:
    from fastapi import FastAPI

    from outlast.ui.feed import Feed

DEFAULT_PORT = 8640


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How it is to be reached."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    password: str = ""
    # The link's token is enough for whoever comes from outside of this computer.
    with_token: bool = False
    names: tuple[str, ...] = ()


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check(request: ServeOptions) -> None:
    """Raises UsageError for what would let strangers in."""
    if not is_loopback(request.host) and not request.password and not request.with_token:
        raise UsageError(
            f"--host {request.host}: others could reach the page, and everything that it can do",
            hint="ask them for a password with --password-file FILE, or say --with-token if the link shall be enough",
        )


def listen(request: ServeOptions) -> socket.socket:
    """A socket that listens. Raises UsageError."""
    try:
        family = socket.getaddrinfo(request.host, request.port, type=socket.SOCK_STREAM)[0][0]
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((request.host, request.port))
    except (OSError, OverflowError) as problem:
        why = getattr(problem, "strerror", "") or str(problem)
        hint = "choose another port with --port, or 0 for any free one"
        raise UsageError(f"cannot listen on {request.host}:{request.port}: {why}", hint=hint) from problem
    made.listen(128)
    return made


def serve(
    workspace: Workspace, request: ServeOptions, *, report: Callable[[str, str], None], log: Callable[[str], None]
) -> None:
    """Until interrupted. `say` is told the link once the page can be opened, and the address without the token; `log`
    receives a line for requests that were refused."""
    check(request)
    try:
        import nicegui as nicegui
        import uvicorn
        from fastapi import FastAPI
    except ImportError as problem:
        raise OutlastError("the page needs NiceGUI", hint="pip install 'outlast[ui]'") from problem
    from outlast.ui.admission import Attempts, Refusals
    from outlast.ui.auth import Guard
    from outlast.ui.connections import Connections, limited

    made = listen(request)
    port = made.getsockname()[1]
    shown = "localhost" if request.host in ("127.0.0.1", "0.0.0.0", "::", "::1") else request.host
    address = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/"
    token = secrets.token_urlsafe(24) if not request.password or request.with_token else ""
    link = f"{address}?token={quote(token)}" if token else address

    @contextlib.asynccontextmanager
    async def life(_app: FastAPI) -> AsyncIterator[None]:
        import asyncio

        feed.start(asyncio.get_running_loop())
        report(link, address)
        yield
        feed.stop()

    app = FastAPI(lifespan=life, openapi_url=None, docs_url=None, redoc_url=None)
    feed = build(app, workspace)
    names = {
        *request.names,
        socket.gethostname(),
        socket.getfqdn(),
        *([] if is_loopback(request.host) else [request.host]),
    }
    attempts, refusals = Attempts(), Refusals(log)
    guard = Guard(
        app,
        token=token,
        password=request.password,
        port=port,
        names=names,
        attempts=attempts,
        refusals=refusals,
    )
    logging.getLogger("nicegui").setLevel(logging.ERROR)
    logging.getLogger("uvicorn.error").addFilter(_worth_telling)
    config = uvicorn.Config(
        guard,
        http=limited(Connections(attempts, refusals)),
        # Whom a proxy names is the guard's to judge: every user of this computer could pose as one.
        proxy_headers=False,
        log_level="error",
        access_log=False,
        timeout_graceful_shutdown=1,
        ws_ping_interval=20,
        server_header=False,
    )
    server = uvicorn.Server(config)
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[made])


def _worth_telling(record: logging.LogRecord) -> bool:
    """A browser that left before its answer came is no error; the library's middleware makes one of it."""
    problem = record.exc_info[1] if record.exc_info else None
    return str(problem) != "No response returned."


def build(app: FastAPI, workspace: Workspace) -> Feed:
    """All pages into an application."""
    from nicegui import app as pages_app
    from nicegui import ui

    from outlast.ui.feed import Feed
    from outlast.ui.files import add_routes
    from outlast.ui.layout import register
    from outlast.ui.pages.table import PAGES

    feed = Feed(workspace)
    assets = os.path.join(os.path.dirname(__file__), "assets")
    pages_app.add_static_files("/assets", assets)
    version = max(int(os.stat(os.path.join(assets, name)).st_mtime) for name in os.listdir(assets))
    ui.add_head_html(
        f'<link rel="stylesheet" href="/assets/page.css?{version}"><script src="/assets/page.js?{version}"></script>'
        f'<script src="/assets/log.js?{version}"></script><link rel="stylesheet" href="/assets/parts.css?{version}">',
        shared=True,
    )
    add_routes(app, feed)
    register(PAGES, feed)
    ui.run_with(
        app,
        title="outlast",
        favicon=os.path.join(assets, "mark.svg"),
        dark=None,
        tailwind=False,
        binding_refresh_interval=None,
        reconnect_timeout=15.0,
        message_history_length=300,
        show_welcome_message=False,
    )
    return feed
