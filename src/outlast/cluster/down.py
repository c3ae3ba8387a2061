"""`outlast cluster down`: deletes every machine, record and secret of a cluster. May be repeated after any crash.

The broker and the head go first, so that nothing launches further machines. The cluster's record goes last, so that
the next `down` or the reaper finishes an interrupted one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import msgspec

from outlast.clouds.cloud import LABEL_WORKSPACE, InteractiveCloud, Machine
from outlast.cluster import broker
from outlast.cluster.machines import ClusterMachines
from outlast.cluster.record import LABEL_ID, LABEL_NAME, Cluster, Clusters, PastMachine
from outlast.errors import CloudError, NoSuchRun
from outlast.machines import sshfiles
from outlast.machines.create import Report
from outlast.store.parallel import in_parallel

# Listings lag, and a launch that the head had started may appear late.
_TRIES, _PAUSE_S = 5, 1.0


def find(clusters: Clusters, name: str, file: str) -> Cluster:
    """Return a cluster: by name, by the file it was created from, or the only one. Raises NoSuchRun."""
    everything = list(clusters.all())
    if name and (found := clusters.find(name)) is not None:
        return found
    if file and (same_file := [cluster for cluster in everything if cluster.file == file]):
        return same_file[0]
    if not name and not file and len(everything) == 1:
        return everything[0]
    known = ", ".join(cluster.name for cluster in everything)
    what = (
        f"no cluster `{name}`"
        if name
        else "no cluster of that file"
        if file
        else f"{len(everything)} clusters"
        if everything
        else "no clusters"
    )
    raise NoSuchRun(f"{what} in {clusters.workspace.url}", hint=f"clusters: {known or 'none'}")


def take_down(clusters: Clusters, clouds: Mapping[str, InteractiveCloud], cluster: Cluster, *, report: Report) -> float:
    """Delete the cluster and return its total cost. Raises CloudError if a machine remains; then repeat the call."""
    cluster = clusters.write(msgspec.structs.replace(cluster, phase="deleting"))
    cloud = clouds[cluster.cloud]
    if not cloud.traits.remote:
        broker.stop(cluster.id)
    _delete_all(clusters, cloud, cluster, report)
    cloud.drop_secrets(cluster.secrets)
    cost = sum(past.cost_usd for past in clusters.each(cluster.name, "past", PastMachine))
    for machine_record in clusters.machine_records.all():
        if machine_record.purpose == cluster.purpose:
            clusters.machine_records.remove(machine_record.name)
            sshfiles.forget_machine(machine_record.name)
    clusters.forget(cluster)
    return cost


def abandoned(clusters: Clusters) -> list[Cluster]:
    """Return clusters whose `up` or `down` was killed."""
    return [cluster for cluster in clusters.all() if clusters.machine_records.without_cluster(cluster.name)]


def _delete_all(clusters: Clusters, cloud: InteractiveCloud, cluster: Cluster, report: Report) -> None:
    clean = 0
    problems: dict[str, str] = {}
    for _ in range(_TRIES):
        machines = _machines(clusters, cloud, cluster)
        if not machines:
            clean += 1
            # One listing is enough where it cannot lag.
            if clean > 1 or cloud.traits.consistent_listings:
                return
        problems = {}

        def delete(machine: Machine, problems: dict[str, str] = problems) -> None:
            try:
                report(f"deleting {machine.name} ({machine.status})")
                delete_machine(clusters, cloud, cluster, machine.name, why="the cluster was taken down")
            except CloudError as problem:
                problems[machine.name] = problem.message

        heads = [machine for machine in machines if machine.name == cluster.head]
        in_parallel(delete, heads)
        in_parallel(delete, [machine for machine in machines if machine.name != cluster.head])
        if machines:
            clusters.write(cluster)  # the owner's sign of life
        if not cloud.traits.consistent_listings or problems:
            time.sleep(_PAUSE_S)
    if problems or _machines(clusters, cloud, cluster):
        why = "; ".join(f"{name}: {message}" for name, message in problems.items()) or "machines remain"
        hint = f"repeat `outlast cluster down {cluster.name}`; `outlast reap` also deletes them"
        raise CloudError(f"could not delete all machines: {why}", hint=hint)


def _machines(clusters: Clusters, cloud: InteractiveCloud, cluster: Cluster) -> Sequence[Machine]:
    """Return the machines of the cluster, in any status."""
    return cloud.machines({LABEL_WORKSPACE: clusters.workspace.id, LABEL_ID: cluster.id})


def delete_machine(clusters: Clusters, cloud: InteractiveCloud, cluster: Cluster, name: str, *, why: str) -> None:
    """Delete one machine with its disk, its record and its ssh entry."""
    ClusterMachines(clusters, cluster, cloud).delete(name, why=why)
    sshfiles.forget_machine(name)


def without_record(
    clusters: Clusters, clouds: Mapping[str, InteractiveCloud], name: str
) -> list[tuple[InteractiveCloud, Machine]]:
    """Return machines that carry the cluster's name although the workspace has no such cluster."""
    wanted = {LABEL_WORKSPACE: clusters.workspace.id, LABEL_NAME: name}
    return [(cloud, machine) for cloud in clouds.values() for machine in cloud.machines(wanted)]
