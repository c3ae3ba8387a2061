"""Traits of stores: the facts about a workspace's store that other packages use instead of its URL.

A leaf module: pure data, importable from everywhere.
"""

from __future__ import annotations

from typing import NamedTuple

# Schemes of object stores that are reached over the network.
NETWORK_SCHEMES = ("gs", "s3")


class StoreTraits(NamedTuple):
    """Facts about one kind of store."""

    # It is an object store rather than a folder of this computer: each poll is a request.
    remote: bool
    # Requests cross a network and are billed: reads run in parallel, and machines of every cloud can reach it.
    network: bool
    # Pause between two heartbeats of an agent.
    heartbeat_s: float
    # Time after which a supervisor's lease expires: longer where each poll is billed, so that polls can be rare.
    lease_s: float


FOLDER = StoreTraits(remote=False, network=False, heartbeat_s=1.0, lease_s=6.0)
# Object stores inside one process: `memory://`, and the store of the simulation.
PROCESS = StoreTraits(remote=True, network=False, heartbeat_s=10.0, lease_s=6.0)
NETWORK = StoreTraits(remote=True, network=True, heartbeat_s=10.0, lease_s=20.0)


def is_url(place: str) -> bool:
    """Return whether a place is a URL rather than a path."""
    return "://" in place


def scheme_of(place: str) -> str:
    """Return the scheme of a URL; empty for a path."""
    scheme, separator, _ = place.partition("://")
    return scheme if separator else ""


def traits_of_store(url: str) -> StoreTraits:
    """Return the traits of the store at this URL or path."""
    if not is_url(url):
        return FOLDER
    return NETWORK if scheme_of(url) in NETWORK_SCHEMES else PROCESS
