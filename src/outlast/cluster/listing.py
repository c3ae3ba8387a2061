"""All clusters at a glance, from their records and from their clouds' lists of machines. Refuses to ask Ray."""

# No `from __future__ import annotations` here: msgspec would compile each annotation anew in every process.

from collections.abc import Mapping, Sequence

import msgspec

from outlast.clouds.cloud import LABEL_WORKSPACE, InteractiveCloud, Machine
from outlast.cluster.record import LABEL_ID, Cluster, ClusterJob, Clusters, Past
from outlast.errors import OutlastError, StoreUnreachable

# What is said of a cluster whose record says that it is ready, and whose head lives no more.
LOST = "lost"


class ClusterRow(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster, as `cluster list` shows it."""

    name: str
    cloud: str
    # `creating`, `ready`, `deleting`, or `lost`: its head is gone.
    phase: str
    who: str
    head: str
    # Those that run.
    machines: int
    jobs: int
    usd_per_hour: float
    cost_usd: float
    # Seconds since 1970.
    asked_at: float
    # Why its cloud could not be asked, or what is wrong with it.
    problem: str = ""


def phase_of(cluster: Cluster, machines: Sequence[Machine]) -> str:
    """The record's word, unless the machines tell better."""
    lives = any(one.name == cluster.head and one.status in ("pending", "running") for one in machines)
    return LOST if cluster.phase == "ready" and not lives else cluster.phase


def rows(clusters: Clusters, known: Mapping[str, InteractiveCloud]) -> list[ClusterRow]:
    """The newest first. Raises StoreUnreachable; a cloud that does not answer is a remark."""
    found = sorted(clusters.all(), key=lambda one: (-one.asked_at, one.name))
    return [_row(clusters, known, one) for one in found]


def _row(clusters: Clusters, known: Mapping[str, InteractiveCloud], cluster: Cluster) -> ClusterRow:
    machines: list[Machine] = []
    phase: str = cluster.phase
    problem = ""
    try:
        machines = list(known[cluster.cloud].machines({LABEL_WORKSPACE: clusters.workspace.id, LABEL_ID: cluster.id}))
        phase = phase_of(cluster, machines)
        problem = "the head is gone" if phase == LOST else ""
    except KeyError:
        problem = f"`{cluster.cloud}` cannot be asked from here"
    except StoreUnreachable:
        raise
    except OutlastError as trouble:
        problem = trouble.message
    past = clusters.each(cluster.name, "past", Past)
    return ClusterRow(
        name=cluster.name,
        cloud=cluster.cloud,
        phase=phase,
        who=cluster.who,
        head=cluster.head,
        machines=sum(one.status == "running" for one in machines),
        jobs=len(clusters.each(cluster.name, "jobs", ClusterJob)),
        usd_per_hour=sum(one.bills_usd_per_hour for one in machines),
        cost_usd=sum(one.cost_usd for one in machines) + sum(one.cost_usd for one in past),
        asked_at=cluster.asked_at,
        problem=problem,
    )
