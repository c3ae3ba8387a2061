"""Why a run has no machine: prices and recent refusals by zone, when each is requested next, and what would help."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from outlast.app.dry_run import dry_run
from outlast.clouds.cloud import Offer
from outlast.errors import OutlastError
from outlast.formatting.quantities import money
from outlast.formatting.run_row import why
from outlast.runs import events as ev
from outlast.supervisor.world import RunView, cooldown_until
from outlast.workspace import Workspace

# Zones that are shown, cheapest first.
PLACES_MAX = 12


class WaitingPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A zone, spot or on demand, with its cheapest machine."""

    zone: str
    type: str
    spot: bool
    price_usd_per_hour: float
    # When it may be requested again; 0: now.
    until: float = 0.0
    # The last experience of this run in the zone, and when.
    news: str = ""
    news_at: float = 0.0


class WaitingReport(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run waits. `next_at` is 0 if its next machine may be requested now, or if that is unknown."""

    why: str
    next_at: float
    places: tuple[WaitingPlace, ...]
    advice: tuple[str, ...]


def waiting_of(workspace: Workspace, run: str) -> WaitingReport:
    """Return why a run waits. Asks its clouds for their offers. Raises OutlastError for a run that is not live."""
    world, _ = dry_run(workspace)
    view = next((view for view in world.runs if view.run == run), None)
    if view is None or view.state.ending:
        raise OutlastError(f"{run} does not wait for a machine", hint=f"see `outlast show {run}`")
    story = workspace.story(run)
    story.refresh()
    news, nodes = _news(story.events), view.spec.machine.nodes
    zones: dict[tuple[str, bool], list[Offer]] = {}
    for offer in (*view.spot_offers, *view.on_demand_offers):
        zones.setdefault((offer.zone, offer.spot), []).append(offer)
    places = [
        _place(offers, {offer.key: cooldown_until(world, offer, nodes) for offer in offers}, news, now=world.now)
        for offers in zones.values()
    ]
    places.sort(key=lambda place: place.price_usd_per_hour)
    return WaitingReport(
        why=view.impossible or view.offers_error or why(view.state),
        next_at=view.state.waiting_until or _next_at(places),
        places=tuple(places[:PLACES_MAX]),
        advice=advice(view, places),
    )


def _place(
    offers: Sequence[Offer],
    until: Mapping[str, float],
    news: Mapping[tuple[str, bool], tuple[str, float]],
    *,
    now: float,
) -> WaitingPlace:
    """Return a zone with its cheapest machine, and when any machine there may be requested."""
    cheapest = min(offers, key=lambda offer: offer.bills_usd_per_hour)
    text, at = news.get((cheapest.zone, cheapest.spot), ("", 0.0))
    next_at = min(until.values())
    return WaitingPlace(
        zone=cheapest.zone,
        type=cheapest.type,
        spot=cheapest.spot,
        price_usd_per_hour=cheapest.bills_usd_per_hour,
        until=next_at if next_at > now else 0.0,
        news=text,
        news_at=at,
    )


def _next_at(places: Sequence[WaitingPlace]) -> float:
    return min((place.until for place in places), default=0.0)


def _news(events: Iterable[ev.Event]) -> dict[tuple[str, bool], tuple[str, float]]:
    """Return the last experience in each zone."""
    placed: dict[int, ev.Placed] = {}
    found: dict[tuple[str, bool], tuple[str, float]] = {}
    for event in events:
        if isinstance(event, ev.Placed):
            placed[event.attempt] = event
            continue
        text = _experience(event)
        place = placed.get(getattr(event, "attempt", 0))
        if text and place is not None:
            found[place.zone, place.spot] = text, event.at
    return found


def _experience(event: ev.Event) -> str:
    match event:
        case ev.LaunchRefused():
            return f"refused: {event.why}"
        case ev.Lost():
            return "preempted" if event.preempted else f"lost: {event.why}"
        case ev.Started():
            return "had a machine"
        case _:
            return ""


def advice(view: RunView, places: Sequence[WaitingPlace]) -> tuple[str, ...]:
    """Return what would give the run a machine sooner. Pure."""
    machine, found = view.spec.machine, []
    on_demand = [usd for offer in view.spot_offers if (usd := offer.on_demand_usd_per_hour)]
    if view.impossible or not places:
        return (view.hint or "no machine fits `[machine]`: see `outlast prices`",)
    if machine.spot and not machine.fallback and on_demand:
        found.append(f"machines on demand cost from {money(min(on_demand))}/h: `[machine] fallback = true` uses them")
    if machine.spot and not view.spec.uses_policy:
        found.append("with `[limits] deadline` and `work` it moves to machines on demand before it is late")
    if machine.zones and "*" not in machine.zones:
        found.append(f"`[machine] zones` allows {', '.join(machine.zones)} only: allow more of them")
    if machine.type:
        found.append(f"`[machine] type` allows {machine.type} only: `cpus`, `memory` or `gpu` allow similar machines")
    return tuple(found)
