"""`outlast cost`: spending by group, compared with on-demand prices, and the wasted part."""

from __future__ import annotations

import datetime
import shutil
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import click

from outlast.app.costs import CAUSE_LABELS, CAUSES, By, grouped, spending, total
from outlast.cli.shared.command import READ_ONLY, command
from outlast.cli.shared.options import complete_run, json_option, workspace_option
from outlast.cli.shared.project import naming_options
from outlast.cli.shared.terminal import dim, find_workspace, money, note, report_damaged, table
from outlast.spec.quantity import describe_s

if TYPE_CHECKING:
    from outlast.app.types import LedgerLine, Sum, Workspace

_BY = ("run", "user", "day", "cloud", "machine")
_ROWS = 40


@command(section="costs", progress="reading costs", interrupt=READ_ONLY, json="CostReport")
@click.argument("run_name", metavar="RUN", required=False, default="", shell_complete=complete_run)
@click.option("--user", "who", default="", metavar="USER", help="Only spending of this user.")
@click.option("--since", default="", metavar="WHEN", help="Only since then: 7d, 12h, or a day such as 2026-11-01.")
@click.option("--by", type=click.Choice(_BY), default=None, help="Group by (day; for a run: machine).")
@json_option
@workspace_option
def cost(run_name: str, who: str, since: str, by: str | None, as_json: bool, workspace_url: str) -> int:
    """Report spending: on what, and how much of it was wasted.

    Covers runs, machines that users created, volumes and databases. The cost of running machines is an estimate, marked
    with `~`.
    """
    workspace = find_workspace(workspace_url)
    now = time.time()
    with naming_options({"since": "--since"}):
        found = spending(workspace, run_name, who=who, since=since, now=now)
    code = report_damaged(found.damaged, so="; its cost is not included")
    for name, why in found.unreachable.items():
        note(f"{name}: {why}; manual machines there are not included")
    lines, begin, unreachable = found.lines, found.since, found.unreachable
    chosen = cast(By, by or ("machine" if run_name else "day"))
    if as_json:
        click.echo(_as_json(lines, chosen, since=begin, now=now, unreachable=unreachable))
        return code
    _print(lines, chosen)
    _print_limits(workspace, now, who)
    return code


def _print(lines: list[LedgerLine], by: By) -> None:
    if not lines:
        note("no spending")
        return
    sums = grouped(lines, by)
    shown = list(sums.items())
    if by == "day":
        shown = shown[-_ROWS:]
        picture = per_day(grouped(lines, "day"))
        if picture:
            click.echo(picture + "\n")
    elif len(shown) > _ROWS:
        shown = shown[:_ROWS]
    rows = [_cells(key, one) for key, one in shown]
    whole = total(lines)
    header = [by.upper(), "COST", "ON DEMAND", "SAVED", "TIME", "WASTED", "GOODPUT", "FOR"]
    rest = len(sums) - len(shown)
    click.echo(table([*rows, _cells("all", whole)] if len(sums) > 1 else rows, header=header))
    if rest:
        note(f"and {rest} more, see --json")
    if whole.estimated_usd:
        click.echo(dim(f"~ {money(whole.estimated_usd)} of it is an estimate for running machines"))


def _cells(key: str, one: Sum) -> list[str]:
    saved = 1 - one.cost_usd / one.on_demand_usd if one.on_demand_usd else 0.0
    causes = ", ".join(f"{CAUSE_LABELS[cause]} {money(usd)}" for cause, usd in one.causes.items() if usd)
    mark = "~" if one.estimated_usd else ""
    return [
        key,
        mark + money(one.cost_usd),
        money(one.on_demand_usd),
        f"{saved:.0%}",
        describe_s(one.seconds),
        money(one.wasted_usd),
        "" if one.goodput is None else f"{one.goodput:.0%}",
        causes,
    ]


def _print_limits(workspace: Workspace, now: float, who: str) -> None:
    from outlast.app.limit_usage import limit_usages
    from outlast.cli.cost.limits import limit_text

    for usage in limit_usages(workspace, now):
        if not who or usage.limits.who in ("", who):
            click.echo(dim(f"limit of {usage.limits.whose}: {limit_text(usage)}"))


def _as_json(lines: list[LedgerLine], by: By, *, since: float, now: float, unreachable: dict[str, str]) -> str:
    import json

    import msgspec

    def data(one: Sum) -> dict[str, Any]:
        return {**msgspec.to_builtins(one), "wasted_usd": one.wasted_usd, "goodput": one.goodput}

    return json.dumps(
        {
            "since": since,
            "until": now,
            "total": data(total(lines)),
            "by": by,
            "groups": {key: data(one) for key, one in grouped(lines, by).items()},
            "lines": [msgspec.structs.asdict(line) for line in lines],
            "unreachable": unreachable,
        },
        indent=2,
    )


# Each cause has a different character: colour never carries meaning alone.
SIGNS = {
    "work": "█",
    "manual": "▓",
    "disk": "─",
    "address": "@",
    "egress": "→",
    "store": "≡",
    "boot": "·",
    "lost": "░",
    "idle": "▒",
    "stopped": "=",
}
_COLOURS = {
    "work": "green",
    "manual": "blue",
    "lost": "red",
    "idle": "yellow",
    "stopped": "red",
}
_DAYS_MAX = 31


def per_day(sums: Mapping[str, Sum], *, width: int = 0) -> str:
    """Draw the last days as bars, days without spending included; empty for a single day."""
    if len(sums) < 2:
        return ""
    days = _days(min(sums), max(sums))[-_DAYS_MAX:]
    most = max((sums[day].cost_usd for day in days if day in sums), default=0.0)
    if most <= 0:
        return ""
    columns = width or max(40, min(100, shutil.get_terminal_size().columns))
    cells = columns - len("2026-11-01  ") - len("  $1234.56")
    rows = [f"{day}  {_bar(sums.get(day), most, cells)}  {_sum(sums.get(day))}".rstrip() for day in days]
    seen = [cause for cause in CAUSES if any(day in sums and cause in sums[day].causes for day in days)]
    legend = "  ".join(f"{SIGNS[cause]} {CAUSE_LABELS[cause]}" for cause in seen)
    return "\n".join([*rows, click.style(legend, dim=True)])


def _days(first: str, last: str) -> list[str]:
    begin, end = datetime.date.fromisoformat(first), datetime.date.fromisoformat(last)
    return [(begin + datetime.timedelta(days=n)).isoformat() for n in range((end - begin).days + 1)]


def _sum(one: Sum | None) -> str:
    return ("~" if one.estimated_usd else "") + money(one.cost_usd) if one else ""


def _bar(one: Sum | None, most: float, cells: int) -> str:
    """Draw one day. Rounds the ends of the parts, not their lengths, so that rounding errors do not add up."""
    if one is None:
        return " " * cells
    text, at, usd = "", 0, 0.0
    for cause in CAUSES:
        usd += one.causes.get(cause, 0.0)
        end = round(usd / most * cells)
        text += click.style(SIGNS[cause] * (end - at), fg=_COLOURS.get(cause))
        at = max(at, end)
    return text + " " * (cells - at)
