"""The machines that a run will probably get: printed before money is spent, and confirmed if they cost much.

Machines of a cloud with `traits.free` cost nothing: for them nothing is printed, asked or fetched.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from outlast.app.choice import checkpoint_warning, is_billed, offers_for, script_text
from outlast.cli.shared.terminal import note, table
from outlast.errors import OutlastError, UsageError
from outlast.formatting.quantities import gpu_text
from outlast.spec.spec import Spec

if TYPE_CHECKING:
    from outlast.app.types import Cloud, Offer

F = TypeVar("F", bound=Callable[..., Any])
ASK_VARIABLE = "OUTLAST_ASK_ABOVE_USD"
_ASK_ABOVE_USD = 5.0
# Alternatives that the table shows beside the first choice.
_NEXT = 2


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Machines that a command is about to request: a spec, how many of it, and the name of its task in a group."""

    spec: Spec
    count: int = 1
    task: str = ""


def yes_option(command: F) -> F:
    return click.option("--yes", "-y", is_flag=True, help="Do not ask, whatever the machines cost.")(command)


def confirm_choice(
    clouds: Mapping[str, Cloud], wanted: Sequence[Wanted], *, url: str, yes: bool = False, quiet: bool = False
) -> None:
    """Print the machines and their prices, and ask above a price. Raises UsageError if the user declines.

    Without a terminal nothing is printed or asked. A request that no offer meets is left to the checks of `submit`.
    """
    for one in wanted:
        if not quiet and (text := checkpoint_warning(one.spec, script_text(one.spec))) and _is_shown(one.spec):
            note(f"warning: {one.task + ': ' if one.task else ''}{text}")
    billed = [one for one in wanted if is_billed(one.spec)]
    if quiet or not billed or not sys.stderr.isatty():
        return
    try:
        choices = [(one, offers_for(clouds, one.spec, url=url)) for one in billed]
    except OutlastError:
        return
    choices = [(one, offers) for one, offers in choices if offers]
    if not choices:
        return
    note(choice_text(choices))
    total = sum(one.count * offers[0].price_usd_per_hour for one, offers in choices)
    if total <= ask_above_usd(os.environ) or yes or not sys.stdin.isatty():
        return
    from outlast.cli.shared.progress import confirm

    if not confirm(f"Start for ${total:.2f} per hour?"):
        raise UsageError("declined; nothing was launched", hint=f"--yes and {ASK_VARIABLE} decide when outlast asks")


def ask_above_usd(environment: Mapping[str, str]) -> float:
    """Return the price per hour above which a command asks. Raises UsageError."""
    text = environment.get(ASK_VARIABLE, "")
    try:
        return float(text) if text else _ASK_ABOVE_USD
    except ValueError as problem:
        raise UsageError(f"{ASK_VARIABLE}: invalid `{text}`: expected USD per hour, such as 5") from problem


def choice_text(choices: Sequence[tuple[Wanted, Sequence[Offer]]]) -> str:
    """Return the table: for one run its first choices and the price on demand, for several one row each."""
    # The price first: a narrow terminal cuts the end of a line.
    header = ["", "USD/HOUR", "KIND", "ZONE", "TYPE", "CPUS", "MEMORY", "GPU"]
    if len(choices) > 1:
        rows = [_cells(f"{one.task} ×{one.count}", offers[0]) for one, offers in choices]
        return table(rows, header=header)
    one, offers = choices[0]
    first = offers[0]
    rows = [_cells("first choice" + (f" ×{one.count}" if one.count > 1 else ""), first)]
    rows += [_cells("else", offer) for offer in offers[1 : _NEXT + 1]]
    if first.spot and first.on_demand_usd_per_hour:
        on_demand = msgspec.structs.replace(first, spot=False, price_usd_per_hour=first.on_demand_usd_per_hour)
        rows.append(_cells("for comparison", on_demand))
    left = len(offers) - _NEXT - 1
    more = f"\nand {left} more, if these have no capacity; `outlast prices` lists all" if left > 0 else ""
    return table(rows, header=header) + more


def _cells(role: str, offer: Offer) -> list[str]:
    return [
        role,
        f"${offer.price_usd_per_hour:.4f}" + (" (a guess)" if offer.price_guessed else ""),
        "spot" if offer.spot else "on demand",
        f"{offer.cloud} {offer.zone}",
        offer.type,
        f"{offer.cpus:g}",
        f"{offer.memory_gb:g} GB",
        gpu_text(offer.gpu, offer.gpus),
    ]


def next_commands(run: str) -> str:
    """Return the commands that a user needs after the submission of a run."""
    return (
        f"follow it with `outlast logs -f {run}`, wait with `outlast wait {run}`, "
        f"fetch results with `outlast pull {run}`, end it with `outlast cancel {run}`"
    )


def _is_shown(spec: Spec) -> bool:
    """Return whether a warning is due: always for money, else only to a user who reads it."""
    return is_billed(spec) or sys.stderr.isatty()
