"""Where spot machines are to be had: Google's advice, and what is done without it."""

from __future__ import annotations

import pytest

from outlast.clouds.cloud import Requirements
from outlast.clouds.gcp.cloud import GcpCloud
from outlast_gcp_emulator.faults import Fault
from tests.support.gcp import Rehearsal

NEEDS = Requirements(type="e2-standard-2", zones=("us-central1", "europe-west4"))
ADVICE = "*/advice/capacity"


def zones(cloud: GcpCloud, needs: Requirements = NEEDS) -> list[str]:
    return [offer.zone for offer in cloud.offers(needs)]


def test_of_equal_prices_the_zone_that_has_room_comes_first(gcp: GcpCloud, rehearsal: Rehearsal) -> None:
    by_name = zones(gcp)
    assert by_name[0] == "us-central1-a"
    rehearsal.local.set_zone("us-central1-a", capacity=0)
    advised = zones(rehearsal.cloud())
    assert advised[0] == "us-central1-b"
    assert sorted(advised) == sorted(by_name)
    # Dearer ones stay behind, whatever room they have.
    assert advised.index("europe-west4-a") > advised.index("us-central1-a")


def test_advice_is_asked_once_for_some_minutes_and_never_for_one_zone_or_on_demand(gcp: GcpCloud) -> None:
    zones(gcp)
    before = gcp.client.sent
    zones(gcp)
    zones(gcp, Requirements(type="e2-standard-2", zones=("us-central1-a",)))
    zones(gcp, Requirements(type="e2-standard-2", zones=("us-central1",), spot=False))
    assert gcp.client.sent == before


@pytest.mark.parametrize("status", [400, 403, 404, 429, 500, None])
def test_without_advice_offers_are_in_the_order_of_price_and_name(
    gcp: GcpCloud, rehearsal: Rehearsal, status: int | None
) -> None:
    rehearsal.local.set_zone("us-central1-a", capacity=0)
    rehearsal.endpoint.faults.add(Fault(path=ADVICE, status=status, times=10))
    found = zones(gcp)
    assert found[:2] == ["us-central1-a", "us-central1-b"]
    rehearsal.endpoint.faults.clear()
    # Whether it is there again is not asked at every look.
    assert zones(gcp) == found
