"""The network interface of a machine, the places of buckets, and the errors of networks and organisation policies."""

from __future__ import annotations

from outlast.clouds.gcp.client import GcpClient
from outlast.clouds.gcp.errors import Doc
from outlast.clouds.geography import is_region
from outlast.clouds.local.google_types import region_of
from outlast.errors import BadRequest, CloudError, NoCapacity, PolicyDenied
from outlast.spec.network import NetworkSpec

DEFAULT = "default"
# Constraint of an organisation → the setting that satisfies it.
_SETTINGS = {
    "compute.vmExternalIpAccess": "set `external_address = false` in `[clouds.gcp]`; the subnetwork needs "
    "Private Google Access, as `outlast setup gcp --network` creates it",
    "compute.requireShieldedVm": "use an image that supports Shielded VM: `image` in `[clouds.gcp]`",
    "compute.trustedImageProjects": "use an image of a trusted project: `image` in `[clouds.gcp]`",
    "gcp.resourceLocations": "use an allowed region: `regions` in `[clouds.gcp]`",
    "compute.restrictSharedVpcSubnetworks": "use an allowed subnetwork: `subnetworks` in `[clouds.gcp]`",
    "gcp.restrictNonCmekServices": "set a key for the disks: `encryption_key` in `[clouds.gcp]`",
    "gcp.restrictCmekCryptoKeyProjects": "use a key of an allowed project: `encryption_key` in `[clouds.gcp]`",
}


def interface(network: NetworkSpec, zone: str) -> Doc:
    """Return the network interface of a machine. Raises NoCapacity if the settings have no subnetwork in its region."""
    found: Doc = {}
    if network.network or not network.subnetworks:
        found["network"] = network_path(network.network)
    if network.subnetworks:
        found["subnetwork"] = _subnetwork(network, region_of(zone))
    if network.external_address:
        found["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]
    return found


def bucket_location(client: GcpClient, bucket: str) -> str:
    """Return the region of a bucket, or the part of the world over which it is spread. Raises CloudError."""
    found = client.call("storage", "GET", f"b/{bucket}", query={"fields": "location"})
    location = str(found.doc.get("location", ""))
    # The API has names of regions in capitals.
    return location.lower() if is_region(location) else location


def network_path(name: str) -> str:
    name = name or DEFAULT
    return name if "/" in name else f"global/networks/{name}"


def shared_network(client: GcpClient, network: NetworkSpec, region: str) -> str:
    """Return the full path of the machines' network, for volumes and databases. Raises CloudError."""
    name = network.network
    if not name and network.subnetworks:
        path = _subnetwork(network, region)
        found = client.call("compute", "GET", path if "projects/" in path else f"projects/{client.project}/{path}").doc
        name = "projects/" + str(found.get("network", "")).partition("/projects/")[2]
    path = network_path(name)
    return path if path.startswith("projects/") else f"projects/{client.project}/{path}"


def _subnetwork(network: NetworkSpec, region: str) -> str:
    for name in network.subnetworks:
        if "/" not in name:  # the name of a subnetwork in each region
            return f"regions/{region}/subnetworks/{name}"
        if f"regions/{region}/" in name:
            return name
    hint = "add one to `subnetworks` in `[clouds.gcp]`, or restrict `regions`"
    raise NoCapacity(f"the settings have no subnetwork in region {region}: {', '.join(network.subnetworks)}", hint=hint)


def with_policy_hint(problem: PolicyDenied) -> PolicyDenied:
    """Return the error of an organisation policy with the setting of ours that satisfies it."""
    for constraint, setting in _SETTINGS.items():
        if constraint in problem.message:
            return PolicyDenied(problem.message, hint=f"constraint `{constraint}`: {setting}")
    return problem


def with_network_hint(problem: BadRequest, project: str, network: NetworkSpec) -> CloudError:
    """Return the error of a launch, with the next step if the project lacks the network."""
    message = problem.message
    if "network resource cannot be found" not in message and "/networks/" not in message:
        return problem
    name = network.network or DEFAULT
    hint = "create a private one with `outlast setup gcp --network --apply`, or set `network` in `[clouds.gcp]`"
    return BadRequest(f"{message} (project `{project}` has no network `{name}`)", hint=hint)
