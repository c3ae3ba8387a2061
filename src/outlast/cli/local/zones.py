"""`outlast local zones` and `set`: zones of the local cloud and their conditions."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from outlast.app.local_cloud import ALL, ZONES, set_zone, zone_rows
from outlast.cli.shared.command import READ_ONLY, UNCERTAIN, command
from outlast.cli.shared.options import json_option, ones_option
from outlast.cli.shared.terminal import table
from outlast.errors import UsageError
from outlast.spec.quantity import describe_s, duration_s

T = TypeVar("T")


def _complete_zone(_ctx: click.Context, _param: click.Parameter, beginning: str) -> list[str]:
    return [zone for zone in [*ZONES, ALL] if zone.startswith(beginning)]


@command(interrupt=READ_ONLY, json="list[ZoneRow]")
@json_option
def zones(as_json: bool) -> int:
    """List the zones: capacity, running machines, mean life of spot machines, prices."""
    found = zone_rows()
    if as_json:
        import json

        click.echo(json.dumps(found, indent=2))
        return 0
    header = ["ZONE", "CAPACITY", "RUNNING", "MEAN LIFE", "GRACE", "TRACE", "SPOT $/H", "ON DEMAND $/H"]
    click.echo(table([_zone_row(zone) for zone in found], header=header))
    return 0


def _zone_row(zone: dict[str, Any]) -> list[str]:
    trace = zone["trace"]
    replay = "-"
    if trace:
        replay = f"{os.path.basename(trace['path'])} window {trace['window']}, x{trace['speed_up']:g}"
        replay += ", no capacity now" if zone["outage"] else ""
    return [
        zone["zone"],
        "unlimited" if zone["capacity"] is None else str(zone["capacity"]),
        str(zone["running"]),
        "unlimited" if zone["mean_life_s"] is None else describe_s(zone["mean_life_s"]),
        describe_s(zone["grace_s"]),
        replay,
        "{:.4f} to {:.2f}".format(*zone["spot_usd_per_hour"]),
        "{:.4f} to {:.2f}".format(*zone["on_demand_usd_per_hour"]),
    ]


@command("set", interrupt=UNCERTAIN)
@click.argument("zone", shell_complete=_complete_zone)
@click.option("--capacity", metavar="N|none", help="Maximum machines at a time.")
@click.option("--quota", metavar="N|none", help="Quota of machines.")
@click.option("--rate", metavar="N|none", help="Requests per second that `local serve` answers.")
@click.option("--mean-life", metavar="TIME|none", help="Mean random life of spot machines: 10m.")
@click.option("--grace", metavar="TIME|none", help="Time from the notice to the end: 30s.")
@click.option("--trace", metavar="FILE|none", help="Replay a recorded spot trace from now on.")
@click.option("--window", metavar="ID", help="Window of the trace (0).")
@click.option("--speed-up", type=float, metavar="X", help="Replay speed, relative to the recording (1).")
@ones_option
def set_command(
    zone: str,
    capacity: str | None,
    quota: str | None,
    rate: str | None,
    mean_life: str | None,
    grace: str | None,
    trace: str | None,
    window: str | None,
    speed_up: float | None,
    ones: str | None,
) -> int:
    """Change the conditions of ZONE, or of `all`.

    `none` removes a setting; other settings stay.
    """
    changes: dict[str, Any] = {}
    _read(changes, "--capacity", "capacity", capacity, _count)
    _read(changes, "--quota", "quota", quota, _count)
    _read(changes, "--rate", "rate", rate, _rate)
    _read(changes, "--mean-life", "mean_life_s", mean_life, duration_s)
    _read(changes, "--grace", "grace_s", grace, duration_s)
    _read(changes, "--trace", "trace", trace, os.path.abspath)
    changes |= _replay(trace, window, speed_up, ones)
    if not changes:
        raise UsageError("no setting given", hint="see `outlast local set --help`")
    click.echo(f"set {', '.join(set_zone(zone, changes))}")
    return 0


def _read(changes: dict[str, Any], option: str, name: str, text: str | None, read: Callable[[str], T]) -> None:
    if text is None:
        return
    try:
        changes[name] = None if text == "none" else read(text)
    except ValueError as problem:
        raise UsageError(f"{option}: {problem}") from problem


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"invalid number of machines {text!r}: expected `0`, `3` or `none`")
    return int(text)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0 <= rate < float("inf"):
        raise ValueError(f"invalid number of requests per second {text!r}: expected `5`, `0.5` or `none`")
    return rate


def _replay(trace: str | None, window: str | None, speed_up: float | None, ones: str | None) -> dict[str, Any]:
    """Return the options of a replay. Raises UsageError without a trace."""
    for option, value in (("--window", window), ("--speed-up", speed_up), ("--ones", ones)):
        if value is not None and (trace is None or trace == "none"):
            raise UsageError(f"{option}: needs --trace FILE")
    if speed_up is not None and not 0 < speed_up < float("inf"):
        raise UsageError(f"--speed-up: {speed_up:g} must be more than zero")
    given = {"window": window, "speed_up": speed_up, "ones": ones}
    return {name: value for name, value in given.items() if value is not None}
