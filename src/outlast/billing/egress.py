"""What it costs that a run's data crosses between clouds: told from its story and dated list prices. Pure."""

from __future__ import annotations

from outlast.runs.state import RunState

# Out of a cloud into the internet, first terabytes; coming in is free.
DATE = "2025-07"
OUT_USD_PER_GB = {"aws": 0.09, "gcp": 0.12}
_STORES = {"s3": "aws", "gs": "gcp"}


def owner(url: str) -> str:
    """The cloud that a workspace is in; empty for a folder."""
    return _STORES.get(url.partition("://")[0], "")


def crosses(url: str, cloud: str) -> bool:
    return bool(owner(url)) and cloud in OUT_USD_PER_GB and cloud != owner(url)


def egress_usd(state: RunState, url: str) -> float:
    """At most: checkpoints that were sent out of the machine's cloud, and that were fetched out of the workspace's.

    What was unchanged since the checkpoint before was not sent again, which the story does not tell.
    """
    sizes = {one.id: one.bytes for one in state.checkpoints}
    cost = 0.0
    for attempt in state.attempts:
        if crosses(url, attempt.cloud):
            sent = sum(one.bytes for one in state.checkpoints if one.attempt == attempt.number)
            fetched = sizes.get(attempt.resumed_from, 0)
            cost += sent / 1e9 * OUT_USD_PER_GB[attempt.cloud] + fetched / 1e9 * OUT_USD_PER_GB[owner(url)]
    return cost


def moving_usd(state: RunState, url: str, cloud: str) -> float:
    """What it costs to begin on a machine of that cloud: its newest checkpoint leaves the workspace's."""
    if not state.checkpoints or not crosses(url, cloud):
        return 0.0
    return state.checkpoints[-1].bytes / 1e9 * OUT_USD_PER_GB[owner(url)]


def egress_text(url: str, cloud: str) -> str:
    """What a machine of that cloud pays for a workspace that is elsewhere; empty when it is at home."""
    if not crosses(url, cloud):
        return ""
    out, back = OUT_USD_PER_GB[cloud], OUT_USD_PER_GB[owner(url)]
    return f"data crosses to {owner(url)}: ${out:.2f}/GB saved, ${back:.2f}/GB restored"
