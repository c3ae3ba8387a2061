"""The steps of `outlast setup gcp --network`: a private network whose machines need no external address."""

from __future__ import annotations

import contextlib

from outlast.clouds.cloud import SetupStep
from outlast.clouds.gcp.client import GcpClient
from outlast.clouds.gcp.errors import Doc
from outlast.errors import AlreadyExists

NAME = "outlast"
_RANGE = "10.76.0.0/20"


def network_steps(client: GcpClient, region: str) -> list[SetupStep]:
    """Return the steps: a network, a subnetwork with Private Google Access, its inner traffic, and Cloud NAT."""
    project = f"--project={client.project}"
    subnetwork: Doc = {
        "name": NAME,
        "network": f"global/networks/{NAME}",
        "ipCidrRange": _RANGE,
        "privateIpGoogleAccess": True,
    }
    firewall: Doc = {
        "name": f"{NAME}-inner",
        "description": "machines of outlast reach each other",
        "network": f"global/networks/{NAME}",
        "direction": "INGRESS",
        "sourceRanges": [_RANGE],
        "allowed": [{"IPProtocol": protocol} for protocol in ("tcp", "udp", "icmp")],
    }
    nat: Doc = {
        "name": NAME,
        "natIpAllocateOption": "AUTO_ONLY",
        "sourceSubnetworkIpRangesToNat": "ALL_SUBNETWORKS_ALL_IP_RANGES",
    }
    router: Doc = {"name": NAME, "network": f"global/networks/{NAME}", "nats": [nat]}
    wanted: list[tuple[str, str, str, Doc]] = [
        (
            "a private network",
            f"gcloud compute networks create {NAME} --subnet-mode=custom {project}",
            "global/networks",
            {"name": NAME, "autoCreateSubnetworks": False},
        ),
        (
            f"a subnetwork in {region} that reaches Google's APIs without external addresses",
            f"gcloud compute networks subnets create {NAME} --network={NAME} --region={region} --range={_RANGE}"
            f" --enable-private-ip-google-access {project}",
            f"regions/{region}/subnetworks",
            subnetwork,
        ),
        (
            "a firewall rule for traffic between machines",
            f"gcloud compute firewall-rules create {NAME}-inner --network={NAME} --source-ranges={_RANGE}"
            f" --allow=tcp,udp,icmp {project}",
            "global/firewalls",
            firewall,
        ),
        (
            "a router with Cloud NAT, by which machines fetch packages",
            f"gcloud compute routers create {NAME} --network={NAME} --region={region} {project} &&"
            f" gcloud compute routers nats create {NAME} --router={NAME} --region={region}"
            f" --auto-allocate-nat-external-ips --nat-all-subnet-ip-ranges {project}",
            f"regions/{region}/routers",
            router,
        ),
    ]
    return [_step(client, *one) for one in wanted]


def _step(client: GcpClient, what: str, text: str, path: str, body: Doc) -> SetupStep:
    def apply() -> None:
        with contextlib.suppress(AlreadyExists):
            client.change("POST", path, key=f"setup/{path}/{body['name']}", body=body)

    return SetupStep(what=what, commands=(text,), apply=apply)


def settings_text() -> str:
    """Return the lines of the user's file that use the network."""
    return f'[clouds.gcp]\nnetwork = "{NAME}"\nsubnetworks = ["{NAME}"]\nexternal_address = false'
