"""ssh access to machines: keys in their metadata, host keys from guest attributes, firewall and tunnel.

By default only Google's tunnel (IAP) reaches port 22, and it authenticates its users.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shlex
import shutil
import socket

from outlast.clouds.cloud import SshAccess
from outlast.clouds.gcp.client import GcpClient, last
from outlast.clouds.gcp.errors import Doc
from outlast.clouds.gcp.machines import TAG
from outlast.clouds.gcp.network import network_path
from outlast.clouds.gcp.offers import CLOUD
from outlast.errors import AlreadyExists, BadRequest, NotFound
from outlast.spec.network import network_of

ROUTES = ("iap", "direct")
RULE = "outlast-ssh"
# The source addresses of connections through the tunnel.
_TUNNEL = "35.235.240.0/20"
_USER = "outlast"


def login_name(client: GcpClient) -> str:
    """Return the account on the machines: the user's name, as gcloud does. Google's images forbid root.

    Machines of the emulator allow root, and in some modes have only this computer's accounts.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        return _USER
    plain = re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", user) is not None
    return user if plain and (user != "root" or client.emulated) else _USER


def route(client: GcpClient) -> str:
    """Return `iap` or `direct`. Raises BadRequest for another setting."""
    chosen = os.environ.get("OUTLAST_GCP_SSH", "")
    if chosen and chosen not in ROUTES:
        raise BadRequest(f"invalid OUTLAST_GCP_SSH `{chosen}`", hint="use `iap` or `direct`, or unset it")
    return chosen or ("direct" if client.emulated else "iap")


def access(client: GcpClient, doc: Doc, address: str) -> SshAccess:
    """Return how to reach a running instance by ssh."""
    chosen = route(client)
    allow_ssh(client, direct=chosen == "direct")
    name, zone = str(doc["name"]), last(doc["zone"])
    proxy = ""
    if chosen == "iap":
        if not shutil.which("gcloud"):
            hint = "install gcloud, or set OUTLAST_GCP_SSH=direct and OUTLAST_GCP_SSH_FROM"
            raise BadRequest("`gcloud`, whose tunnel connects to machines, is not installed", hint=hint)
        argv = ["gcloud", "compute", "start-iap-tunnel", name, "22", "--listen-on-stdin", "--verbosity=warning"]
        proxy = shlex.join([*argv, f"--project={client.project}", f"--zone={zone}"])
    elif not address:
        raise BadRequest(f"machine `{name}` has no address", hint="set OUTLAST_GCP_SSH=iap to use Google's tunnel")
    return SshAccess(
        host=address or name,
        port=_port(address) if client.emulated else 22,
        user=login_name(client),
        proxy_command=proxy,
        host_keys=host_keys(client, f"zones/{zone}", name),
    )


def _port(address: str) -> int:
    """Return the ssh port of an emulated machine: 22, or 2222 where the emulator may not listen on 22."""
    with contextlib.suppress(OSError), socket.create_connection((address, 22), timeout=2.0):
        return 22
    with contextlib.suppress(OSError), socket.create_connection((address, 2222), timeout=2.0):
        return 2222
    return 22


def host_keys(client: GcpClient, zone: str, name: str) -> tuple[str, ...]:
    """Return the host keys that the machine has published; empty before it has booted."""
    try:
        query = {"queryPath": "hostkeys/"}
        doc = client.compute("GET", f"{zone}/instances/{name}/getGuestAttributes", query=query).doc
    except (NotFound, BadRequest):
        return ()
    items = doc.get("queryValue", {}).get("items", [])
    return tuple(
        f"{item['key']} {item['value']}" for item in items if str(item.get("key", "")).startswith(("ssh", "ec"))
    )


def allow_ssh(client: GcpClient, *, direct: bool) -> None:
    """Ensure a firewall rule for ssh: from the tunnel, and for `direct` from OUTLAST_GCP_SSH_FROM."""
    ranges = [_TUNNEL]
    if direct and (own := os.environ.get("OUTLAST_GCP_SSH_FROM", "")):
        ranges += own.split(",")
    path = f"global/firewalls/{RULE}"
    try:
        known = client.compute("GET", path, query={"fields": "sourceRanges"}).doc.get("sourceRanges", [])
    except NotFound:
        body = {
            "name": RULE,
            "description": "ssh to machines of outlast only",
            "network": network_path(network_of(CLOUD, os.environ).network),
            "direction": "INGRESS",
            "sourceRanges": ranges,
            "targetTags": [TAG],
            "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}],
        }
        try:
            client.change("POST", "global/firewalls", key=f"firewall/{RULE}/{','.join(ranges)}", body=body)
            return
        except AlreadyExists:
            known = client.compute("GET", path, query={"fields": "sourceRanges"}).doc.get("sourceRanges", [])
    if not set(ranges) <= set(known):
        wanted = sorted({*known, *ranges})
        client.change("PATCH", path, body={"sourceRanges": wanted})


def metadata_entry(client: GcpClient, ssh_key: str) -> str:
    """Return the line of the metadata `ssh-keys` that admits a public key. Raises BadRequest."""
    line = ssh_key.strip()
    if "\n" in line or len(line.split()) < 2 or "\0" in line:
        raise BadRequest(f"invalid public ssh key `{line[:40]}`", hint="expected one line, as in `id_ed25519.pub`")
    return f"{login_name(client)}:{line}"
