"""The instance types to choose from: EC2's own list, without those that a run should not get unasked."""

from __future__ import annotations

import pytest
from botocore.validate import ParamValidator

from outlast.clouds.aws.cloud import AwsCloud
from outlast.clouds.aws.machines import launch_data
from outlast.clouds.cloud import Boot, Requirements
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


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("cr-0123456789abcdef0", "CapacityReservationId"),
        ("arn:aws:resource-groups:us-east-1:1:group/a", "CapacityReservationResourceGroupArn"),
    ],
)
def test_a_machine_of_a_reservation_names_it_as_amazon_describes_it(cloud: AwsCloud, name: str, field: str) -> None:
    [offer, *_] = cloud.offers(Requirements(type="m6i.large", spot=False))
    image = {"ImageId": "ami-1", "Name": "base"}
    boot = Boot(reservation=name)
    body = launch_data(offer, "box", boot=boot, labels={}, image=image, groups=[], profile="")
    assert body["CapacityReservationSpecification"] == {"CapacityReservationTarget": {field: name}}
    shape = cloud.client.service("ec2").meta.service_model.operation_model("RunInstances").input_shape
    report = ParamValidator().validate({**body, "MinCount": 1, "MaxCount": 1}, shape)
    assert not report.has_errors(), report.generate_report()
