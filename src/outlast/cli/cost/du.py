"""`outlast du`: how much of the workspace each run takes, by kind, and its monthly cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from outlast.app.retention import KINDS, SHARED_KINDS, disk_use
from outlast.cli.shared.command import READ_ONLY, command
from outlast.cli.shared.options import json_option, workspace_option
from outlast.cli.shared.terminal import dim, find_workspace, note, table
from outlast.formatting.quantities import size

if TYPE_CHECKING:
    from outlast.app.types import DiskUse

_ROWS = 20


@command(section="costs", progress="listing the workspace", interrupt=READ_ONLY, json="WorkspaceUse")
@click.option("--limit", default=_ROWS, show_default=True, metavar="N", help="List the largest N runs; 0: all.")
@json_option
@workspace_option
def du(limit: int, as_json: bool, workspace_url: str) -> int:
    """Show what takes how much of the workspace, and its cost per month.

    Runs are listed by size, with the kinds of their objects.
    """
    workspace = find_workspace(workspace_url)
    found = disk_use(workspace)
    if as_json:
        import json

        import msgspec

        click.echo(json.dumps(msgspec.to_builtins(found), indent=2))
        return 0
    rows = found.runs[: limit or None]
    if rows:
        click.echo(table([_cells(row) for row in rows], header=["RUN", "SIZE", "PER MONTH", *map(str.upper, KINDS)]))
    if len(found.runs) > len(rows):
        note(f"and {len(found.runs) - len(rows)} smaller runs; `--limit 0` lists all")
    shared = ", ".join(
        f"{kind} {size(found.shared.kinds[kind])}" for kind in SHARED_KINDS if kind in found.shared.kinds
    )
    click.echo(f"shared: {shared or 'nothing'}")
    click.echo(f"total: {size(found.bytes)} in {found.objects} objects, {_money(found.usd_per_month)}")
    if found.usd_per_gb_month:
        click.echo(dim(f"at ${found.usd_per_gb_month:g} per GB and month, the list price; `outlast prune` frees space"))
    return 0


def _cells(row: DiskUse) -> list[str]:
    kinds = [size(row.kinds[kind]) if kind in row.kinds else "" for kind in KINDS]
    return [row.run, size(row.bytes), _money(row.usd_per_month), *kinds]


def _money(usd: float) -> str:
    return f"${usd:.2f}/month" if usd else "free"
