"""Networks of machines on EC2: `setup --network`, and launches in the subnets of the VPC."""

from __future__ import annotations

import json
import secrets

import pytest

from outlast.clouds.aws import databases, volumes
from outlast.clouds.aws.cloud import AwsCloud
from outlast.clouds.aws.setup_network import AwsNetworkSetup
from outlast.clouds.cloud import LABEL_RUN, Boot, Requirements
from outlast.clouds.resources import DatabaseRequest
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


def test_volumes_and_databases_are_in_the_vpc_of_the_machines(cloud: AwsCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (databases, volumes):
        monkeypatch.setattr(module, "_PAUSE_S", 0.01)
    for step in AwsNetworkSetup(cloud.client).steps():
        step.apply()
    [vpc] = cloud.client.ec2("describe_vpcs", Filters=[{"Name": "tag:Name", "Values": ["outlast"]}])["Vpcs"]
    mine = [{"Name": "vpc-id", "Values": [vpc["VpcId"]]}]
    subnets = {doc["SubnetId"] for doc in cloud.client.ec2("describe_subnets", Filters=mine)["Subnets"]}
    # No group of the default VPC, and no default VPC, is needed.
    settings = {"network": vpc["VpcId"], "external_address": False}
    monkeypatch.setenv("OUTLAST_NETWORKS", json.dumps({"aws": settings}))
    cloud.volumes.create("demos", size_gb=10.0)
    [made] = cloud.client.call("efs", "describe_file_systems", CreationToken="demos")["FileSystems"]
    targets = cloud.client.call("efs", "describe_mount_targets", FileSystemId=made["FileSystemId"])["MountTargets"]
    assert {target["SubnetId"] for target in targets} <= subnets
    assert targets
    cloud.volumes.delete("demos")
    request = DatabaseRequest(engine="postgres", database="genes", user="genes")
    cloud.databases.create("genes", request, password="a-password-of-a-test")
    [doc] = cloud.client.call("rds", "describe_db_instances", DBInstanceIdentifier="genes")["DBInstances"]
    assert doc["DBSubnetGroup"]["DBSubnetGroupName"] == f"outlast-{vpc['VpcId']}"
    assert doc["PubliclyAccessible"] is False
    groups = cloud.client.ec2("describe_security_groups", Filters=mine)["SecurityGroups"]
    assert doc["VpcSecurityGroups"][0]["VpcSecurityGroupId"] in {group["GroupId"] for group in groups}
    cloud.databases.delete("genes")
