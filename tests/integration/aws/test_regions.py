"""Several regions of an account: offers near the data, machines found in any region, pools that EC2 chooses."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from outlast.clouds.aws.client import AwsClient
from outlast.clouds.aws.cloud import SECRETS_REGION, AwsCloud
from outlast.clouds.cloud import LABEL_ATTEMPT, LABEL_RUN, LABEL_WORKSPACE, Boot, Offer, Requirements, ZonesUnreachable
from outlast.errors import BadRequest, Denied, NoCapacity, NotFound
from outlast.spec.network import NetworkSpec
from tests.support.aws import Bridge

BOOT = Boot(script="#!/bin/bash\nsleep 600\n")


@pytest.fixture
def labels(cloud: AwsCloud) -> Iterator[dict[str, str]]:
    own = {LABEL_WORKSPACE: secrets.token_hex(4), LABEL_RUN: "far-1", LABEL_ATTEMPT: "1"}
    yield own
    for machine in cloud.machines(own):
        cloud.delete(machine.name)


def offers(cloud: AwsCloud, **needs: object) -> list[Offer]:
    return list(cloud.offers(Requirements(type="c6i.large", **needs)))  # type: ignore[arg-type]


def regions(found: list[Offer]) -> set[str]:
    return {offer.region for offer in found}


def test_offers_are_near_the_data_or_where_the_request_says(cloud: AwsCloud, bridge: Bridge) -> None:
    assert regions(offers(cloud)) == {"us-east-1"}
    assert regions(offers(cloud, near="us-east-2")) == {"us-east-1", "us-east-2"}
    assert regions(offers(cloud, near="EU")) == {"eu-west-1"}
    assert regions(offers(cloud, near="eu-west-1", anywhere=True)) == {"us-east-1", "us-east-2", "eu-west-1"}
    assert regions(offers(cloud, near="us-east-1", zones=("eu-west-1a",))) == {"eu-west-1"}
    assert regions(offers(cloud, near="us-east-1", exclude_zones=("us-east-1",))) == {"us-east-2"}
    subnets = cloud.regions.region("us-east-2").client.ec2("describe_subnets")["Subnets"]
    network = NetworkSpec(subnetworks=(subnets[0]["SubnetId"],))
    assert regions(offers(cloud, near="us-east-1", network=network)) == {"us-east-2"}
    for zone in ("us-east-9a", "us-central1-a", "ap-south-1"):  # the account has not enabled the last one
        with pytest.raises(BadRequest, match=zone):
            offers(cloud, zones=(zone,))


def test_the_location_of_a_bucket_is_known(cloud: AwsCloud, bridge: Bridge) -> None:
    far = f"box-{secrets.token_hex(4)}"
    AwsClient("eu-west-1").call(
        "s3", "create_bucket", Bucket=far, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"}
    )
    assert cloud.bucket_location(far) == "eu-west-1"
    assert cloud.bucket_location(bridge.new_bucket()) == "us-east-1"


def test_a_machine_is_found_from_any_region(cloud: AwsCloud, bridge: Bridge, labels: dict[str, str]) -> None:
    """Another process has another region, and sees no machine of this one in its cache."""
    cloud.put_secrets("far-secrets", {"KEY": "hush"})
    boot = Boot(script=BOOT.script, metadata={"outlast-secrets": "far-secrets"})
    there = offers(cloud, zones=("eu-west-1",))[0]
    name = f"far-{secrets.token_hex(3)}"
    cloud.launch(there, name, boot=boot, labels=labels)
    other = AwsCloud("us-east-2")
    assert [machine.zone for machine in other.machines(labels)] == [there.zone]
    assert AwsCloud("us-east-2").machine(name).zone == there.zone
    assert other.metadata(name)[SECRETS_REGION] == "us-east-1"
    again = other.launch(there, name, boot=boot, labels=labels)
    assert (again.zone, len(cloud.machines(labels))) == (there.zone, 1)
    bridge.rules({"action": "DescribeInstances", "zone": "us-east-2", "code": "InternalError", "status": 500})
    with pytest.raises(ZonesUnreachable) as silent:
        cloud.machines(labels)
    assert "us-east-2a" in silent.value.zones
    assert there.zone not in silent.value.zones
    assert [machine.name for machine in silent.value.machines] == [name]
    bridge.rules({"action": "DescribeInstances", "zone": "us-east-2", "code": "UnauthorizedOperation", "status": 403})
    assert [machine.name for machine in cloud.machines(labels)] == [name]  # an organisation forbids that region
    bridge.rules()
    AwsCloud("us-east-2").delete(name)
    with pytest.raises(NotFound, match="eu-west-1"):
        AwsCloud().machine(name)
    other.drop_secrets("far-secrets")


def test_a_region_that_refuses_is_left_out_only_without_machines(
    cloud: AwsCloud, bridge: Bridge, labels: dict[str, str]
) -> None:
    there = offers(cloud, zones=("eu-west-1",))[0]
    name = f"shut-{secrets.token_hex(3)}"
    cloud.launch(there, name, boot=BOOT, labels=labels)
    # Rights on secrets in one region only: the machines elsewhere are still listed.
    bridge.rules({"action": "DeleteParameter", "zone": "eu-west-1", "code": "AccessDeniedException"})
    other = AwsCloud("us-east-2")
    other.drop_secrets("no-secrets")
    assert [machine.name for machine in other.machines(labels)] == [name]
    # A machine must not count as gone because its region refuses for a while.
    bridge.rules({"action": "DescribeInstances", "zone": "eu-west-1", "code": "UnauthorizedOperation", "status": 403})
    for one in (cloud, other):
        with pytest.raises(ZonesUnreachable) as refused:
            one.machines(labels)
        assert there.zone in refused.value.zones
        with pytest.raises(Denied):
            one.delete(name)
    bridge.rules()
    other.delete(name)
    assert cloud.machines(labels) == []


def test_a_fleet_starts_in_any_of_its_pools_and_has_that_price(
    cloud: AwsCloud, bridge: Bridge, labels: dict[str, str]
) -> None:
    pools = offers(cloud)[:2]
    used = {offer.zone for offer in pools}
    pools += [offer for offer in cloud.offers(Requirements(type="m6i.large")) if offer.zone not in used][:1]
    name = f"pool-{secrets.token_hex(3)}"
    machine = cloud.launch_any(pools, name, boot=BOOT, labels=labels)
    # The emulated EC2 takes the last pool.
    assert (machine.zone, machine.type) == (pools[-1].zone, "m6i.large")
    assert machine.price_usd_per_hour == pools[-1].price_usd_per_hour
    assert cloud.launch_any(pools, name, boot=BOOT, labels=labels).type == "m6i.large"
    listed = AwsCloud().machines(labels)
    assert [(one.type, one.price_usd_per_hour) for one in listed] == [("m6i.large", machine.price_usd_per_hour)]
    full = [{"action": "CreateFleet", "zone": offer.zone, "code": "InsufficientInstanceCapacity"} for offer in pools]
    bridge.rules(*full[1:])
    second = cloud.launch_any(pools, f"{name}-b", boot=BOOT, labels=labels)
    assert (second.zone, second.type) == (pools[0].zone, "c6i.large")
    bridge.rules(*full)
    with pytest.raises(NoCapacity):
        cloud.launch_any(pools, f"{name}-c", boot=BOOT, labels=labels)
