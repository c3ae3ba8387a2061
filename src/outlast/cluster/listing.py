"""The list of all clusters, from their records and the clouds' lists of machines, without calling Ray."""

# No `from __future__ import annotations` here: msgspec would compile each annotation in every process.

from collections.abc import Mapping, Sequence

import msgspec

from outlast.clouds.cloud import LABEL_WORKSPACE, InteractiveCloud, Machine
from outlast.cluster.record import LABEL_ID, Cluster, ClusterJob, Clusters, PastMachine
from outlast.errors import OutlastError, StoreUnreachable

# The phase of a cluster whose record is `ready` but whose head is gone.
LOST = "lost"


class ClusterRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of `outlast cluster list`."""

    name: str
    cloud: str
    # `creating`, `ready`, `deleting`, or `lost`: its head is gone.
    phase: str
    who: str
    head: str
    # Running machines.
    machines: int
    jobs: int
    usd_per_hour: float
    cost_usd: float
    # Seconds since 1970.
    asked_at: float
    # Why the cloud could not be queried, or the cluster's problem.
    problem: str = ""


def phase_of(cluster: Cluster, machines: Sequence[Machine]) -> str:
    """Return the record's phase, or `lost` if the head is gone."""
    alive = any(one.name == cluster.head and one.status in ("pending", "running") for one in machines)
    return LOST if cluster.phase == "ready" and not alive else cluster.phase


def rows(clusters: Clusters, known: Mapping[str, InteractiveCloud]) -> list[ClusterRow]:
    """Return the rows, newest first. An unreachable cloud becomes the row's `problem`. Raises StoreUnreachable."""
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
        problem = f"cloud `{cluster.cloud}` is not configured here"
    except StoreUnreachable:
        raise
    except OutlastError as error:
        problem = error.message
    past = clusters.each(cluster.name, "past", PastMachine)
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
