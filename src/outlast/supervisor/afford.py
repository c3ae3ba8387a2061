"""Whether a run's own budget can be kept at all, said before anything is launched. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.clouds.cloud import Offer
from outlast.spec.spec import Spec


def check_budget(spec: Spec, offers: Sequence[Offer]) -> list[str]:
    """What is wrong with `[limits] cost_usd`, given what there is to choose from."""
    cap = spec.limits.cost_usd
    if not cap or not offers:
        return []
    unknown = [offer for offer in offers if offer.price_usd_per_hour <= 0]
    if unknown:
        names = ", ".join(sorted({f"`{offer.type}`" for offer in unknown})[:4])
        where = spec.machine.cloud
        return [f"[limits] cost_usd: nobody knows what {names} of `{where}` costs, and no budget can be kept with that"]
    cheapest = min(offers, key=lambda offer: offer.price_usd_per_hour)
    if cap < cheapest.price_usd_per_hour:
        return [
            f"[limits] cost_usd: ${cap:g} does not pay for an hour of the cheapest machine that fits "
            f"(`{cheapest.type}` in {cheapest.zone}: ${cheapest.price_usd_per_hour:.4g}); `outlast prices` shows them"
        ]
    return []
