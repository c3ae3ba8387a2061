"""`outlast data`: copies data to a bucket, from which `[data]` and `--data` bring it to machines."""

from __future__ import annotations

import click

from outlast.app.data import put_data
from outlast.cli.shared.command import RESUMABLE, command, command_group
from outlast.cli.shared.terminal import note
from outlast.formatting.quantities import size


@command(progress="copying", interrupt=RESUMABLE)
@click.argument("source", metavar="SOURCE", type=click.Path())
@click.argument("destination", metavar="DESTINATION")
def put(source: str, destination: str) -> int:
    """Copy a folder or a file to a bucket.

    DESTINATION is gs://BUCKET/PATH, s3://BUCKET/PATH or a folder. Files that are there already are skipped, so that an
    interrupted copy can be repeated. Nothing is deleted.
    """
    done = put_data(source, destination)
    skipped = f"; {done.skipped} were there already" if done.skipped else ""
    count = "1 file" if done.files == 1 else f"{done.files} files"
    click.echo(f"copied {count} ({size(done.bytes)}) to {destination}{skipped}")
    note(f"use it with `--data PATH={destination}`, or in `[data]` of outlast.toml")
    return 0


@command_group("runs", (put,))
def data() -> None:
    """Copy data to a bucket, for `[data]` and `--data`."""
