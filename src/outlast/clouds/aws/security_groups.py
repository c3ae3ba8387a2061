"""Security groups of machines, databases and volumes: which addresses may connect to which port."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from outlast.clouds.aws.client import AwsClient, tags
from outlast.clouds.aws.errors import Doc
from outlast.errors import AlreadyExists, NotFound

GROUP = "outlast"
DESCRIPTION = "machines of outlast: ssh from admitted addresses"
# A list may lack a new group for some seconds.
_LISTED_S = 30.0


def group_of_machines(client: AwsClient, *, peers: bool = False, vpc: str = "") -> str:
    """Return the security group of all machines, which admits no address at first. Creates it if necessary.

    With `peers` its members may connect to each other: otherwise a group does not even admit its own members.
    """
    found = named_group(client, GROUP, note=DESCRIPTION, vpc=vpc)
    id = str(found["GroupId"])
    if peers and not _admits_itself(found):
        rule = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": id, "Description": "machines of outlast"}]}
        with suppress(AlreadyExists):
            client.ec2("authorize_security_group_ingress", GroupId=id, IpPermissions=[rule])
    return id


def _admits_itself(group: Doc) -> bool:
    return any(
        pair.get("GroupId") == group["GroupId"]
        for rule in group.get("IpPermissions", [])
        if rule.get("IpProtocol") == "-1"
        for pair in rule.get("UserIdGroupPairs", [])
    )


def named_group(client: AwsClient, name: str, *, note: str, vpc: str = "") -> Doc:
    """Return the security group of that name. Creates it if necessary, and waits until lists show it."""
    specification = [{"ResourceType": "security-group", "Tags": tags({"Name": name})}]
    give_up_at, pause_s, created = time.monotonic() + _LISTED_S, 0.05, False
    while True:
        try:
            return _find(client, name, vpc)
        except NotFound:
            if time.monotonic() > give_up_at:
                raise
        if not created:
            # Another process may have created it, too.
            with suppress(AlreadyExists):
                where = {"VpcId": vpc} if vpc else {}
                client.ec2(
                    "create_security_group",
                    GroupName=name,
                    Description=note,
                    TagSpecifications=specification,
                    **where,
                )
            created = True
        else:
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 2.0)


def security_group(
    client: AwsClient, name: str, *, port: int, note: str, machines: Sequence[str], vpc: str = ""
) -> str:
    """Return the group of that name in a VPC, which admits the groups of machines. Creates it if necessary."""
    group = str(named_group(client, name, note=note, vpc=vpc)["GroupId"])
    for one in machines:
        pairs = {"UserIdGroupPairs": [{"GroupId": one, "Description": "machines of outlast"}]}
        with suppress(AlreadyExists):
            client.ec2("authorize_security_group_ingress", GroupId=group, IpPermissions=[{**_rule(port), **pairs}])
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


def _find(client: AwsClient, name: str, vpc: str = "") -> Doc:
    filters = [{"Name": "group-name", "Values": [name]}, *([{"Name": "vpc-id", "Values": [vpc]}] if vpc else [])]
    found = client.ec2("describe_security_groups", Filters=filters)["SecurityGroups"]
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
