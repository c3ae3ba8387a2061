"""Who may connect from outside: people and their addresses in the workspace, and a list of addresses on the cloud."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping

import msgspec

from outlast.databases.lifecycle import HasDatabases
from outlast.errors import UsageError
from outlast.records.resources import ResourceRecord, ResourceRecords


def allow(
    cloud: HasDatabases, records: ResourceRecords, record: ResourceRecord, entries: Mapping[str, str]
) -> ResourceRecord:
    """Let these addresses in: address → whose it is. Repeating is fine."""
    return _set(cloud, records, record, {**record.allowed, **entries})


def revoke(
    cloud: HasDatabases, records: ResourceRecords, record: ResourceRecord, who: str
) -> tuple[ResourceRecord, list[str]]:
    """Let an address, or all of somebody's, in no longer. Raises UsageError when it was not let in."""
    plain = _network(who)
    out = [address for address, owner in record.allowed.items() if who == owner or address in (who, plain)]
    if not out:
        known = ", ".join(f"{address} ({owner})" for address, owner in record.allowed.items()) or "nobody"
        raise UsageError(f"`{who}` is not let into `{record.name}`", hint=f"let in are: {known}")
    left = {address: owner for address, owner in record.allowed.items() if address not in out}
    return _set(cloud, records, record, left), out


def _set(
    cloud: HasDatabases, records: ResourceRecords, record: ResourceRecord, allowed: dict[str, str]
) -> ResourceRecord:
    # The record first: an address that the cloud lets in and nobody knows of would never be taken back.
    fresh = records.write(msgspec.structs.replace(record, allowed=allowed))
    cloud.databases.allow(record.there, sorted(allowed))
    return fresh


def read(text: str) -> dict[str, str]:
    """`203.0.113.7`, `203.0.113.0/24`, `ann=203.0.113.7`, or a name that has addresses. Raises UsageError."""
    who, equals, where = text.partition("=")
    target = where if equals else who
    if equals and (not who.strip() or not where.strip()):
        raise UsageError(f"`{text}`: write it like ann=203.0.113.7")
    if address := _network(target):
        if ipaddress.ip_network(address).prefixlen == 0:
            raise UsageError(f"`{text}` is the whole internet", hint="name the addresses of your team")
        return {address: who if equals else address}
    try:
        found = socket.getaddrinfo(target, None, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as problem:
        why = f"`{target}` is no address, no network and no name that has one"
        raise UsageError(why, hint="203.0.113.7, 203.0.113.0/24 or ann=203.0.113.7") from problem
    return {str(entry[4][0]): who for entry in found}


def _network(text: str) -> str:
    """The address or network as everybody writes it; empty when it is none."""
    try:
        parsed = ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        return ""
    return str(parsed) if parsed.num_addresses > 1 else str(parsed.network_address)
