"""`outlast prices`: machine prices of all clouds, with the origin and age of each price."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
import msgspec

from outlast.app.prices import (
    DATE,
    Requirements,
    ask_clouds,
    cheapest_first,
    known_clouds,
    location_of,
    no_offers,
    traffic_rates,
)
from outlast.cli.shared.command import READ_ONLY, command
from outlast.cli.shared.options import json_option, parse_option, workspace_option
from outlast.cli.shared.terminal import find_workspace, note, table
from outlast.formatting.quantities import gpu_text
from outlast.spec import quantity
from outlast.spec.duration import describe_s
from outlast.spec.gpus import GpuChoice

if TYPE_CHECKING:
    from outlast.app.prices import PriceAnswer
    from outlast.app.types import Offer

_ROWS = 30


@command(section="costs", progress="querying the clouds", interrupt=READ_ONLY, json="PriceList")
@click.option("--gpu", metavar="KIND", help="GPUs: T4 or A100:8; several with commas.")
@click.option("--cpus", metavar="N", help="Processors: 8, 8+ or 4..16.")
@click.option("--memory", metavar="SIZE", help="Memory: 32GB or 32GB+.")
@click.option("--type", "type_name", default="", metavar="NAME", help="Machine type by name.")
@click.option("--zone", "zones", multiple=True, metavar="ZONE", help="Only in this zone or region; `*`: the world.")
@click.option("--spot/--on-demand", "spot", default=None, help="Only spot, or only on demand (both).")
@click.option("--cloud", "cloud_names", multiple=True, type=click.Choice(known_clouds()), help="Only this cloud (all).")
@click.option("--all", "-a", "everything", is_flag=True, help="Every zone of every type, not only the cheapest.")
@json_option
@workspace_option
def prices(
    workspace_url: str,
    gpu: str | None,
    cpus: str | None,
    memory: str | None,
    type_name: str,
    zones: tuple[str, ...],
    spot: bool | None,
    cloud_names: tuple[str, ...],
    everything: bool,
    as_json: bool,
) -> int:
    """List machine prices of all clouds, cheapest first.

    A cloud that cannot be queried is reported, and the others are listed.
    """
    choices: tuple[GpuChoice, ...] = parse_option("--gpu", gpu, quantity.gpu_choices, ())
    url = find_workspace(workspace_url).url
    near = location_of(url)
    needs = Requirements(
        cpus=parse_option("--cpus", cpus, quantity.number_range, Requirements().cpus),
        memory_gb=parse_option("--memory", memory, quantity.size_range_gb, Requirements().memory_gb),
        gpu=choices[0].name if choices else "",
        gpus=choices[0].count if choices else 0,
        other_gpus=choices[1:],
        type=type_name,
        zones=tuple(zone for zone in zones if zone != "*"),
        near=near,
        anywhere="*" in zones,
    )
    kinds = [True, False] if spot is None else [spot]
    answers = ask_clouds(cloud_names, needs, kinds)
    rows = cheapest_first(answers, everything=everything)
    for answer in answers:
        if answer.problem:
            note(f"{answer.cloud}: {answer.problem}" + (f"; {answer.hint}" if answer.hint else ""))
    if as_json:
        _print_json(rows, answers, url, near)
    elif rows:
        _print(rows, url, near, whole=everything)
    if not rows:
        raise no_offers(answers)
    return 0


def source_text(offer: Offer) -> str:
    """Return the origin of a price, and its age if the origin does not have it."""
    source = offer.price_source or "unknown"
    if not offer.price_at or "fetched" in source or "built-in" in source:
        return source
    return f"{source}, {describe_s(max(0.0, time.time() - offer.price_at))} old"


def _print(rows: list[Offer], url: str, near: str, *, whole: bool) -> None:
    shown = rows if whole else rows[:_ROWS]
    # One line per origin: the ages of its prices differ by zone.
    sources = list(dict.fromkeys(offer.price_source for offer in shown))
    cells = [
        [
            offer.cloud,
            offer.type,
            f"{offer.cpus:g}",
            f"{offer.memory_gb:g} GB",
            gpu_text(offer.gpu, offer.gpus),
            offer.zone,
            "spot" if offer.spot else "on demand",
            f"${offer.price_usd_per_hour:.4f}" + ("?" if offer.price_guessed else ""),
            _less(offer),
            f"${offer.address_usd_per_hour:.4f}" if offer.address_usd_per_hour else "",
            _traffic(offer, url, near),
            f"({sources.index(offer.price_source) + 1})",
        ]
        for offer in shown
    ]
    header = "CLOUD TYPE CPUS MEMORY GPU ZONE KIND USD/HOUR LESS ADDRESS USD/GB SOURCE"
    click.echo(table(cells, header=header.split()))
    for number, text in enumerate(sources, 1):
        oldest = min((offer for offer in shown if offer.price_source == text), key=lambda offer: offer.price_at)
        click.echo(f"({number}) {source_text(oldest)}")
    if any(offer.price_guessed for offer in shown):
        click.echo("? this price is a guess: the cloud's prices could not be fetched, and the built-in ones lack it")
    if any(offer.address_usd_per_hour for offer in shown):
        click.echo("ADDRESS: the price of a public IPv4 address per hour, in addition")
    if any(_traffic(offer, url, near) for offer in shown):
        click.echo(f"USD/GB: traffic to and from the workspace in {near or url}, list prices of {DATE}")
    if len(rows) > len(shown):
        note(f"and {len(rows) - len(shown)} more: use --all, or filter")


def _traffic(offer: Offer, url: str, near: str) -> str:
    """Return the prices of traffic to and from the workspace; empty if it is free."""
    here = traffic_rates(url, near, offer.cloud, offer.region)
    return f"${here.sent:.2f}, ${here.received:.2f}" if here.sent or here.received else ""


def _less(offer: Offer) -> str:
    on_demand_usd = offer.on_demand_usd_per_hour
    return f"{1 - offer.price_usd_per_hour / on_demand_usd:.0%}" if offer.spot and on_demand_usd else ""


def _print_json(rows: list[Offer], answers: Sequence[PriceAnswer], url: str, near: str) -> None:
    import json

    offers = [{**msgspec.structs.asdict(offer), "source": source_text(offer)} for offer in rows]
    for offer in offers:
        del offer["price_source"]
        here = traffic_rates(url, near, offer["cloud"], offer["region"])
        offer |= {"sent_usd_per_gb": here.sent, "received_usd_per_gb": here.received}
    problems = {answer.cloud: answer.problem for answer in answers if answer.problem}
    click.echo(json.dumps({"offers": offers, "problems": problems}, indent=2))
