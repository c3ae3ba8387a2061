"""What `outlast db` and `outlast volume` share: names with completion, sizes, the question before a deletion."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from outlast.cli.completion import complete_cloud
from outlast.cli.shared.progress import confirm
from outlast.cli.shared.terminal import find_workspace, table
from outlast.errors import BadRequest, OutlastError, UsageError

if TYPE_CHECKING:
    from outlast.records.resources import Kind, ResourceRecord, ResourceRecords

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def holdings_of(workspace_url: str, kind: Kind) -> ResourceRecords:
    from outlast.records.resources import ResourceRecords

    return ResourceRecords(find_workspace(workspace_url), kind)


def names_of(ctx: click.Context, kind: Kind) -> list[str]:
    """From the records alone: asking clouds takes too long for a press of a key."""
    try:
        return [one.name for one in holdings_of(ctx.params.get("workspace_url") or "", kind).all()]
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
        help="On this cloud (local).",
    )(command)


def size(option: str, text: str) -> float:
    """Gigabytes."""
    from outlast.spec.quantity import size_gb

    try:
        return size_gb(text)
    except ValueError as problem:
        raise UsageError(f"{option}: {problem}") from problem


def ready(name: str, workspace_url: str, kind: Kind) -> tuple[ResourceRecords, ResourceRecord]:
    """The thing of that name, which nobody is just making or deleting."""
    from outlast.records.record import PHASE_TEXT

    records = holdings_of(workspace_url, kind)
    record = records.get(name)
    if record.phase != "ready":
        hint = f"`outlast {records.command} show {name}`"
        raise BadRequest(f"{kind} `{name}` {PHASE_TEXT[record.phase]}", hint=hint)
    return records, record


def tell_all(
    found: Sequence[tuple[ResourceRecord, T | None, str, str]],
    cells: Callable[[ResourceRecord, T | None, str], list[str]],
    *,
    header: list[str],
    empty: str,
    as_json: bool,
) -> None:
    """A line each; what is to be said of one stands in the last column."""
    if as_json:
        import msgspec

        rows = [{**msgspec.to_builtins(record), "state": state, "why": why} for record, _, state, why in found]
        click.echo(msgspec.json.format(msgspec.json.encode(rows), indent=1).decode())
        return
    lines = [[*cells(record, thing, state), why] for record, thing, state, why in found]
    click.echo(table(lines, header=[*header, ""]) if lines else empty)


def agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Nobody is here to answer; nothing was deleted", hint="say --yes")
    return confirm(question)
