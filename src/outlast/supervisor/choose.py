"""The choice of an offer for the next attempt: cheapest progress, without cooldowns and recent preemptions. Pure."""

from __future__ import annotations

from outlast.clouds.cloud import Offer
from outlast.supervisor.deadline import next_place, progress_usd
from outlast.supervisor.world import Fail, RunView, Wait, World

# A zone that has just preempted a machine is likely to do so again soon.
AVOID_S = 600.0
# Offers are tried up to this multiple of the cheapest price; beyond it, the run waits.
DEARER_MAX = 1.5


def region_key(offer: Offer) -> str:
    """Return the key of a quota: one region, spot or on demand."""
    return f"{offer.cloud}/{offer.region}/*/{'spot' if offer.spot else 'on-demand'}"


def gpu_key(offer: Offer) -> str:
    """Return the key of a zone's GPUs, which all its machine types share; empty without a GPU."""
    return f"{offer.cloud}/{offer.zone}/{offer.gpu}/{'spot' if offer.spot else 'on-demand'}" if offer.gpu else ""


def cooldown_until(world: World, offer: Offer) -> float:
    """Return when the cooldowns of an offer end: its own, of its region's quota and of its zone's GPUs."""
    return max(world.cooldowns.get(key, 0.0) for key in (offer.key, region_key(offer), gpu_key(offer)))


def choose(world: World, view: RunView) -> Offer | Wait | Fail:
    """Return an offer, or why there is none now."""
    if view.impossible:
        return Fail(run=view.run, why=view.impossible, hint=view.hint)
    if view.spec.uses_policy:
        place = next_place(world, view)
        if place is not None:
            return place
    offers = view.spot_offers if view.spec.machine.spot else view.on_demand_offers
    if not offers and not (view.spec.machine.fallback and view.on_demand_offers):
        kind = "spot" if view.spec.machine.spot else "on-demand"
        return Fail(
            run=view.run,
            why=f"no {kind} machine of {' and '.join(view.spec.machine.clouds)} matches `[machine]`",
            hint="request less, or remove `zones`",
        )
    offers = _near_cheapest(offers)
    free = _free(world, view, offers)
    if not free and view.spec.machine.fallback:
        offers = _near_cheapest(view.on_demand_offers)
        free = _free(world, view, offers)
    if free:
        return free[0]
    return _wait(world, view, offers)


def _near_cheapest(offers: tuple[Offer, ...]) -> tuple[Offer, ...]:
    """Return the offers near the cheapest of their own cloud, so that an expensive cloud is not left out."""
    cheapest: dict[str, float] = {}
    for offer in offers:
        cheapest[offer.cloud] = min(offer.price_usd_per_hour, cheapest.get(offer.cloud, offer.price_usd_per_hour))
    return tuple(o for o in offers if o.price_usd_per_hour <= cheapest[o.cloud] * DEARER_MAX)


def _free(world: World, view: RunView, offers: tuple[Offer, ...]) -> list[Offer]:
    """Return the offers without a cooldown, best first."""
    preferred = [zone for zone in view.spec.machine.zones if zone != "*"]
    avoided, clouds = _avoided(world, view), view.spec.machine.clouds

    def rank(offer: Offer) -> tuple[int, bool, int, float]:
        places = [preferred.index(p) for p in (offer.zone, offer.region) if p in preferred]
        place = min(places, default=len(preferred))
        # Clouds in the user's order: moving data between them costs money.
        return clouds.index(offer.cloud), offer.zone in avoided, place, progress_usd(world, view, offer)

    ready = [offer for offer in offers if cooldown_until(world, offer) <= world.now]
    return sorted(ready, key=rank)


def _avoided(world: World, view: RunView) -> set[str]:
    return {
        a.zone
        for a in view.state.attempts
        if a.preempted and a.spot and world.now - max(a.noticed_at, a.over_at) < AVOID_S
    }


def _wait(world: World, view: RunView, offers: tuple[Offer, ...]) -> Wait:
    """Return why no offer is available, from the last refusal, and until when."""
    zones = {o.zone for o in offers}
    until = min(cooldown_until(world, offer) for offer in offers)
    last = next((a for a in reversed(view.state.attempts) if a.outcome == "refused"), None)
    why = last.why if last else "no capacity"
    count = "1 zone" if len(zones) == 1 else f"{len(zones)} zones"
    return Wait(run=view.run, why=f"no machine in {count}: {why}", until=until)
