"""Who may connect from outside: people and their addresses in the workspace, and a list of addresses on the cloud."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping

import msgspec

from outlast.databases.care import Keeper
from outlast.errors import UsageError
from outlast.workspace.holdings import Holding, Holdings


def allow(cloud: Keeper, holdings: Holdings, holding: Holding, entries: Mapping[str, str]) -> Holding:
    """Let these addresses in: address → whose it is. Repeating is fine."""
    return _set(cloud, holdings, holding, {**holding.allowed, **entries})


def revoke(cloud: Keeper, holdings: Holdings, holding: Holding, who: str) -> tuple[Holding, list[str]]:
    """Let an address, or all of somebody's, in no longer. Raises UsageError when it was not let in."""
    plain = _network(who)
    out = [address for address, owner in holding.allowed.items() if who == owner or address in (who, plain)]
    if not out:
        known = ", ".join(f"{address} ({owner})" for address, owner in holding.allowed.items()) or "nobody"
        raise UsageError(f"`{who}` is not let into `{holding.name}`", hint=f"let in are: {known}")
    left = {address: owner for address, owner in holding.allowed.items() if address not in out}
    return _set(cloud, holdings, holding, left), out


def _set(cloud: Keeper, holdings: Holdings, holding: Holding, allowed: dict[str, str]) -> Holding:
    # The record first: an address that the cloud lets in and nobody knows of would never be taken back.
    fresh = holdings.write(msgspec.structs.replace(holding, allowed=allowed))
    cloud.databases.allow(holding.there, sorted(allowed))
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
