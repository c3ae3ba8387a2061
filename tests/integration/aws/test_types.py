"""The instance types to choose from: EC2's own list, without those that a run should not get unasked."""

from __future__ import annotations

from outlast.clouds.aws.cloud import AwsCloud
from outlast.clouds.cloud import Requirements
from outlast.spec.gpus import GpuChoice


def test_without_a_size_no_burstable_or_old_type_is_offered(cloud: AwsCloud) -> None:
    types = {offer.type for offer in cloud.offers(Requirements())}
    assert types
    assert not [name for name in types if name[0] in "at"]


def test_gpus_that_the_driver_of_the_default_image_does_not_support_are_not_offered(cloud: AwsCloud) -> None:
    assert cloud.offers(Requirements(gpu="V100")) == []


def test_types_that_no_table_of_ours_contains_are_offered(cloud: AwsCloud) -> None:
    offers = cloud.offers(Requirements(gpu="H200"))
    assert {offer.gpu for offer in offers} == {"H200"}
    assert all(offer.type.startswith("p5") for offer in offers)


def test_alternative_gpus_are_offered_each_with_its_number(cloud: AwsCloud) -> None:
    offers = cloud.offers(Requirements(gpu="H100", gpus=8, other_gpus=(GpuChoice("T4"), GpuChoice("16GB+"))))
    assert {("H100", 8), ("T4", 1)} <= {(offer.gpu, offer.gpus) for offer in offers}
    assert len({(offer.type, offer.zone) for offer in offers}) == len(offers)
