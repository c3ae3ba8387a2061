"""The network of machines on EC2, from the network settings: subnets by zone, security groups, addresses."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.clouds.aws import security_groups
from outlast.clouds.aws.client import AwsClient
from outlast.clouds.aws.errors import Doc
from outlast.errors import BadRequest, NoCapacity
from outlast.spec.network import NetworkSpec

_SECTION = "`[clouds.aws]`"


class AwsNetwork:
    """The network settings, resolved in one region."""

    def __init__(self, client: AwsClient, settings: NetworkSpec) -> None:
        self._client = client
        self.settings = settings

    @property
    def is_default(self) -> bool:
        own = self.settings
        return not own.network and not own.subnetworks and not own.security_groups and own.external_address

    def groups(self, *, peers: bool) -> list[str]:
        """Return the security groups of a machine: those of the settings, else outlast's own in their VPC."""
        if self.settings.security_groups:
            return list(self.settings.security_groups)
        return [security_groups.group_of_machines(self._client, peers=peers, vpc=self.vpc())]

    def vpc(self) -> str:
        """Return the id of the VPC; empty for the default one."""
        if self.settings.network or not self.settings.subnetworks:
            return self.settings.network
        return str(self._subnets()[0]["VpcId"])

    def places(self, zones: Sequence[str]) -> list[Doc]:
        """Return where an instance may start: the zones, or the subnets of the settings there. Raises NoCapacity."""
        if self.is_default:
            return [{"AvailabilityZone": zone} for zone in zones]
        there = [{"SubnetId": str(doc["SubnetId"])} for doc in self._subnets() if doc["AvailabilityZone"] in zones]
        if not there:
            hint = f"add a subnet of that zone to `subnetworks` in {_SECTION}, or restrict the zones"
            raise NoCapacity(f"the network settings have no subnet in zone {', '.join(zones)}", hint=hint)
        return there

    def applied(self, data: Doc) -> Doc:
        """Return launch parameters with the network interface that the settings need."""
        if self.is_default:
            return data
        rest = {name: value for name, value in data.items() if name != "SecurityGroupIds"}
        interface: Doc = {"DeviceIndex": 0, "Groups": data["SecurityGroupIds"], "DeleteOnTermination": True}
        interface["AssociatePublicIpAddress"] = self.settings.external_address
        return {**rest, "NetworkInterfaces": [interface]}

    def _subnets(self) -> list[Doc]:
        own = self.settings
        where: Doc = (
            {"SubnetIds": list(own.subnetworks)}
            if own.subnetworks
            else {"Filters": [_filter("vpc-id", own.network) if own.network else _filter("default-for-az", "true")]}
        )
        found = list(self._client.pages("ec2", "describe_subnets", "Subnets", **where))
        if not found:
            hint = f"create a private one with `outlast setup aws --network --apply`, or set `network` in {_SECTION}"
            why = f"no subnet in region {self._client.region} of VPC `{own.network or 'default'}`"
            raise BadRequest(why, hint=hint)
        return found


def _filter(name: str, value: str) -> Doc:
    return {"Name": name, "Values": [value]}
