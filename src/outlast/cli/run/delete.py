"""`outlast delete` removes ended runs by name; `outlast prune` removes old ones by a rule."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec

from outlast.app.retention import delete_named, retention_rule
from outlast.app.retention import prune as prune_runs
from outlast.cli.shared.command import RESUMABLE, command
from outlast.cli.shared.options import json_option, runs_argument, workspace_option
from outlast.cli.shared.progress import confirm
from outlast.cli.shared.terminal import find_workspace, note
from outlast.errors import UsageError
from outlast.formatting.quantities import size

if TYPE_CHECKING:
    from outlast.app.types import PruneResult

_OUTPUTS = click.option(
    "--outputs",
    type=click.Choice(["keep", "delete"]),
    default="delete",
    show_default=True,
    help="`keep`: the runs stay listed with story and outputs; checkpoints, logs and metrics go.",
)
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Print what would be deleted; delete nothing.")
_YES = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
# Runs that a message names.
_SHOWN = 20


@command(section="runs", progress="deleting runs", interrupt=RESUMABLE, json="PruneResult")
@runs_argument
@_OUTPUTS
@_DRY_RUN
@_YES
@json_option
@workspace_option
def delete(
    run_names: tuple[str, ...], outputs: str, dry_run: bool, yes: bool, as_json: bool, workspace_url: str
) -> int:
    """Delete ended runs with their checkpoints, logs and outputs.

    RUN may be a group. Their cost stays in `outlast cost`. Code and packages go with the last run that uses them.
    """
    workspace = find_workspace(workspace_url)
    keep = outputs == "keep"
    if not dry_run:
        planned = delete_named(workspace, run_names, keep_outputs=keep, dry_run=True)
        if not _agreed(planned, yes=yes or as_json):
            return 0
        run_names = planned.runs + tuple(planned.kept)
    result = delete_named(workspace, run_names, keep_outputs=keep, dry_run=dry_run)
    _print(result, as_json=as_json)
    return 1 if result.kept else 0


@command(section="runs", progress="deleting old runs", interrupt=RESUMABLE, json="PruneResult")
@click.option("--older-than", "older_than", required=True, metavar="AGE", help="Only runs that ended before, e.g. 30d.")
@click.option("--keep-best", default=0, metavar="N", help="Keep the best N runs of each name by --metric.")
@click.option("--metric", default="", metavar="GOAL", help="What --keep-best compares, e.g. min:loss.")
@click.option("--failed", is_flag=True, help="Only runs that failed.")
@_OUTPUTS
@_DRY_RUN
@_YES
@json_option
@workspace_option
def prune(
    older_than: str,
    keep_best: int,
    metric: str,
    failed: bool,
    outputs: str,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    workspace_url: str,
) -> int:
    """Delete old runs, and code and packages that no run uses."""
    workspace = find_workspace(workspace_url)
    rule = retention_rule(older_than, keep_best=keep_best, metric=metric, failed=failed, outputs=outputs, prefix="--")
    if not dry_run and not _agreed(prune_runs(workspace, rule, dry_run=True), yes=yes or as_json):
        return 0
    _print(prune_runs(workspace, rule, dry_run=dry_run), as_json=as_json)
    return 0


def _agreed(planned: PruneResult, *, yes: bool) -> bool:
    if yes or not planned.runs:
        return True
    question = f"delete {_count(len(planned.runs), 'run')} ({size(planned.bytes)}): {_names(planned.runs)}?"
    if not sys.stdin.isatty():
        raise UsageError(f"cannot ask without a terminal: {question}", hint="repeat the command with --yes")
    if confirm(question):
        return True
    note("nothing was deleted")
    return False


def _print(result: PruneResult, *, as_json: bool) -> None:
    if as_json:
        import json

        found: dict[str, Any] = msgspec.to_builtins(result)
        click.echo(json.dumps(found, indent=2))
        return
    verb = "would delete" if result.dry_run else "deleted"
    for run, why in result.kept.items():
        note(f"kept {run}: {why}")
    if not result.runs and not result.shared_objects:
        click.echo("nothing to delete")
        return
    shared = f", and {size(result.shared_bytes)} of code and packages" if result.shared_objects else ""
    click.echo(f"{verb} {_count(len(result.runs), 'run')}, {size(result.bytes)}{shared}: {_names(result.runs)}")


def _names(runs: tuple[str, ...]) -> str:
    more = f" and {len(runs) - _SHOWN} more" if len(runs) > _SHOWN else ""
    return ", ".join(runs[:_SHOWN]) + more


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
