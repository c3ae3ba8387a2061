"""Zones and machine types by Google's names."""

from __future__ import annotations

import pytest

from outlast.clouds.cloud import Boot, Requirements
from outlast.clouds.local import catalog, google_types
from outlast.clouds.local.cloud import LocalCloud
from outlast.errors import BadRequest, NoCapacity, OverQuota

ZONE = "us-central1-f"


@pytest.mark.parametrize(
    ("name", "cpus", "memory_mb"),
    [("n1-standard-4", 4, 15360), ("n1-highcpu-2", 2, 1843), ("e2-micro", 2, 1024), ("custom-4-8192", 4, 8192)],
)
def test_types_have_the_sizes_of_googles_tables(name: str, cpus: int, memory_mb: int) -> None:
    kind = google_types.machine_type(name)
    assert kind is not None
    assert (kind.cpus, kind.memory_mb) == (cpus, memory_mb)


@pytest.mark.parametrize("name", ["n1-standard-3", "custom-3-4096", "custom-2-1000", "n9-standard-1", ""])
def test_a_type_that_google_lacks_is_refused(name: str) -> None:
    assert google_types.machine_type(name) is None
    with pytest.raises(BadRequest, match="no machine type"):
        catalog.kind(name)


def test_google_zones_are_offered_only_on_request() -> None:
    assert {offer.zone for offer in catalog.offers(Requirements(type="local-1"))} == set(catalog.ZONES)
    [offer] = catalog.offers(Requirements(type="a2-highgpu-1g", zones=(ZONE,)))
    assert (offer.zone, offer.region, offer.type) == (ZONE, "us-central1", "a2-highgpu-1g")
    assert (offer.gpu, offer.gpus, offer.memory_gb) == ("A100", 1, 85.0)
    with pytest.raises(BadRequest, match="us-central1-z"):
        catalog.offer("n1-standard-1", "us-central1-z", spot=True)


def test_a_google_zone_has_its_own_conditions(plain_cloud: LocalCloud) -> None:
    offer = catalog.offer("n1-standard-1", ZONE, spot=True)
    plain_cloud.set_zone(ZONE, capacity=0)
    with pytest.raises(NoCapacity):
        plain_cloud.launch(offer, "one", boot=Boot(), labels={})
    plain_cloud.set_zone(ZONE, capacity=None, quota=1)
    assert plain_cloud.launch(offer, "one", boot=Boot(), labels={}).zone == ZONE
    with pytest.raises(OverQuota):
        plain_cloud.launch(offer, "two", boot=Boot(), labels={})
    plain_cloud.launch(catalog.offer("n1-standard-1", "us-central1-a", spot=True), "three", boot=Boot(), labels={})
