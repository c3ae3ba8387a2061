"""Where the next attempt goes: the cheapest progress that is not resting and not where it was just preempted. Pure."""

from __future__ import annotations

from outlast.clouds.cloud import Offer
from outlast.supervisor.deadline import next_place, progress_usd
from outlast.supervisor.world import Fail, RunView, Wait, World

# A zone that has just taken a machine back is likely to do it again soon.
AVOID_S = 600.0
# If the cheapest is not to be had the next zones are tried, not machines that nobody meant: so much dearer at most.
DEARER_MAX = 1.5


def region_key(offer: Offer) -> str:
    """What a quota applies to."""
    return f"{offer.cloud}/{offer.region}/*/{'spot' if offer.spot else 'on-demand'}"


def choose(world: World, view: RunView) -> Offer | Wait | Fail:
    """An offer to take, or why there is none now."""
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
            why=f"no {kind} machine of {' and '.join(view.spec.machine.clouds)} fits what `[machine]` asks for",
            hint="ask for less, or name no zones",
        )
    offers = _meant(offers)
    free = _free(world, view, offers)
    if not free and view.spec.machine.fallback:
        offers = _meant(view.on_demand_offers)
        free = _free(world, view, offers)
    if free:
        return free[0]
    return _hold(world, view, offers)


def _meant(offers: tuple[Offer, ...]) -> tuple[Offer, ...]:
    """Of each cloud those that are meant: a dear cloud is not left out where it was named."""
    cheapest: dict[str, float] = {}
    for offer in offers:
        cheapest[offer.cloud] = min(offer.price_usd_per_hour, cheapest.get(offer.cloud, offer.price_usd_per_hour))
    return tuple(o for o in offers if o.price_usd_per_hour <= cheapest[o.cloud] * DEARER_MAX)


def _free(world: World, view: RunView, offers: tuple[Offer, ...]) -> list[Offer]:
    """The offers that do not rest, best first."""
    preferred = [zone for zone in view.spec.machine.zones if zone != "*"]
    avoided, clouds = _avoided(world, view), view.spec.machine.clouds

    def rank(offer: Offer) -> tuple[int, bool, int, float]:
        places = [preferred.index(p) for p in (offer.zone, offer.region) if p in preferred]
        place = min(places, default=len(preferred))
        # Clouds in the order in which they were named: data crosses between them for money.
        return clouds.index(offer.cloud), offer.zone in avoided, place, progress_usd(world, view, offer)

    awake = [o for o in offers if all(world.cooldowns.get(k, 0.0) <= world.now for k in (o.key, region_key(o)))]
    return sorted(awake, key=rank)


def _avoided(world: World, view: RunView) -> set[str]:
    return {
        a.zone
        for a in view.state.attempts
        if a.preempted and a.spot and world.now - max(a.noticed_at, a.over_at) < AVOID_S
    }


def _hold(world: World, view: RunView, offers: tuple[Offer, ...]) -> Wait:
    """All are resting: say why, from the last refusal, and until when."""
    zones = {o.zone for o in offers}
    until = min(max(world.cooldowns.get(o.key, 0.0), world.cooldowns.get(region_key(o), 0.0)) for o in offers)
    last = next((a for a in reversed(view.state.attempts) if a.outcome == "refused"), None)
    why = last.why if last else "no capacity"
    count = "1 zone" if len(zones) == 1 else f"{len(zones)} zones"
    return Wait(run=view.run, why=f"no machine in {count}: {why}", until=until)
