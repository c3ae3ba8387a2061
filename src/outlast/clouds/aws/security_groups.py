"""Security groups of databases and volumes: which addresses may connect to which port."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from outlast.clouds.aws import ssh_access
from outlast.clouds.aws.client import AwsClient
from outlast.clouds.aws.errors import Doc
from outlast.errors import AlreadyExists, NotFound


def security_group(client: AwsClient, name: str, *, port: int, note: str) -> str:
    """Return the group of that name, which admits machines. Creates it if necessary."""
    try:
        group = str(_find(client, name)["GroupId"])
    except NotFound:
        try:
            group = str(client.ec2("create_security_group", GroupName=name, Description=note)["GroupId"])
        except AlreadyExists:
            group = str(_find(client, name)["GroupId"])
    machines = {"UserIdGroupPairs": [{"GroupId": ssh_access.group(client), "Description": "machines of outlast"}]}
    with suppress(AlreadyExists):
        client.ec2("authorize_security_group_ingress", GroupId=group, IpPermissions=[{**_rule(port), **machines}])
    return group


def allowed(client: AwsClient, name: str) -> tuple[str, ...]:
    """Return the allowed addresses, besides the machines."""
    try:
        found = _find(client, name)
    except NotFound:
        return ()
    blocks = [one["CidrIp"] for rule in found.get("IpPermissions", []) for one in rule.get("IpRanges", [])]
    blocks += [one["CidrIpv6"] for rule in found.get("IpPermissions", []) for one in rule.get("Ipv6Ranges", [])]
    return tuple(sorted(block.removesuffix("/32").removesuffix("/128") for block in blocks))


def allow(client: AwsClient, name: str, addresses: Sequence[str], *, port: int) -> None:
    """Allow exactly these addresses. Raises NotFound."""
    group = str(_find(client, name)["GroupId"])
    known, wanted = set(allowed(client, name)), set(addresses)
    for operation, blocks in (
        ("revoke_security_group_ingress", sorted(known - wanted)),
        ("authorize_security_group_ingress", sorted(wanted - known)),
    ):
        for block in blocks:
            with suppress(AlreadyExists, NotFound):
                client.ec2(operation, GroupId=group, IpPermissions=[{**_rule(port), **_ranges(block)}])


def remove(client: AwsClient, name: str) -> None:
    with suppress(NotFound):
        client.ec2("delete_security_group", GroupId=str(_find(client, name)["GroupId"]))


def _find(client: AwsClient, name: str) -> Doc:
    found = client.ec2("describe_security_groups", Filters=[{"Name": "group-name", "Values": [name]}])["SecurityGroups"]
    if not found:
        raise NotFound(f"no security group `{name}` in {client.region}")
    first: Doc = found[0]
    return first


def _rule(port: int) -> Doc:
    return {"IpProtocol": "tcp", "FromPort": port, "ToPort": port}


def _ranges(address: str) -> Doc:
    if ":" in address:
        block = address if "/" in address else f"{address}/128"
        return {"Ipv6Ranges": [{"CidrIpv6": block, "Description": "outlast"}]}
    block = address if "/" in address else f"{address}/32"
    return {"IpRanges": [{"CidrIp": block, "Description": "outlast"}]}
