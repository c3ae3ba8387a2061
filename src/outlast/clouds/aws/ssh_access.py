"""ssh access to machines: a security group that admits the caller only, keys in tags, host keys from the console."""

from __future__ import annotations

import hashlib
import http.client
import ipaddress
import os
import re

from outlast.clouds.aws.client import AwsClient
from outlast.clouds.aws.errors import Doc
from outlast.clouds.aws.machines import TAG_KEY
from outlast.clouds.aws.security_groups import group_of_machines
from outlast.errors import AlreadyExists, BadRequest, CloudUnreachable

_ADDRESS_HOST = "checkip.amazonaws.com"
_BLOCK = re.compile(r"-----BEGIN SSH HOST KEY KEYS-----\s*(.*?)-----END SSH HOST KEY KEYS-----", re.DOTALL)
_PIECE = 250
_NETWORK_FORM = "expected an address such as 203.0.113.7/32"


def admit_caller(client: AwsClient) -> None:
    """Open port 22 to this computer's public address only."""
    block = caller_network()
    rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22}
    ranges = {"IpRanges": [{"CidrIp": block, "Description": "outlast"}]}
    if ":" in block:
        ranges = {"Ipv6Ranges": [{"CidrIpv6": block, "Description": "outlast"}]}
    try:
        client.ec2(
            "authorize_security_group_ingress", GroupId=group_of_machines(client), IpPermissions=[{**rule, **ranges}]
        )
    except AlreadyExists:
        pass


def caller_network() -> str:
    """Return the network from which this computer connects: OUTLAST_AWS_SSH_FROM, else its public address."""
    text = os.environ.get("OUTLAST_AWS_SSH_FROM", "") or _fetch_address()
    try:
        network = ipaddress.ip_network(text.strip(), strict=False)
    except ValueError as problem:
        raise BadRequest(f"invalid OUTLAST_AWS_SSH_FROM: {problem}", hint=_NETWORK_FORM) from problem
    if network.num_addresses > 65536 and network.version == 4:
        raise BadRequest(f"OUTLAST_AWS_SSH_FROM: {network} has more than 65536 addresses", hint=_NETWORK_FORM)
    return str(network)


def _fetch_address() -> str:
    connection = http.client.HTTPSConnection(_ADDRESS_HOST, timeout=10)
    try:
        connection.request("GET", "/")
        return connection.getresponse().read(64).decode("ascii", "replace")
    except (OSError, http.client.HTTPException) as problem:
        why = f"could not get this computer's public address from {_ADDRESS_HOST}: {problem}"
        raise CloudUnreachable(why, hint="set OUTLAST_AWS_SSH_FROM=ADDRESS/32") from problem
    finally:
        connection.close()


def key_tags(ssh_key: str) -> dict[str, str]:
    """Return a public key as tags; a long key needs several. Raises BadRequest."""
    line = " ".join(ssh_key.split()[:2])
    if len(line.split()) < 2 or "\0" in line or len(ssh_key.strip().splitlines()) != 1:
        raise BadRequest(f"invalid public ssh key `{line[:40]}`", hint="expected one line, as in `id_ed25519.pub`")
    digest = hashlib.sha256(line.encode()).hexdigest()[:12]
    pieces = [line[start : start + _PIECE] for start in range(0, len(line), _PIECE)]
    return {f"{TAG_KEY}{digest}-{number}": piece for number, piece in enumerate(pieces)}


def keys_in(known: dict[str, str]) -> list[str]:
    """Return the public keys in tags."""
    keys: dict[str, str] = {}
    for name in sorted(name for name in known if name.startswith(TAG_KEY)):
        digest = name.rpartition("-")[0]
        keys[digest] = keys.get(digest, "") + known[name]
    return list(keys.values())


def host_keys(console: str) -> tuple[str, ...]:
    """Return the machine's host keys, from the last block that it printed."""
    blocks = _BLOCK.findall(console)
    lines = [line.split() for line in blocks[-1].splitlines()] if blocks else []
    return tuple(
        " ".join(fields[:2]) for fields in lines if len(fields) >= 2 and fields[0].startswith(("ssh-", "ecdsa-"))
    )


def proxy(instance: Doc, region: str) -> str:
    """Return OUTLAST_AWS_SSH_PROXY with `%i` replaced by the instance id and `%r` by the region; empty: direct."""
    command = os.environ.get("OUTLAST_AWS_SSH_PROXY", "")
    return command.replace("%i", str(instance["InstanceId"])).replace("%r", region)
