"""`outlast ui`: the dashboard."""

from __future__ import annotations

import contextlib
import os
import sys

import click

from outlast import private
from outlast.cli.shared.command import command
from outlast.cli.shared.options import workspace_option
from outlast.cli.shared.project import unreadable
from outlast.cli.shared.terminal import find_workspace, note
from outlast.errors import UsageError

_DEFAULT_PORT = 8640


@command(
    section="start", interrupt="the dashboard is closed; runs and machines continue, and `outlast ui` opens it again"
)
@click.option(
    "--port",
    metavar="N",
    type=click.IntRange(0, 65535),
    default=_DEFAULT_PORT,
    help="Port on loopback (8640); 0: any free port.",
)
@click.option("--host", default="127.0.0.1", metavar="ADDRESS", help="Address to listen on (127.0.0.1).")
@click.option("--password-file", default="", metavar="FILE", help="Require the password in this file.")
@click.option("--keep-logins", is_flag=True, help="With a password: browsers stay logged in when the server restarts.")
@click.option("--with-token", is_flag=True, help="With --host: accept the printed link instead of a password.")
@click.option(
    "--name", "names", multiple=True, metavar="NAME", help="Another host name of the server, such as a proxy's."
)
@click.option("--no-open", is_flag=True, help="Print the link; do not open a browser.")
@workspace_option
def ui(
    port: int,
    host: str,
    password_file: str,
    keep_logins: bool,
    with_token: bool,
    names: tuple[str, ...],
    no_open: bool,
    workspace_url: str,
) -> int:
    """Open the dashboard in a browser: runs, machines, costs.

    Only programs on this computer can connect, and only with the printed link. Ctrl-C stops it; runs continue.
    """
    from outlast.ui.server import ServeOptions, serve

    workspace = find_workspace(workspace_url)
    password = _password(password_file)
    if keep_logins and not password:
        raise UsageError(
            "--keep-logins requires a password", hint="add --password-file FILE; a link is valid for one start"
        )
    session = _kept_session(password) if keep_logins else ""
    request = ServeOptions(host=host, port=port, password=password, with_token=with_token, names=names, session=session)

    def report(link: str, address: str) -> None:
        click.echo(link)
        sys.stdout.flush()
        note(f"showing {workspace.url}; Ctrl-C stops the dashboard, never the runs")
        if "127.0.0.1" not in host and "localhost" not in host:
            note("the connection is not encrypted: use a proxy with TLS, or `ssh -L` instead of --host")
        if not no_open and sys.stdout.isatty():
            click.launch(_private_page(link))

    serve(workspace, request, report=report, log=note)
    note("stopped; the runs continue")
    return 0


def _private_page(link: str) -> str:
    """Write a private file that redirects to the link.

    Every user of this computer can read the command line of the browser, and the link grants access.
    """
    import html

    path = os.path.expanduser("~/.outlast/page.html")
    text = f'<meta charset="utf-8"><meta http-equiv="refresh" content="0;url={html.escape(link)}">'
    try:
        private.folder()
        handle = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with open(handle, "w", encoding="utf-8") as file:
            os.fchmod(handle, 0o600)
            file.write(text)
        os.replace(f"{path}.new", path)
    except OSError:
        return link.partition("?")[0]  # the login page without the token
    return path


def _password(path: str) -> str:
    """Read the password from the file, else from OUTLAST_UI_PASSWORD. A command line is readable by other users."""
    if not path:
        return _long_enough(os.environ.get("OUTLAST_UI_PASSWORD", ""), "OUTLAST_UI_PASSWORD: the password")
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read().strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(
            f"--password-file: `{path}` {unreadable(problem)}", hint="name a file with a password in it"
        ) from problem
    if not text:
        raise UsageError(f"--password-file: {path} is empty", hint="name a file with a password in it")
    return _long_enough(text, f"--password-file: the password in {path}")


def _kept_session(password: str) -> str:
    """Return a session secret that stays the same while the password does."""
    import hashlib
    import hmac
    import secrets

    path = os.path.join(private.folder(), "dashboard-key")
    try:
        with contextlib.suppress(FileExistsError):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with open(handle, "w", encoding="ascii") as file:
                file.write(secrets.token_hex(32))
        with open(path, encoding="ascii") as file:
            key = file.read().strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(
            f"--keep-logins: `{path}` {unreadable(problem)}", hint="delete the file and retry"
        ) from problem
    if len(key) < 64:
        raise UsageError(f"--keep-logins: `{path}` is incomplete", hint="delete the file and retry")
    return hmac.new(key.encode(), password.encode(), hashlib.sha256).hexdigest()


def _long_enough(password: str, named: str) -> str:
    if 0 < len(password) < 8:
        raise UsageError(f"{named} is too short", hint="use at least eight characters")
    return password
