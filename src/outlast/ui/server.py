"""The dashboard's server: its options, address, link and start."""

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
from outlast.extras import install_hint
from outlast.workspace import Workspace

if TYPE_CHECKING:
    from fastapi import FastAPI

    from outlast.ui.feed import Feed
    from outlast.ui.layout import PageInfo

DEFAULT_PORT = 8640


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the server."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    password: str = ""
    # The link's token suffices for clients from other computers.
    with_token: bool = False
    names: tuple[str, ...] = ()
    # The secret of the session cookie; empty: a new one at each start.
    session: str = ""


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check(request: ServeOptions) -> None:
    """Raise UsageError for options that would admit strangers."""
    if not is_loopback(request.host) and not request.password and not request.with_token:
        raise UsageError(
            f"--host {request.host}: other computers could use the dashboard without a password",
            hint="require a password with --password-file FILE, or use --with-token if the link suffices",
        )


def listen(request: ServeOptions) -> socket.socket:
    """Return a listening socket. Raises UsageError."""
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
    """Serve until interrupted.

    `report` receives the link once the dashboard accepts connections, and the address without the token; `log`
    receives a line per refused request.
    """
    check(request)
    try:
        import nicegui as nicegui
        import uvicorn
        from fastapi import FastAPI
    except ImportError as problem:
        raise OutlastError("the dashboard requires NiceGUI", hint=install_hint("outlast[ui]")) from problem
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
        session=request.session,
        attempts=attempts,
        refusals=refusals,
    )
    logging.getLogger("nicegui").setLevel(logging.ERROR)
    logging.getLogger("uvicorn.error").addFilter(_is_relevant)
    config = uvicorn.Config(
        guard,
        http=limited(Connections(attempts, refusals)),
        # The guard evaluates proxy headers: any user of this computer could send them.
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


def _is_relevant(record: logging.LogRecord) -> bool:
    """Return False for a browser that disconnected early, which NiceGUI's middleware reports as an error."""
    problem = record.exc_info[1] if record.exc_info else None
    return str(problem) != "No response returned."


def build(app: FastAPI, workspace: Workspace) -> Feed:
    """Add all pages to an application."""
    from nicegui import app as pages_app
    from nicegui import ui

    from outlast.ui.feed import Feed
    from outlast.ui.files import add_routes
    from outlast.ui.layout import register

    feed = Feed(workspace)
    assets = os.path.join(os.path.dirname(__file__), "assets")
    pages_app.add_static_files("/assets", assets)
    version = max(int(os.stat(os.path.join(assets, name)).st_mtime) for name in os.listdir(assets))
    ui.add_head_html(
        "".join(_tag(name, version) for name in ("page.css", "page.js", "runs.js", "log.js", "parts.css")),
        shared=True,
    )
    add_routes(app, feed)
    register(_pages(), feed)
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


def _tag(name: str, version: int) -> str:
    """Return the element that loads an asset, with a version in its address: browsers keep old ones."""
    if name.endswith(".css"):
        return f'<link rel="stylesheet" href="/assets/{name}?{version}">'
    return f'<script src="/assets/{name}?{version}"></script>'


def _pages() -> tuple[PageInfo, ...]:
    """Return all pages. The key is typed after `g` to open a page; pages without one are not in the menu."""
    from outlast.ui.layout import PageInfo
    from outlast.ui.pages import clusters, compare, cost, drills, images, new_run, overview, resources, run, sweeps

    return (
        PageInfo("/", "Overview", "o", overview.build),
        PageInfo("/run/{name}", "Run", "", run.build),
        PageInfo("/compare", "Compare", "", compare.build),
        PageInfo("/new", "New run", "n", new_run.build),
        PageInfo("/sweeps", "Sweeps", "s", sweeps.build),
        PageInfo("/sweeps/{name}", "Sweep", "", sweeps.build_one),
        PageInfo("/clusters", "Clusters", "c", clusters.build),
        PageInfo("/clusters/{name}", "Cluster", "", clusters.build_one),
        PageInfo("/images", "Images", "i", images.build),
        PageInfo("/images/{cloud}/{name}", "Image", "", images.build_one),
        PageInfo("/resources", "Volumes and databases", "v", resources.build),
        PageInfo("/cost", "Cost", "m", cost.build),
        PageInfo("/drills", "Drills", "d", drills.build),
        PageInfo("/drills/{run}", "Drill", "", drills.build_one),
    )
