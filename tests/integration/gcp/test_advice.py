"""Google's advice on spot capacity, and offers without it."""

from __future__ import annotations

import pytest

from outlast.clouds.cloud import Requirements
from outlast.clouds.gcp.cloud import GcpCloud
from outlast_gcp_emulator.faults import Fault
from tests.support.gcp import Rehearsal

NEEDS = Requirements(type="e2-standard-2", zones=("us-central1", "me-central2"))
ADVICE = "*/advice/capacity"


def zones(cloud: GcpCloud, needs: Requirements = NEEDS) -> list[str]:
    return [offer.zone for offer in cloud.offers(needs)]


@pytest.mark.full
def test_of_equal_prices_the_zone_with_capacity_comes_first(gcp: GcpCloud, rehearsal: Rehearsal) -> None:
    by_name = zones(gcp)
    assert by_name[0] == "us-central1-a"
    rehearsal.local.set_zone("us-central1-a", capacity=0)
    advised = zones(rehearsal.cloud())
    assert advised[0] == "us-central1-b"
    assert sorted(advised) == sorted(by_name)
    # More expensive zones stay behind, whatever their capacity.
    assert advised.index("me-central2-a") > advised.index("us-central1-a")


def test_advice_is_cached_and_not_fetched_for_one_zone_or_on_demand(gcp: GcpCloud) -> None:
    zones(gcp)
    before = gcp.client.sent
    zones(gcp)
    zones(gcp, Requirements(type="e2-standard-2", zones=("us-central1-a",)))
    zones(gcp, Requirements(type="e2-standard-2", zones=("us-central1",), spot=False))
    assert gcp.client.sent == before


@pytest.mark.parametrize("status", [400, 403, 404, 429, 500, None])
def test_without_advice_offers_are_ordered_by_price_and_name(
    gcp: GcpCloud, rehearsal: Rehearsal, status: int | None
) -> None:
    rehearsal.local.set_zone("us-central1-a", capacity=0)
    rehearsal.endpoint.faults.add(Fault(path=ADVICE, status=status, times=10))
    found = zones(gcp)
    assert found[:2] == ["us-central1-a", "us-central1-b"]
    rehearsal.endpoint.faults.clear()
    # A failure is cached as well.
    assert zones(gcp) == found
