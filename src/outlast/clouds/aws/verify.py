"""What `outlast verify` checks on AWS without creating anything: identity, rights, network, bucket, quotas."""

from __future__ import annotations

from collections.abc import Mapping

from outlast.clouds.aws.checks import bucket_warnings, disk_key_warnings, missing, quota_warnings
from outlast.clouds.aws.client import AwsClient
from outlast.clouds.aws.errors import Doc
from outlast.clouds.checks import Finding
from outlast.clouds.cloud import VerifyArea
from outlast.errors import NotFound
from outlast.spec.network import NetworkSpec

_CREATE = "`outlast setup aws --network --apply` creates one; then set `network` in `[clouds.aws]`"


def identity(client: AwsClient) -> str:
    """Describe the account, the caller and the region. Raises Denied."""
    caller = client.call("sts", "get_caller_identity")
    who = str(caller.get("Arn", "")).rpartition("/")[2] or "root"
    return f"account {caller['Account']}, {who}, region `{client.region}`"


def area_findings(
    client: AwsClient, area: VerifyArea, *, profiles: Mapping[str, str], bucket: str, network: NetworkSpec, gpu: str
) -> list[Finding]:
    """Return the problems of an area, each with its fix. Raises a CloudError."""
    if area == "rights":
        return missing(client, profiles, bucket=bucket)
    if area == "network":
        return network_findings(client, network)
    if area == "bucket":
        return [*bucket_warnings(client, bucket), *disk_key_warnings(client)]
    # Types with these GPUs are of class P, whose quota is another one.
    wanted = "without a GPU" if not gpu else "with A100" if gpu.upper().startswith(("A100", "H", "B")) else "with a GPU"
    return [(text, fix) for text, fix in quota_warnings(client) if wanted in text]


def network_findings(client: AwsClient, network: NetworkSpec) -> list[Finding]:
    """Return the problems of the VPC of machines: it, its subnets or its security groups are missing."""
    found: list[Finding] = []
    where: Doc = {"VpcIds": [network.network]} if network.network else _only("is-default", "true")
    try:
        vpcs = client.ec2("describe_vpcs", **where)["Vpcs"]
    except NotFound:
        vpcs = []
    if not vpcs and not network.subnetworks:
        name = f"VPC `{network.network}`" if network.network else "default VPC"
        found.append((f"region {client.region} has no {name}", _CREATE))
    for kind, ids, what in (
        ("describe_subnets", network.subnetworks, "subnet"),
        ("describe_security_groups", network.security_groups, "security group"),
    ):
        for id in ids:
            try:
                client.ec2(kind, **{"SubnetIds" if what == "subnet" else "GroupIds": [id]})
            except NotFound:
                found.append((f"region {client.region} has no {what} `{id}`", "correct it in `[clouds.aws]`"))
    return found


def _only(name: str, value: str) -> Doc:
    return {"Filters": [{"Name": name, "Values": [value]}]}
