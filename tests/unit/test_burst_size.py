"""The choice of the largest affordable machine."""

from __future__ import annotations

from outlast.app.choice import largest_offer
from outlast.clouds.cloud import Offer


def offer(type: str, cpus: float, usd: float, gpus: int = 0) -> Offer:
    return Offer(
        cloud="c", region="r", zone="z", type=type, cpus=cpus, memory_gb=1, spot=True, price_usd_per_hour=usd, gpus=gpus
    )


SMALL, BIG, MEMORY, GPU = offer("s", 4, 0.1), offer("b", 64, 1.7), offer("m", 96, 9.0), offer("g", 96, 2.4, gpus=8)


def test_the_most_cores_win_unless_a_core_is_much_more_expensive() -> None:
    assert largest_offer([SMALL, BIG, MEMORY], usd_per_hour_max=20) == BIG


def test_offers_far_above_the_cheapest_price_are_not_used() -> None:
    assert largest_offer([SMALL, BIG], usd_per_hour_max=1) == SMALL
    assert largest_offer([SMALL, BIG], usd_per_hour_max=0.01) is None


def test_gpus_only_if_requested() -> None:
    assert largest_offer([BIG, GPU], usd_per_hour_max=5) == BIG
    assert largest_offer([BIG, GPU], usd_per_hour_max=5, gpu=True) == GPU


def test_of_equal_machines_the_cheapest_is_chosen() -> None:
    cheaper = offer("c", 64, 1.6)
    assert largest_offer([BIG, cheaper], usd_per_hour_max=5) == cheaper
