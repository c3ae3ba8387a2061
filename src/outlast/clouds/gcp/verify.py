"""What `outlast verify` checks on Google Cloud without creating anything: identity, rights, network, bucket, quotas."""

from __future__ import annotations

from outlast.clouds.checks import Finding
from outlast.clouds.cloud import VerifyArea
from outlast.clouds.gcp.checks import bucket_warnings, gpu_quota_warnings, missing, quota_warnings
from outlast.clouds.gcp.client import GcpClient, last
from outlast.clouds.gcp.network import network_path
from outlast.clouds.gcp.setup import ServiceAccount
from outlast.errors import Denied, NotFound
from outlast.spec.network import NetworkSpec

_CREATE = "`outlast setup gcp --network --apply` creates a private one; then set `network` in `[clouds.gcp]`"


def identity(client: GcpClient) -> str:
    """Describe the project, and whose credentials are used. Raises Denied."""
    client.token()
    kind = type(client.credentials).__name__
    payer = getattr(client.credentials, "quota_project_id", None) or client.project
    return f"project `{client.project}`, {kind}, quota project `{payer}`"


def area_findings(
    client: GcpClient,
    area: VerifyArea,
    *,
    accounts: dict[str, ServiceAccount],
    bucket: str,
    network: NetworkSpec,
    gpu: str,
) -> list[Finding]:
    """Return the problems of an area, each with its fix. Raises a CloudError."""
    if area == "rights":
        return missing(client, accounts, bucket=bucket)
    if area == "network":
        return network_findings(client, network)
    if area == "bucket":
        return bucket_warnings(client, bucket)
    if gpu:
        return gpu_quota_warnings(client)
    return [(text, fix) for text, fix in quota_warnings(client) if "GPUS_ALL_REGIONS" not in text]


def network_findings(client: GcpClient, network: NetworkSpec) -> list[Finding]:
    """Return the problems of the network of machines: it is missing, or has no way to Google's APIs."""
    path = network_path(network.network)
    found: list[Finding] = []
    if network.network or not network.subnetworks:
        try:
            if path.startswith("projects/"):
                client.call("compute", "GET", path)
            else:
                client.compute("GET", path)
        except NotFound:
            found.append((f"project `{client.project}` has no network `{last(path)}`", _CREATE))
    for name in network.subnetworks:
        if "/" not in name:
            continue  # a name that is looked up in each region
        try:
            doc = client.call("compute", "GET", name if name.startswith("projects/") else client.below(name)).doc
        except NotFound:
            found.append((f"subnetwork `{name}` does not exist", "correct `subnetworks` in `[clouds.gcp]`"))
            continue
        except Denied:
            continue  # a user of a shared network may use it without the right to read it
        if not network.external_address and not doc.get("privateIpGoogleAccess"):
            text = f"subnetwork `{last(name)}` has no Private Google Access: machines without address reach no API"
            fix = f"gcloud compute networks subnets update {last(name)} --enable-private-ip-google-access"
            found.append((text, fix))
    return found
