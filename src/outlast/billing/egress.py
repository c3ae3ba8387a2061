"""Cost of data that crosses between clouds, from the story of a run and dated list prices. Pure."""

from __future__ import annotations

from outlast.clouds.traits import store_owner, traits_of
from outlast.runs.state import RunState
from outlast.store.traits import scheme_of

# Date of the list prices of egress (`CloudTraits.egress_usd_per_gb`), for the first terabytes; ingress is free.
DATE = "2025-07"


def owner(url: str) -> str:
    """Return the cloud that a workspace is in; empty for a folder."""
    return store_owner(scheme_of(url))


def crosses(url: str, cloud: str) -> bool:
    """Return whether machines of a cloud exchange data with a workspace in another one, at a known price."""
    return bool(owner(url)) and cloud != owner(url) and traits_of(cloud).egress_usd_per_gb > 0


def egress_usd(state: RunState, url: str) -> float:
    """Return an upper bound: all checkpoints that attempts uploaded from, or fetched to, another cloud.

    Parts that an earlier checkpoint already contained are not uploaded again, but the story does not record them.
    """
    sizes = {one.id: one.bytes for one in state.checkpoints}
    cost = 0.0
    for attempt in state.attempts:
        if crosses(url, attempt.cloud):
            sent = sum(one.bytes for one in state.checkpoints if one.attempt == attempt.number)
            fetched = sizes.get(attempt.resumed_from, 0)
            cost += sent / 1e9 * _price(attempt.cloud) + fetched / 1e9 * _price(owner(url))
    return cost


def moving_usd(state: RunState, url: str, cloud: str) -> float:
    """Return the cost of a start on a machine of that cloud: the newest checkpoint leaves the workspace's cloud."""
    if not state.checkpoints or not crosses(url, cloud):
        return 0.0
    return state.checkpoints[-1].bytes / 1e9 * _price(owner(url))


def egress_text(url: str, cloud: str) -> str:
    """Describe the egress prices between a machine and a workspace in another cloud; empty if there are none."""
    if not crosses(url, cloud):
        return ""
    out, back = _price(cloud), _price(owner(url))
    return f"data crosses to {owner(url)}: ${out:.2f}/GB saved, ${back:.2f}/GB restored"


def _price(cloud: str) -> float:
    return traits_of(cloud).egress_usd_per_gb
