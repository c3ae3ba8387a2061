"""`outlast doctor`: checks of the set-up, each with a fix. Changes nothing."""

from __future__ import annotations

import click
import msgspec

from outlast.app.diagnosis import Check, examine_setup
from outlast.cli.shared.command import UNCHANGED, command
from outlast.cli.shared.options import json_option, workspace_option
from outlast.cli.shared.terminal import find_workspace
from outlast.clouds.traits import known_clouds


@command(section="start", progress="checking", interrupt=UNCHANGED, json="DoctorReport")
@json_option
@workspace_option
@click.option(
    "--cloud",
    "cloud_names",
    multiple=True,
    type=click.Choice(known_clouds()),
    help="Check this cloud (those of the workspace, and those with credentials here).",
)
def doctor(workspace_url: str, as_json: bool, cloud_names: tuple[str, ...]) -> int:
    """Check the set-up; report problems and fixes.

    Prints a row for each check, with its purpose and a fix. Exits with 0 if outlast is usable on this
    computer, with 1 if not. Warnings do not count.
    """
    checks = list(examine_setup(lambda: find_workspace(workspace_url), cloud_names))
    usable = all(check.state != "error" for check in checks)
    if as_json:
        import json

        click.echo(json.dumps({"usable": usable, "checks": [msgspec.to_builtins(c) for c in checks]}, indent=2))
    else:
        _print(checks)
        click.echo("outlast is usable here" if usable else "outlast is not usable here: see the errors above")
    return 0 if usable else 1


def _print(checks: list[Check]) -> None:
    """Print a table; each fix has a separate line, which a narrow terminal does not cut off."""
    colours = {"ok": "green", "warning": "yellow", "error": "red"}
    width = max(len(check.check) for check in checks)
    for check in checks:
        state = click.style(check.state.ljust(7), fg=colours[check.state])
        click.echo(f"{check.check.ljust(width)}  {state}  {check.says}")
        if check.fix:
            click.echo(f"{' ' * width}           fix: {check.fix}")
