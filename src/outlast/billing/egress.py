"""Cost of the data that machines exchange with the workspace: between regions, and between clouds. Pure.

`Placed` has the price of a GB in both directions; agents count the bytes of code, packages, data and checkpoints.
"""

from __future__ import annotations

from typing import NamedTuple

from outlast.clouds.geography import between_regions_usd
from outlast.clouds.traits import store_owner, traits_of
from outlast.runs.attempts import Attempt
from outlast.runs.state import RunState
from outlast.store.traits import scheme_of

_GB = 1e9


class TrafficRates(NamedTuple):
    """The price of a GB that a machine sends to the workspace, and that it receives from there."""

    sent: float = 0.0
    received: float = 0.0


def rates(url: str, near: str, cloud: str, region: str) -> TrafficRates:
    """Return the rates of a machine; `near` is the location of the workspace's bucket, empty if it is unknown."""
    owner = store_owner(scheme_of(url))
    if not owner:
        return TrafficRates()
    return TrafficRates(
        sent=traffic_usd_per_gb(cloud, region, owner, near), received=traffic_usd_per_gb(owner, near, cloud, region)
    )


def traffic_usd_per_gb(cloud: str, source: str, target_cloud: str, target: str) -> float:
    """Return the list price of traffic from one location to another; the sender's cloud bills it. 0 within a region."""
    traits = traits_of(cloud)
    if traits.free or traits_of(target_cloud).free:
        return 0.0  # a rehearsal on the user's own computer
    if cloud != target_cloud:
        return traits.egress_usd_per_gb
    return between_regions_usd(traits.store_scheme, source, target)


def attempt_egress_usd(state: RunState, attempt: Attempt) -> float:
    """Return the cost of an attempt's traffic so far, as far as its agent has reported it."""
    if attempt.released:
        return attempt.egress_usd
    if not attempt.sent_usd_per_gb and not attempt.received_usd_per_gb:
        return 0.0
    saved = sum(one.bytes for one in state.checkpoints if one.attempt == attempt.number)
    # Of a distributed run only the leader counts: all receive the same, and the others save parts of the checkpoints.
    sent = max(attempt.sent_bytes, saved) if attempt.nodes > 1 or not attempt.sent_bytes else attempt.sent_bytes
    received = attempt.received_bytes * attempt.nodes
    return (sent * attempt.sent_usd_per_gb + received * attempt.received_usd_per_gb) / _GB


def egress_usd(state: RunState) -> float:
    return sum(attempt_egress_usd(state, attempt) for attempt in state.attempts)


def start_usd(state: RunState, here: TrafficRates) -> float:
    """Return the cost of the data that the next machine receives: what the last one did, with the newest checkpoint."""
    fetched = max((attempt.received_bytes for attempt in state.attempts), default=0)
    newest = state.checkpoints[-1].bytes if state.checkpoints else 0
    return max(fetched, newest) * here.received / _GB


def saving_usd_per_hour(state: RunState, here: TrafficRates) -> float:
    """Return the cost of an hour of checkpoints and outputs, at the pace of the attempts so far."""
    seen = [(a.sent_bytes, a.saved_at - a.started_at) for a in state.attempts if a.saved_at > a.started_at > 0]
    seconds = sum(length for _, length in seen)
    return sum(sent for sent, _ in seen) * here.sent / _GB * 3600.0 / seconds if seconds else 0.0


def egress_text(url: str, near: str, cloud: str, region: str) -> str:
    """Describe the price of traffic between a machine and the workspace; empty if it is free."""
    here = rates(url, near, cloud, region)
    if not here.sent and not here.received:
        return ""
    where = near or store_owner(scheme_of(url))
    return f"data crosses to {where}: ${here.sent:.2f}/GB sent, ${here.received:.2f}/GB received"
