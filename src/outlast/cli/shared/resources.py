"""Helpers that `outlast db` and `outlast volume` share: arguments with completion, sizes, listings, deletion."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from outlast.cli.completion import complete_cloud
from outlast.cli.shared.options import clouds
from outlast.cli.shared.progress import confirm
from outlast.cli.shared.terminal import find_workspace, note, report_damaged, table
from outlast.errors import OutlastError, UsageError

if TYPE_CHECKING:
    from outlast.app.types import Kind, ResourceRecord, ResourceRecords

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def resource_records(workspace_url: str, kind: Kind) -> ResourceRecords:
    from outlast.app.resource_status import resource_records

    return resource_records(find_workspace(workspace_url), kind)


def names_of(ctx: click.Context, kind: Kind) -> list[str]:
    """Return the names in the records: querying clouds is too slow for completion."""
    try:
        return [one.name for one in resource_records(ctx.params.get("workspace_url") or "", kind).all()]
    except OutlastError:
        return []


def _completion(kind: Kind) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    def complete(ctx: click.Context, _param: click.Parameter, beginning: str) -> list[str]:
        return [name for name in names_of(ctx, kind) if name.startswith(beginning)]

    return complete


def database_argument(command: F) -> F:
    return click.argument("name", shell_complete=_completion("database"))(command)


def volume_argument(command: F) -> F:
    return click.argument("name", shell_complete=_completion("volume"))(command)


def cloud_option(command: F) -> F:
    return click.option(
        "--cloud",
        "cloud_name",
        default="",
        metavar="NAME",
        shell_complete=complete_cloud,
        help="Cloud (local).",
    )(command)


def size(option: str, text: str) -> float:
    """Parse a size into gigabytes. Raises UsageError."""
    from outlast.spec.quantity import size_gb

    try:
        return size_gb(text)
    except ValueError as problem:
        raise UsageError(f"{option}: {problem}") from problem


def ready(name: str, workspace_url: str, kind: Kind) -> tuple[ResourceRecords, ResourceRecord]:
    """Return the record of a resource that is ready. Raises BadRequest while it is created or deleted."""
    from outlast.app.resource_status import ready_record

    records = resource_records(workspace_url, kind)
    return records, ready_record(records, name)


def list_resources(
    records: ResourceRecords,
    status: Callable[[ResourceRecord], tuple[T | None, str, str]],
    cells: Callable[[ResourceRecord, T | None, str], list[str]],
    *,
    header: list[str],
    as_json: bool,
) -> int:
    """Print one line per resource, with its remark in the last column, or JSON; return the exit code."""
    found = [(record, *status(record)) for record in records.all()]
    if as_json:
        import msgspec

        print_json([{**msgspec.to_builtins(record), "state": state, "why": why} for record, _, state, why in found])
    else:
        empty = f"no {records.kind}s; create one with `outlast {records.command} create`"
        lines = [[*cells(record, thing, state), why] for record, thing, state, why in found]
        click.echo(table(lines, header=[*header, ""]) if lines else empty)
    return report_damaged(records.damaged)


def print_json(value: Any) -> None:
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=1).decode())


def agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(f"cannot ask without a terminal: {question}", hint="repeat the command with --yes")
    return confirm(question)


def confirmed_record(records: ResourceRecords, name: str, *, loses: str, yes: bool) -> ResourceRecord | None:
    """Return the record of a resource to delete; None if the user does not agree. `loses`: the data that is lost."""
    from outlast.app.resource_status import record_to_delete

    record, warning = record_to_delete(clouds(records.workspace), records, name)
    if warning:
        note(warning)
    if yes or agreed(f"delete the {records.kind} {name} on {record.cloud}, {loses}?"):
        return record
    note("nothing was deleted")
    return None
