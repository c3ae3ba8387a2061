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
            return self._groups() or list(self.settings.security_groups)
        return [security_groups.group_of_machines(self._client, peers=peers, vpc=self.vpc())]

    def vpc(self) -> str:
        """Return the id of the VPC; empty for the default one."""
        if self.settings.network or not self.settings.subnetworks:
            return self.settings.network
        return str(self._subnets()[0]["VpcId"])

    def is_here(self) -> bool:
        """Return whether the VPC, the subnets, the groups and the key of the settings are in this region."""
        own = self.settings
        if own.encryption_key.startswith("arn:") and own.encryption_key.split(":")[3] != self._client.region:
            return False
        if own.security_groups and not self._groups():
            return False
        return not (own.network or own.subnetworks) or bool(self._found_subnets())

    def places(self, zones: Sequence[str]) -> list[tuple[str, Doc]]:
        """Return where an instance may start: zones, each as EC2 names it or a subnet there. Raises NoCapacity."""
        if self.is_default:
            return [(zone, {"AvailabilityZone": zone}) for zone in zones]
        found = ((str(doc["AvailabilityZone"]), {"SubnetId": str(doc["SubnetId"])}) for doc in self._subnets())
        there = [(zone, place) for zone, place in found if zone in zones]
        if not there:
            hint = f"add a subnet of that zone to `subnetworks` in {_SECTION}, or restrict the zones"
            raise NoCapacity(f"the network settings have no subnet in zone {', '.join(zones)}", hint=hint)
        return there

    def zone_subnets(self, zone: str = "") -> list[Doc]:
        """Return one subnet in each zone, or in `zone` alone, for volumes and databases. Raises BadRequest."""
        found = {str(doc["AvailabilityZone"]): doc for doc in reversed(self._subnets())}
        there = [doc for name, doc in found.items() if zone in ("", name)]
        if not there:
            raise BadRequest(f"zone `{zone}` has no subnet of the network", hint="name another zone of your region")
        return there

    def applied(self, data: Doc) -> Doc:
        """Return launch parameters with the network interface that the settings need."""
        if self.is_default:
            return data
        rest = {name: value for name, value in data.items() if name != "SecurityGroupIds"}
        interface: Doc = {"DeviceIndex": 0, "Groups": data["SecurityGroupIds"], "DeleteOnTermination": True}
        interface["AssociatePublicIpAddress"] = self.settings.external_address
        return {**rest, "NetworkInterfaces": [interface]}

    def _groups(self) -> list[str]:
        """Return those security groups of the settings that are in this region."""
        wanted = [_filter("group-id", *self.settings.security_groups)]
        found = self._client.pages("ec2", "describe_security_groups", "SecurityGroups", Filters=wanted)
        return [str(doc["GroupId"]) for doc in found]

    def _found_subnets(self) -> list[Doc]:
        """Return the subnets of the settings that are in this region."""
        own = self.settings
        # Not by `SubnetIds`: one that is in another region would fail the request.
        only = _filter("subnet-id", *own.subnetworks) if own.subnetworks else _filter("default-for-az", "true")
        if own.network and not own.subnetworks:
            only = _filter("vpc-id", own.network)
        return list(self._client.pages("ec2", "describe_subnets", "Subnets", Filters=[only]))

    def _subnets(self) -> list[Doc]:
        found, own = self._found_subnets(), self.settings
        if not found:
            hint = f"create a private one with `outlast setup aws --network --apply`, or set `network` in {_SECTION}"
            what = f"of VPC `{own.network or 'default'}`" if not own.subnetworks else " ".join(own.subnetworks)
            raise BadRequest(f"no subnet in region {self._client.region} {what}", hint=hint)
        return found


def _filter(name: str, *values: str) -> Doc:
    return {"Name": name, "Values": list(values)}
