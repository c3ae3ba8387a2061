"""The choice of an offer for the next attempt: cheapest progress, without cooldowns and recent preemptions. Pure."""

from __future__ import annotations

import msgspec

from outlast.clouds.cloud import Offer
from outlast.clouds.geography import distance
from outlast.spec.spec import MachineSpec
from outlast.supervisor.deadline import next_place, progress_usd
from outlast.supervisor.world import Fail, RunView, Wait, World, cooldown_until

# A zone that has just preempted a machine is likely to do so again soon.
AVOID_S = 600.0
# Offers are tried up to this multiple of the cheapest price; beyond it, the run waits.
DEARER_MAX = 1.5
# A cloud that knows its capacity may choose a pool that costs up to this multiple of the best offer: it ends later.
POOL_DEARER_MAX = 1.25
POOLS_MAX = 40
# A spot machine whose progress costs more than this part of the on-demand price is not worth a preemption.
SPOT_WORTH = 0.95


def choose(world: World, view: RunView) -> Offer | Wait | Fail:
    """Return an offer, or why there is none now."""
    if view.impossible:
        return Fail(run=view.run, why=view.impossible, hint=view.hint)
    if view.spec.uses_policy:
        place = next_place(world, view)
        if place is not None:
            return place
    offers = view.spot_offers if view.spec.machine.spot else view.on_demand_offers
    # A zone that does not answer launches nothing; if it is the only one, its refusal is the reason to wait.
    offers = tuple(one for one in offers if not world.is_silent(one.cloud, one.zone)) or offers
    if not offers and not (view.spec.machine.fallback and view.on_demand_offers):
        kind = "spot" if view.spec.machine.spot else "on-demand"
        return Fail(
            run=view.run,
            why=f"no {kind} machine of {' and '.join(view.spec.machine.clouds)} matches `[machine]`",
            hint="request less, or remove `zones`",
        )
    machine = view.spec.machine
    offers = near_cheapest(offers, machine)
    # A refused on-demand machine leaves the spot machines.
    free = _free(world, view, worth_a_preemption(world, view, offers)) or _free(world, view, offers)
    if not free and view.spec.machine.fallback:
        offers = near_cheapest(view.on_demand_offers, machine)
        free = _free(world, view, offers)
    if free:
        return free[0]
    return _wait(world, view, offers)


def worth_a_preemption(world: World, view: RunView, offers: tuple[Offer, ...]) -> tuple[Offer, ...]:
    """Return the offers, with the on-demand machine instead of a spot machine that costs nearly as much."""
    return tuple(_on_demand_instead(offer) if _is_dear(world, view, offer) else offer for offer in offers)


def _is_dear(world: World, view: RunView, offer: Offer) -> bool:
    on_demand_usd = offer.on_demand_usd_per_hour
    return offer.spot and 0 < on_demand_usd * SPOT_WORTH <= progress_usd(world, view, offer)


def _on_demand_instead(offer: Offer) -> Offer:
    return msgspec.structs.replace(offer, spot=False, price_usd_per_hour=offer.on_demand_usd_per_hour)


def near_cheapest(offers: tuple[Offer, ...], machine: MachineSpec) -> tuple[Offer, ...]:
    """Return the offers whose price is near the cheapest of their cloud and GPUs at the same distance from the data.

    So neither a dear cloud, nor a dear GPU, nor the data's own region is left out.
    """

    def group(offer: Offer) -> tuple[str, int, int]:
        return offer.cloud, machine.gpu_place(offer.gpu, offer.gpus), distance(offer.region, machine.near)

    cheapest: dict[tuple[str, int, int], float] = {}
    for offer in offers:
        key = group(offer)
        cheapest[key] = min(offer.price_usd_per_hour, cheapest.get(key, offer.price_usd_per_hour))
    return tuple(one for one in offers if one.price_usd_per_hour <= cheapest[group(one)] * DEARER_MAX)


def _free(world: World, view: RunView, offers: tuple[Offer, ...]) -> list[Offer]:
    """Return the offers without a cooldown, best first."""
    avoided, machine = _avoided(world, view), view.spec.machine

    def rank(offer: Offer) -> tuple[int, int, bool, int, int, float]:
        place, away = _preference(view, offer), distance(offer.region, machine.near)
        # Clouds and GPUs in the user's order, then the regions near the data: moving it costs money and time.
        user = machine.clouds.index(offer.cloud), machine.gpu_place(offer.gpu, offer.gpus)
        return *user, offer.zone in avoided, place, away, progress_usd(world, view, offer)

    nodes = view.spec.machine.nodes
    ready = [offer for offer in offers if cooldown_until(world, offer, nodes) <= world.now]
    return sorted(ready, key=rank)


def _preference(view: RunView, offer: Offer) -> int:
    """Return the place of an offer in the user's order of zones and regions."""
    preferred = [zone for zone in view.spec.machine.zones if zone != "*"]
    return min((preferred.index(one) for one in (offer.zone, offer.region) if one in preferred), default=len(preferred))


def other_pools(world: World, view: RunView, chosen: Offer) -> tuple[Offer, ...]:
    """Return the other spot offers of the same region that are as good, for a cloud that knows where it has capacity.

    A zone that the user prefers less is not as good. A cloud that does not choose itself gets the chosen offer only.
    """
    if not chosen.spot:
        return ()
    avoided, most_usd = _avoided(world, view), chosen.price_usd_per_hour * POOL_DEARER_MAX

    def is_as_good(offer: Offer) -> bool:
        same = (offer.cloud, offer.region, offer.gpu, offer.gpus) == (
            *(chosen.cloud, chosen.region, chosen.gpu, chosen.gpus),
        )
        if not same or offer.key == chosen.key or _preference(view, offer) != _preference(view, chosen):
            return False
        return offer.price_usd_per_hour <= most_usd

    return tuple(
        offer
        for offer in view.spot_offers
        if is_as_good(offer)
        and offer.zone not in avoided
        and not world.is_silent(offer.cloud, offer.zone)
        and cooldown_until(world, offer) <= world.now
        and not _is_dear(world, view, offer)
    )[:POOLS_MAX]


def _avoided(world: World, view: RunView) -> set[str]:
    return {
        a.zone
        for a in view.state.attempts
        if a.preempted and a.spot and world.now - max(a.noticed_at, a.over_at) < AVOID_S
    }


def _wait(world: World, view: RunView, offers: tuple[Offer, ...]) -> Wait:
    """Return why no offer is available, from the last refusal, and until when."""
    zones = {o.zone for o in offers}
    until = min(cooldown_until(world, offer, view.spec.machine.nodes) for offer in offers)
    last = next((a for a in reversed(view.state.attempts) if a.outcome == "refused"), None)
    why = last.why if last else "no capacity"
    count = "1 zone" if len(zones) == 1 else f"{len(zones)} zones"
    nodes = view.spec.machine.nodes
    what = f"no {nodes} machines at once" if nodes > 1 else "no machine"
    return Wait(run=view.run, why=f"{what} in {count}: {why}", until=until)
