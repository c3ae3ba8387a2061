"""`outlast local serve` and `outlast local env`: the emulator of Google Cloud, and the variables for its clients."""

from __future__ import annotations

import errno
import os
import shlex
import signal
from types import FrameType

import click

from outlast.app.local_cloud import root_of_local_cloud
from outlast.cli.shared.command import UNCHANGED, command
from outlast.cli.shared.options import json_option
from outlast.cli.shared.terminal import note
from outlast.errors import CloudError, UsageError

DEFAULT_PORT = 9480
root_option = click.option("--root", metavar="FOLDER", default="", help="Folder of the data.")


def _root(given: str) -> str:
    return os.path.abspath(os.path.expanduser(given)) if given else f"{root_of_local_cloud()}/google"


@command(interrupt="the server has stopped; its machines and buckets stay, and the same command serves them again")
@click.option(
    "--port",
    metavar="N",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    help="Port on loopback (9480); 0: any free port.",
)
@root_option
def serve(port: int, root: str) -> int:
    """Serve an emulator of Google Cloud to gcloud and other clients, until interrupted."""
    # Imported late: the other commands of this group need neither HTTP nor SQLite.
    from outlast_gcp_emulator.endpoint import Endpoint
    from outlast_gcp_emulator.environment import write_files
    from outlast_gcp_emulator.server_lock import hold_lock, write_address

    folder = _root(root)
    try:
        with hold_lock(folder):
            endpoint = Endpoint(folder, port=port, log=note)
            write_files(folder, endpoint.url)
            write_address(folder, endpoint.address)
            signal.signal(signal.SIGTERM, _interrupt)
            endpoint.start()
            try:
                click.echo(endpoint.address)
                note(f'serving {folder}; in another terminal: eval "$(outlast local env{_option(root)})"')
                signal.pause()
            except KeyboardInterrupt:
                note("stopped; stored data stays")
            finally:
                endpoint.stop()
    except OSError as problem:
        raise _refusal(problem, folder, port) from problem
    return 0


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _option(root: str) -> str:
    return f" --root {shlex.quote(root)}" if root else ""


def _refusal(problem: OSError, folder: str, port: int) -> CloudError | UsageError:
    if problem.errno == errno.EADDRINUSE:
        return UsageError(f"--port: {port} is in use", hint="choose another, or 0 for any free one")
    if problem.errno == errno.EACCES and problem.filename is None:
        return UsageError(f"--port: permission denied for {port}", hint="choose a port above 1023")
    why = f"{folder} cannot be used: {problem.strerror or problem}"
    return CloudError(why, hint="choose a folder that you can write to with --root")


@command(interrupt=UNCHANGED, json="Variables")
@root_option
@json_option
def env(root: str, as_json: bool) -> int:
    """Print variables that direct gcloud, gsutil, Google's clients and obstore to the server."""
    from outlast_gcp_emulator.access import read_token, url_with
    from outlast_gcp_emulator.environment import variables
    from outlast_gcp_emulator.server_lock import served_at

    folder = _root(root)
    url = served_at(folder)
    if url is None:
        raise CloudError(
            f"no server for {folder} is running",
            hint=f"start it in another terminal: outlast local serve{_option(root)}",
        )
    token = read_token(folder)
    if token is None:
        raise CloudError(
            f"cannot read the token of the server: {folder}/token",
            hint="run this command as the user who runs `outlast local serve`, or restart that server",
        )
    found = variables(folder, url_with(url, token))
    if as_json:
        import json

        click.echo(json.dumps(found, indent=2))
    else:
        click.echo("\n".join(f"export {name}={shlex.quote(value)}" for name, value in found.items()))
    return 0
