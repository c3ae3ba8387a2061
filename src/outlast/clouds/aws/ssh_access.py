"""How people log in: a security group that admits the caller alone, keys in tags, host keys from the console."""

from __future__ import annotations

import hashlib
import http.client
import ipaddress
import os
import re

from outlast.clouds.aws.client import AwsClient, tags
from outlast.clouds.aws.errors import AlreadyExists, Doc
from outlast.clouds.aws.machines import TAG_KEY
from outlast.errors import BadRequest, CloudUnreachable

GROUP = "outlast"
_WHO_AM_I = "checkip.amazonaws.com"
_BLOCK = re.compile(r"-----BEGIN SSH HOST KEY KEYS-----\s*(.*?)-----END SSH HOST KEY KEYS-----", re.DOTALL)
_PIECE = 250


def group(client: AwsClient) -> str:
    """The group of every machine; nobody is admitted by it at first. Made when it is not there."""
    wanted = [{"Name": "group-name", "Values": [GROUP]}]
    found = client.ec2("describe_security_groups", Filters=wanted)["SecurityGroups"]
    if not found:
        specification = [{"ResourceType": "security-group", "Tags": tags({"Name": GROUP})}]
        note = "machines of outlast: ssh from whoever was admitted"
        try:
            made = client.ec2(
                "create_security_group", GroupName=GROUP, Description=note, TagSpecifications=specification
            )
            return str(made["GroupId"])
        except AlreadyExists:
            found = client.ec2("describe_security_groups", Filters=wanted)["SecurityGroups"]
    return str(found[0]["GroupId"])


def admit_caller(client: AwsClient) -> None:
    """Open port 22 to this computer's public address, and to nobody else."""
    block = caller()
    rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22}
    ranges = {"IpRanges": [{"CidrIp": block, "Description": "outlast"}]}
    if ":" in block:
        ranges = {"Ipv6Ranges": [{"CidrIpv6": block, "Description": "outlast"}]}
    try:
        client.ec2("authorize_security_group_ingress", GroupId=group(client), IpPermissions=[{**rule, **ranges}])
    except AlreadyExists:
        pass


def caller() -> str:
    """Where ssh will come from, as a block of addresses: asked of Amazon, or given in OUTLAST_AWS_SSH_FROM."""
    text = os.environ.get("OUTLAST_AWS_SSH_FROM", "") or _ask()
    try:
        network = ipaddress.ip_network(text.strip(), strict=False)
    except ValueError as problem:
        raise BadRequest(f"OUTLAST_AWS_SSH_FROM: {problem}", hint="an address, as 203.0.113.7/32") from problem
    if network.num_addresses > 65536 and network.version == 4:
        raise BadRequest(f"OUTLAST_AWS_SSH_FROM: {network} is half the world", hint="an address, as 203.0.113.7/32")
    return str(network)


def _ask() -> str:
    connection = http.client.HTTPSConnection(_WHO_AM_I, timeout=10)
    try:
        connection.request("GET", "/")
        return connection.getresponse().read(64).decode("ascii", "replace")
    except (OSError, http.client.HTTPException) as problem:
        hint = "say it with OUTLAST_AWS_SSH_FROM=ADDRESS/32"
        raise CloudUnreachable(f"cannot find out this computer's public address: {problem}", hint=hint) from problem
    finally:
        connection.close()


def key_tags(ssh_key: str) -> dict[str, str]:
    """A public key as tags; a long one needs several. Raises BadRequest."""
    line = " ".join(ssh_key.split()[:2])
    if len(line.split()) < 2 or "\0" in line or len(ssh_key.strip().splitlines()) != 1:
        raise BadRequest("this is no public ssh key", hint="it is one line, as in `id_ed25519.pub`")
    digest = hashlib.sha256(line.encode()).hexdigest()[:12]
    pieces = [line[start : start + _PIECE] for start in range(0, len(line), _PIECE)]
    return {f"{TAG_KEY}{digest}-{number}": piece for number, piece in enumerate(pieces)}


def keys_in(known: dict[str, str]) -> list[str]:
    """The keys that tags hold."""
    keys: dict[str, str] = {}
    for name in sorted(name for name in known if name.startswith(TAG_KEY)):
        digest = name.rpartition("-")[0]
        keys[digest] = keys.get(digest, "") + known[name]
    return list(keys.values())


def host_keys(console: str) -> tuple[str, ...]:
    """The machine's own, from the last block that it printed."""
    blocks = _BLOCK.findall(console)
    lines = [line.split() for line in blocks[-1].splitlines()] if blocks else []
    return tuple(" ".join(argv[:2]) for argv in lines if len(argv) >= 2 and argv[0].startswith(("ssh-", "ecdsa-")))


def proxy(instance: Doc, region: str) -> str:
    """Instead of a direct connection: OUTLAST_AWS_SSH_PROXY, with `%i` for the id and `%r` for the region."""
    command = os.environ.get("OUTLAST_AWS_SSH_PROXY", "")
    return command.replace("%i", str(instance["InstanceId"])).replace("%r", region)
