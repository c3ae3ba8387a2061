"""`outlast limits`: spending limits of a user or of the whole workspace."""

from __future__ import annotations

import time

import click

from outlast.app.limit_usage import LimitUsage, limit_usages
from outlast.app.limits import change_limits, check_limited_user
from outlast.cli.shared.command import UNCERTAIN, command
from outlast.cli.shared.options import json_option, workspace_option
from outlast.cli.shared.project import naming_options
from outlast.cli.shared.terminal import find_workspace, note, table


@command(section="costs", interrupt=UNCERTAIN, json="list[LimitRow]")
@click.option("--user", "who", default="", metavar="USER", help="Limits of this user (of the workspace).")
@click.option("--cost-usd", type=float, default=None, metavar="USD", help="Maximum cost; 0: no limit.")
@click.option("--max-hours", type=float, default=None, metavar="HOURS", help="Maximum machine hours; 0: no limit.")
@click.option("--per", type=click.Choice(["day", "month", "total"]), default=None, help="Period (month).")
@click.option("--max-machines", type=int, default=None, metavar="N", help="Maximum machines at a time; 0: no limit.")
@click.option("--new", "is_new", is_flag=True, help="Allow a user without runs in this workspace.")
@json_option
@workspace_option
def limits(
    who: str,
    cost_usd: float | None,
    max_hours: float | None,
    per: str | None,
    max_machines: int | None,
    is_new: bool,
    as_json: bool,
    workspace_url: str,
) -> int:
    """Show or set spending limits of users and the workspace.

    Supervisors apply a change within seconds. At a limit, runs save and stop.
    """
    workspace = find_workspace(workspace_url)
    changes = {"cost_usd": cost_usd, "max_hours": max_hours, "max_machines": max_machines, "per": per}
    given = {name: value for name, value in changes.items() if value is not None}
    if given:
        with naming_options({name: "--" + name.replace("_", "-") for name in changes}):
            wanted = change_limits(workspace, who, given, is_new=is_new)
        note(f"{wanted.whose}: {wanted.text or 'no limit'}")
    elif who or is_new:
        check_limited_user(workspace, who)
    now = time.time()
    shown = [usage for usage in limit_usages(workspace, now) if not who or usage.limits.who in ("", who)]
    if as_json:
        _print_json(shown)
    elif shown:
        click.echo(table([[u.limits.who or "workspace", limit_text(u)] for u in shown], header=["WHO", "USED"]))
    else:
        note("there are no limits; set one with `outlast limits --cost-usd 50 --per month`")
    return 0


def limit_text(usage: LimitUsage) -> str:
    """Return a text such as `$3 of $50 this month; 4 machines at a time`."""
    one = usage.limits
    parts = [f"${usage.used_usd:.4g} of ${one.cost_usd:g}"] if one.cost_usd else []
    parts += [f"{usage.used_hours:.4g} of {one.max_hours:g} machine hours"] if one.max_hours else []
    parts = [", ".join(parts) + ("" if one.per == "total" else f" this {one.per}")] if parts else []
    parts += [f"{one.max_machines} machines at a time"] if one.max_machines else []
    return "; ".join(parts)


def _print_json(shown: list[LimitUsage]) -> None:
    import json

    import msgspec

    rows = [
        {**msgspec.structs.asdict(row.limits), "used_usd": row.used_usd, "used_hours": row.used_hours} for row in shown
    ]
    click.echo(json.dumps(rows, indent=2))
