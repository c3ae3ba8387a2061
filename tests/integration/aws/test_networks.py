"""Networks of machines on EC2: `setup --network`, and launches in the subnets of the VPC."""

from __future__ import annotations

import secrets

from outlast.clouds.aws.cloud import AwsCloud
from outlast.clouds.aws.setup_network import AwsNetworkSetup
from outlast.clouds.cloud import LABEL_RUN, Boot, Requirements
from outlast.spec.network import NetworkSpec


def test_a_machine_starts_in_a_subnet_of_the_vpc_and_its_group_admits_itself(cloud: AwsCloud) -> None:
    plan = AwsNetworkSetup(cloud.client)
    for _ in range(2):
        for step in plan.steps():
            step.apply()
    vpcs = cloud.client.ec2("describe_vpcs", Filters=[{"Name": "tag:Name", "Values": ["outlast"]}])["Vpcs"]
    assert len(vpcs) == 1
    vpc = vpcs[0]["VpcId"]
    assert vpc in plan.settings_text()
    network = NetworkSpec(network=vpc, external_address=False, labels={"team": "vision"})
    zone = cloud.home.catalogue.zones()[0]
    for spot, labels in ((False, {"kind": "test"}), (True, {LABEL_RUN: "r-1", "kind": "test"})):
        offer = cloud.offers(Requirements(type="m5.large", zones=(zone,), spot=spot))[0]
        name = f"n-{secrets.token_hex(4)}"
        cloud.launch(offer, name, boot=Boot(network=network), labels=labels)
        doc = cloud.home.instances.find(name)
        assert doc["VpcId"] == vpc
        assert doc["Placement"]["AvailabilityZone"] == zone
        assert {"Key": "team", "Value": "vision"} in doc["Tags"]
        cloud.delete(name)
    named = [{"Name": "group-name", "Values": ["outlast"]}, {"Name": "vpc-id", "Values": [vpc]}]
    [group] = cloud.client.ec2("describe_security_groups", Filters=named)["SecurityGroups"]
    pairs = [pair for rule in group["IpPermissions"] for pair in rule["UserIdGroupPairs"]]
    assert group["GroupId"] in [pair["GroupId"] for pair in pairs]
