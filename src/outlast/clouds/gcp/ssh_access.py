"""How people log in to a machine: keys in its metadata, host keys from its guest attributes, the way through the walls.

By default nobody but Google's own tunnel (IAP) reaches port 22, and whoever goes through it must be logged in.
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
from outlast.clouds.gcp.errors import AlreadyExists, Doc
from outlast.clouds.gcp.machines import TAG
from outlast.errors import BadRequest, NotFound

WAYS = ("iap", "direct")
RULE = "outlast-ssh"
# The addresses from which connections through the tunnel come.
_TUNNEL = "35.235.240.0/20"
_USER = "outlast"


def login_name(client: GcpClient) -> str:
    """The account on the machines: yours, as gcloud does it; Google's images let nobody in as root.

    Machines that are made out of this computer do, and in some modes know no account that this computer lacks.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        return _USER
    plain = re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", user) is not None
    return user if plain and (user != "root" or client.rehearses) else _USER


def way(client: GcpClient) -> str:
    """`iap` or `direct`. Raises BadRequest for a setting that is neither."""
    chosen = os.environ.get("OUTLAST_GCP_SSH", "")
    if chosen and chosen not in WAYS:
        raise BadRequest(f"OUTLAST_GCP_SSH is `{chosen}`", hint="use `iap` or `direct`, or unset it")
    return chosen or ("direct" if client.rehearses else "iap")


def access(client: GcpClient, doc: Doc, address: str) -> SshAccess:
    """The door of a running instance."""
    chosen = way(client)
    open_wall(client, direct=chosen == "direct")
    name, zone = str(doc["name"]), last(doc["zone"])
    proxy = ""
    if chosen == "iap":
        if not shutil.which("gcloud"):
            hint = "install gcloud, whose tunnel is used, or set OUTLAST_GCP_SSH=direct and OUTLAST_GCP_SSH_FROM"
            raise BadRequest("there is no `gcloud` here to reach the machine with", hint=hint)
        argv = ["gcloud", "compute", "start-iap-tunnel", name, "22", "--listen-on-stdin", "--verbosity=warning"]
        proxy = shlex.join([*argv, f"--project={client.project}", f"--zone={zone}"])
    elif not address:
        raise BadRequest(f"machine `{name}` has no address that it can be reached by")
    return SshAccess(
        host=address or name,
        port=_port(address) if client.rehearses else 22,
        user=login_name(client),
        proxy_command=proxy,
        host_keys=host_keys(client, f"zones/{zone}", name),
    )


def _port(address: str) -> int:
    """Where a machine made out of this computer lets people in: who may not listen on port 22 listens on 2222."""
    with contextlib.suppress(OSError), socket.create_connection((address, 22), timeout=2.0):
        return 22
    with contextlib.suppress(OSError), socket.create_connection((address, 2222), timeout=2.0):
        return 2222
    return 22


def host_keys(client: GcpClient, place: str, name: str) -> tuple[str, ...]:
    """What the machine's ssh server has written down for us; nothing while it has not come that far."""
    try:
        query = {"queryPath": "hostkeys/"}
        doc = client.compute("GET", f"{place}/instances/{name}/getGuestAttributes", query=query).doc
    except (NotFound, BadRequest):
        return ()
    items = doc.get("queryValue", {}).get("items", [])
    return tuple(
        f"{item['key']} {item['value']}" for item in items if str(item.get("key", "")).startswith(("ssh", "ec"))
    )


def open_wall(client: GcpClient, *, direct: bool) -> None:
    """A rule that lets ssh through: from the tunnel, and from where OUTLAST_GCP_SSH_FROM says. It is made once."""
    ranges = [_TUNNEL]
    if direct and (own := os.environ.get("OUTLAST_GCP_SSH_FROM", "")):
        ranges += own.split(",")
    path = f"global/firewalls/{RULE}"
    try:
        known = client.compute("GET", path, query={"fields": "sourceRanges"}).doc.get("sourceRanges", [])
    except NotFound:
        body = {
            "name": RULE,
            "description": "ssh to the machines of outlast, and to no other",
            "network": "global/networks/default",
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
