"""The steps of `outlast setup aws --network`: a small VPC with a subnet in each zone and a free gateway to S3."""

from __future__ import annotations

import contextlib
import ipaddress

from outlast.clouds.aws import security_groups
from outlast.clouds.aws.client import AwsClient, tags
from outlast.clouds.aws.errors import Doc
from outlast.clouds.cloud import SetupStep
from outlast.errors import AlreadyExists

NAME = "outlast"
_RANGE = "10.76.0.0/16"
_TAG = [{"Name": "tag:Name", "Values": [NAME]}]


class AwsNetworkSetup:
    """The private network of one region. Each step may be repeated."""

    def __init__(self, client: AwsClient) -> None:
        self._client = client

    def steps(self) -> list[SetupStep]:
        named = f"--tag-specifications 'ResourceType={{}},Tags=[{{{{Key=Name,Value={NAME}}}}}]'"
        return [
            SetupStep(
                what="a VPC",
                commands=(f"aws ec2 create-vpc --cidr-block {_RANGE} {named.format('vpc')}",),
                apply=self._create_vpc,
            ),
            SetupStep(
                what="a subnet in each zone, with a way to the internet",
                commands=(
                    "aws ec2 create-subnet --vpc-id VPC --availability-zone ZONE --cidr-block 10.76.N.0/20",
                    "aws ec2 create-internet-gateway; aws ec2 attach-internet-gateway; "
                    "aws ec2 create-route --destination-cidr-block 0.0.0.0/0",
                ),
                apply=self._create_subnets,
            ),
            SetupStep(
                what="a gateway to S3, whose traffic is free",
                commands=(
                    f"aws ec2 create-vpc-endpoint --vpc-id VPC --service-name com.amazonaws.{self._client.region}.s3",
                ),
                apply=self._create_endpoint,
            ),
            SetupStep(
                what="a security group whose members reach each other",
                commands=(f"aws ec2 create-security-group --group-name {security_groups.GROUP} --vpc-id VPC",),
                apply=self._create_group,
            ),
        ]

    def _vpc(self) -> str:
        """Return the id of our VPC; empty if there is none."""
        found = self._client.ec2("describe_vpcs", Filters=_TAG)["Vpcs"]
        return str(found[0]["VpcId"]) if found else ""

    def _ensure_vpc(self) -> str:
        if known := self._vpc():
            return known
        created = self._client.ec2("create_vpc", CidrBlock=_RANGE, TagSpecifications=_named("vpc"))
        return str(created["Vpc"]["VpcId"])

    def _create_vpc(self) -> None:
        self._ensure_vpc()

    def _create_group(self) -> None:
        security_groups.group_of_machines(self._client, peers=True, vpc=self._ensure_vpc())

    def _create_subnets(self) -> None:
        vpc, table = self._ensure_vpc(), self._route_table()
        blocks = ipaddress.ip_network(_RANGE).subnets(new_prefix=20)
        only = [{"Name": "zone-type", "Values": ["availability-zone"]}]
        zones = sorted(
            str(one["ZoneName"])
            for one in self._client.ec2("describe_availability_zones", Filters=only)["AvailabilityZones"]
        )
        subnets = self._client.ec2("describe_subnets", Filters=_of(vpc))["Subnets"]
        there = {str(one["AvailabilityZone"]) for one in subnets}
        for zone, block in zip(zones, blocks, strict=False):
            if zone not in there:
                self._client.ec2(
                    "create_subnet",
                    VpcId=vpc,
                    AvailabilityZone=zone,
                    CidrBlock=str(block),
                    TagSpecifications=_named("subnet"),
                )
        gateways = self._client.ec2("describe_internet_gateways", Filters=_TAG)["InternetGateways"]
        if not gateways:
            made = self._client.ec2("create_internet_gateway", TagSpecifications=_named("internet-gateway"))
            gateways = [made["InternetGateway"]]
        gateway = str(gateways[0]["InternetGatewayId"])
        if not gateways[0].get("Attachments"):
            self._client.ec2("attach_internet_gateway", InternetGatewayId=gateway, VpcId=vpc)
        with contextlib.suppress(AlreadyExists):
            self._client.ec2("create_route", RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)

    def _route_table(self) -> str:
        main = [*_of(self._ensure_vpc()), {"Name": "association.main", "Values": ["true"]}]
        return str(self._client.ec2("describe_route_tables", Filters=main)["RouteTables"][0]["RouteTableId"])

    def _create_endpoint(self) -> None:
        vpc, service = self._ensure_vpc(), f"com.amazonaws.{self._client.region}.s3"
        if self._client.ec2("describe_vpc_endpoints", Filters=_of(vpc)).get("VpcEndpoints"):
            return
        self._client.ec2(
            "create_vpc_endpoint",
            VpcId=vpc,
            ServiceName=service,
            VpcEndpointType="Gateway",
            RouteTableIds=[self._route_table()],
        )

    def settings_text(self) -> str:
        """Return the lines of the user's file that use the network."""
        return f'[clouds.aws]\nnetwork = "{self._vpc()}"'


def _named(kind: str) -> list[Doc]:
    return [{"ResourceType": kind, "Tags": tags({"Name": NAME})}]


def _of(vpc: str) -> list[Doc]:
    return [{"Name": "vpc-id", "Values": [vpc]}]
