"""Offers for a request with alternative GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outlast.clouds.cloud import Offer, Requirements


def offers_by_gpu(needs: Requirements, offers: Callable[[Requirements], Sequence[Offer]]) -> list[Offer]:
    """Return the offers for every alternative, each once, cheapest first; equal prices in the order of alternatives."""
    if not needs.other_gpus:
        return list(offers(needs))
    found: dict[tuple[str, str, str, int], Offer] = {}
    for own in needs.by_gpu():
        for one in offers(own):
            found.setdefault((one.zone, one.type, one.gpu, one.gpus), one)
    return sorted(found.values(), key=lambda one: one.price_usd_per_hour)
