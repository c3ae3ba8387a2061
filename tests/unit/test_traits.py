"""Traits of clouds and stores, and the registry: which clouds exist, which are enabled, which facts hold."""

from __future__ import annotations

import pytest

from outlast.clouds.local.cloud import LocalCloud
from outlast.clouds.registry import Clouds, clouds, enable
from outlast.clouds.traits import BUILT_IN, DEFAULT_CLOUD, CloudTraits, is_known, store_owner, traits_of
from outlast.spec.fields import zone_belongs
from outlast.store.traits import FOLDER, NETWORK, PROCESS, StoreTraits, scheme_of, traits_of_store


@pytest.mark.parametrize(
    ("url", "scheme", "traits"),
    [
        ("/a/folder", "", FOLDER),
        ("gs://bucket/path", "gs", NETWORK),
        ("s3://bucket/path", "s3", NETWORK),
        ("memory://", "memory", PROCESS),
        ("sim://workspace", "sim", PROCESS),
    ],
)
def test_the_traits_of_a_store_follow_from_its_url(url: str, scheme: str, traits: StoreTraits) -> None:
    assert (scheme_of(url), traits_of_store(url)) == (scheme, traits)


def test_a_cloud_that_is_not_installed_has_the_traits_of_a_public_cloud() -> None:
    assert not is_known("mars")
    assert traits_of("mars") == CloudTraits()


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_class_of_a_built_in_cloud_has_the_traits_of_its_name(name: str) -> None:
    assert Clouds()[name].traits is traits_of(name)


@pytest.mark.parametrize(("scheme", "owner"), [("gs", "gcp"), ("s3", "aws"), ("memory", ""), ("", "")])
def test_a_store_belongs_to_the_cloud_with_its_scheme(scheme: str, owner: str) -> None:
    assert store_owner(scheme) == owner


@pytest.mark.parametrize(
    ("zone", "cloud", "belongs"),
    [
        ("us-east-1a", "aws", True),
        ("us-east-1", "aws", True),
        ("us-central1-a", "aws", False),
        ("us-central1-a", "gcp", True),
        ("us-east-1a", "gcp", False),
    ],
)
def test_a_zone_belongs_to_the_cloud_that_names_zones_like_it(zone: str, cloud: str, belongs: bool) -> None:
    assert zone_belongs(zone, cloud) == belongs


def test_a_lookup_enables_nothing() -> None:
    known = clouds()
    assert known["gcp"].name == "gcp"
    assert "aws" in known
    assert list(known) == [DEFAULT_CLOUD]
    enable(known, "gcp")
    enable(known, "gcp")
    enable(known, "mars")
    assert list(known) == [DEFAULT_CLOUD, "gcp"]


def test_every_cloud_of_a_plain_mapping_is_enabled() -> None:
    plain = {"local": LocalCloud()}
    enable(plain, "gcp")
    assert list(plain) == ["local"]


def test_an_unknown_cloud_cannot_be_looked_up() -> None:
    assert Clouds().get("mars") is None
    with pytest.raises(KeyError):
        Clouds()["mars"]
