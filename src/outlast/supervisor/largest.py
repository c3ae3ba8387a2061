"""The largest sensible machine for the money: what a burst asks for. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.clouds.cloud import Offer

# A core may cost so much more than the cheapest: beyond it a machine is large in something that a burst does not use.
_DEARER_PER_CPU = 1.5


def largest(offers: Sequence[Offer], *, usd_per_hour_max: float, gpu: bool = False) -> Offer | None:
    """The offer with the most cores that costs no more an hour, and not much more a core than others; of equals the
    cheapest. Machines with GPUs only if one is asked for. None if all are too dear."""
    fitting = [o for o in offers if (gpu or not o.gpus) and 0 < o.price_usd_per_hour <= usd_per_hour_max and o.cpus]
    if not fitting:
        return None
    cheapest = min(o.price_usd_per_hour / o.cpus for o in fitting)
    sensible = [o for o in fitting if o.price_usd_per_hour / o.cpus <= cheapest * _DEARER_PER_CPU]
    return max(sensible, key=lambda o: (o.cpus, -o.price_usd_per_hour))
