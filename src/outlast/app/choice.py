"""The machines that a run will probably get, and what a preemption would do to it; nothing is launched."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import msgspec

from outlast.clouds.cloud import Cloud, Offer
from outlast.clouds.geography import distance
from outlast.clouds.location import with_location
from outlast.clouds.traits import traits_of
from outlast.errors import OutlastError, SpecError
from outlast.spec.command import fills, script_of
from outlast.spec.spec import MachineSpec, Spec

# A program that mentions one of these saves without `[checkpoint] path`.
_SAVES = ("OUTLAST_CHECKPOINT_DIR", "import outlast", "from outlast")
# A machine whose cores cost more than this times the cheapest is large in something that a burst does not use.
_PRICE_PER_CORE_RATIO_MAX = 1.5


def is_billed(spec: Spec) -> bool:
    """Return whether a cloud of the run costs money."""
    return not all(traits_of(name).free for name in spec.machine.clouds)


def ranked(machine: MachineSpec, offers: Sequence[Offer]) -> list[Offer]:
    """Return the offers in the order in which a supervisor tries them for a new run."""
    from outlast.supervisor.choose import near_cheapest  # imported late: free machines do not need it

    preferred = [zone for zone in machine.zones if zone != "*"]

    def rank(offer: Offer) -> tuple[int, int, int, int, float]:
        places = [preferred.index(place) for place in (offer.zone, offer.region) if place in preferred]
        place, away = min(places, default=len(preferred)), distance(offer.region, machine.near)
        user = machine.clouds.index(offer.cloud), machine.gpu_place(offer.gpu, offer.gpus)
        return *user, place, away, offer.price_usd_per_hour

    return sorted(near_cheapest(tuple(offers), machine), key=rank)


def offers_for(clouds: Mapping[str, Cloud], spec: Spec, *, url: str) -> list[Offer]:
    """Return the offers for a run whose workspace is at `url`, in the order of a supervisor. Raises OutlastError."""
    machine = with_location(spec, url, clouds).machine
    found = [
        offer
        for name in machine.clouds
        if name in clouds
        for offer in clouds[name].offers(machine.needs_on(name, spot=machine.spot))
    ]
    return ranked(machine, found)


def checkpoint_warning(spec: Spec, script: str) -> str:
    """Return what a preemption will do to a spot run that names no checkpoint; empty if it need not be warned about."""
    serves = spec.member is not None and bool(spec.member.until)
    if not spec.machine.spot or spec.checkpoint.path or serves or any(sign in script for sign in _SAVES):
        return ""
    return (
        "no checkpoint path: after a preemption the command starts again from the beginning, and the run fails after "
        f"{spec.limits.no_progress} attempts without progress; add `--checkpoint PATH`, or `--on-demand`"
    )


def script_text(spec: Spec) -> str:
    """Return the beginning of the script that the command runs; empty if it cannot be read."""
    script = script_of(spec.command)
    if not script or spec.code.git:
        return ""
    try:
        with open(os.path.join(spec.code.path, script), encoding="utf-8", errors="replace") as file:
            return file.read(1_000_000)
    except OSError:
        return ""


def largest_offer(offers: Sequence[Offer], *, usd_per_hour_max: float, gpu: bool = False) -> Offer | None:
    """Return the offer with the most cores within the price, of equals the cheapest; None if all cost too much.

    Offers with GPUs count only if `gpu` is set, and offers that cost much more per core than others do not count.
    """
    fitting = [o for o in offers if (gpu or not o.gpus) and 0 < o.price_usd_per_hour <= usd_per_hour_max and o.cpus]
    if not fitting:
        return None
    cheapest = min(o.price_usd_per_hour / o.cpus for o in fitting)
    sensible = [o for o in fitting if o.price_usd_per_hour / o.cpus <= cheapest * _PRICE_PER_CORE_RATIO_MAX]
    return max(sensible, key=lambda o: (o.cpus, -o.price_usd_per_hour))


def with_largest_machine(
    spec: Spec, available: Mapping[str, Cloud], *, usd_per_hour_max: float, source: str
) -> tuple[Spec, Offer]:
    """Choose the machine; return the spec with its type, and the offer."""
    machine = spec.machine
    cloud = available.get(machine.cloud)
    if cloud is None:
        raise SpecError([f"[machine] cloud: unknown cloud `{machine.cloud}`"], source=source)
    offers = cloud.offers(machine.needs(spot=machine.spot))
    chosen = largest_offer(offers, usd_per_hour_max=usd_per_hour_max, gpu=bool(machine.gpus))
    if chosen is None:
        if not offers:
            raise SpecError(
                [f"[machine]: no machine of `{machine.cloud}` matches; reduce the requirements"], source=source
            )
        least = min(offer.price_usd_per_hour for offer in offers)
        raise OutlastError(
            f"every matching machine costs more than ${usd_per_hour_max:g}/h; the cheapest costs ${least:.2f}/h",
            hint="raise --most, or reduce --cpus",
        )
    params = {**spec.params, **({"cpus": int(chosen.cpus)} if fills(spec.command, "cpus") else {})}
    if machine.other_gpus:
        machine = msgspec.structs.replace(machine, gpu=chosen.gpu, gpus=chosen.gpus, other_gpus=())
    machine = msgspec.structs.replace(machine, type=chosen.type)
    return msgspec.structs.replace(spec, machine=machine, params=params), chosen
