"""`outlast archive` writes an ended run to one file; `outlast restore` stores it in a workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from outlast.app.retention import archive_run, restore_run
from outlast.cli.shared.command import RESUMABLE, command
from outlast.cli.shared.options import json_option, run_argument, workspace_option
from outlast.cli.shared.terminal import find_workspace
from outlast.formatting.quantities import size

if TYPE_CHECKING:
    from outlast.app.types import RunArchive


@command(section="runs", progress="archiving the run", interrupt=RESUMABLE, json="RunArchive")
@run_argument
@click.argument("path", metavar="[FILE]", default="")
@json_option
@workspace_option
def archive(run_name: str, path: str, as_json: bool, workspace_url: str) -> int:
    """Write an ended run to one file.

    FILE (RUN.outlast.tar) has everything that the run needs. The run stays in the workspace; `outlast delete` frees
    its space.
    """
    workspace = find_workspace(workspace_url)
    run = workspace.find(run_name)
    _print(archive_run(workspace, run, path or f"{run}.outlast.tar"), "archived {run} to {path}", as_json=as_json)
    return 0


@command(section="runs", progress="restoring the run", interrupt=RESUMABLE, json="RunArchive")
@click.argument("path", metavar="FILE")
@json_option
@workspace_option
def restore(path: str, as_json: bool, workspace_url: str) -> int:
    """Store an archived run in a workspace.

    It keeps its name.
    """
    found = restore_run(find_workspace(workspace_url), path)
    _print(found, "restored {run} from {path}", as_json=as_json)
    return 0


def _print(found: RunArchive, text: str, *, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return
    shown = text.format(run=found.run, path=found.path)
    click.echo(f"{shown}: {found.objects} objects, {size(found.bytes)}")
