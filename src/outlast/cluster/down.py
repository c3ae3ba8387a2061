"""Takes a cluster down: every machine in every status, its records, its secrets. May be repeated after any death.

The broker goes first and then the head, so that nothing is launched behind our back; the record goes last, so that one
cut short is found by the next `down`, and by the reaper.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from outlast.clouds.cloud import LABEL_WORKSPACE, InteractiveCloud, Machine
from outlast.cluster import broker
from outlast.cluster.fleet import ClusterMachines
from outlast.cluster.record import LABEL_ID, LABEL_NAME, Cluster, Clusters, Past
from outlast.errors import CloudError, NoSuchRun
from outlast.machines import sshfiles
from outlast.store.parallel import in_parallel

Report = Callable[[str], None]
# Listings lag, and a launch that was under way when the head died comes late.
_LOOKS, _PAUSE_S = 5, 1.0


def find(clusters: Clusters, name: str, file: str) -> Cluster:
    """The cluster that is meant: by its name, by the file that it was made from, or the only one there is.

    Raises NoSuchRun.
    """
    everyone = list(clusters.all())
    if name and (found := clusters.find(name)) is not None:
        return found
    if file and (made := [cluster for cluster in everyone if cluster.file == file]):
        return made[0]
    if not name and not file and len(everyone) == 1:
        return everyone[0]
    known = ", ".join(cluster.name for cluster in everyone)
    what = f"no cluster `{name}`" if name else "no cluster of that file" if file else "more than one cluster, or none,"
    raise NoSuchRun(f"{what} in {clusters.workspace.url}", hint=f"there are: {known}" if known else "there is none")


def take_down(clusters: Clusters, clouds: Mapping[str, InteractiveCloud], cluster: Cluster, *, report: Report) -> float:
    """What it has cost in all. Raises CloudError when something could not be deleted; then it is to be repeated."""
    cluster = clusters.write(msgspec.structs.replace(cluster, phase="deleting"))
    cloud = clouds[cluster.cloud]
    if cluster.cloud == "local":
        broker.stop(cluster.id)
    _delete_all(clusters, cloud, cluster, report)
    cloud.drop_secrets(cluster.secrets)
    cost = sum(past.cost_usd for past in clusters.each(cluster.name, "past", Past))
    for machine_record in clusters.machine_records.all():
        if machine_record.purpose == cluster.purpose:
            clusters.machine_records.remove(machine_record.name)
            sshfiles.forget_machine(machine_record.name)
    clusters.forget(cluster)
    return cost


def abandoned(clusters: Clusters) -> list[Cluster]:
    """Those that somebody brought up or down who was killed on the way; nobody goes on with them by himself."""
    return [cluster for cluster in clusters.all() if clusters.machine_records.without_cluster(cluster.name)]


def _delete_all(clusters: Clusters, cloud: InteractiveCloud, cluster: Cluster, report: Report) -> None:
    clean = 0
    problems: dict[str, str] = {}
    for _ in range(_LOOKS):
        there = _machines(clusters, cloud, cluster)
        if not there:
            clean += 1
            # One look is enough where state is files of this computer.
            if clean > 1 or cloud.name == "local":
                return
        problems = {}

        def delete(machine: Machine, problems: dict[str, str] = problems) -> None:
            try:
                report(f"deleting {machine.name} ({machine.status})")
                delete_machine(clusters, cloud, cluster, machine.name, why="the cluster was taken down")
            except CloudError as problem:
                problems[machine.name] = problem.message

        heads = [machine for machine in there if machine.name == cluster.head]
        in_parallel(delete, heads)
        in_parallel(delete, [machine for machine in there if machine.name != cluster.head])
        if there:
            clusters.write(cluster)  # says that we are still at it
        if cloud.name != "local" or problems:
            time.sleep(_PAUSE_S)
    if problems or _machines(clusters, cloud, cluster):
        why = "; ".join(f"{name}: {message}" for name, message in problems.items()) or "machines are still there"
        hint = f"repeat `outlast cluster down {cluster.name}`; `outlast reap` finds them as well"
        raise CloudError(f"not everything could be deleted: {why}", hint=hint)


def _machines(clusters: Clusters, cloud: InteractiveCloud, cluster: Cluster) -> Sequence[Machine]:
    """Every machine of the cluster in every status, by its labels."""
    return cloud.machines({LABEL_WORKSPACE: clusters.workspace.id, LABEL_ID: cluster.id})


def delete_machine(clusters: Clusters, cloud: InteractiveCloud, cluster: Cluster, name: str, *, why: str) -> None:
    """One machine with its disk, its record and its ssh block."""
    ClusterMachines(clusters, cluster, cloud).delete(name, why=why)
    sshfiles.forget_machine(name)


def without_record(
    clusters: Clusters, clouds: Mapping[str, InteractiveCloud], name: str
) -> list[tuple[InteractiveCloud, Machine]]:
    """Machines that carry the cluster's name although the workspace knows no such cluster."""
    wanted = {LABEL_WORKSPACE: clusters.workspace.id, LABEL_NAME: name}
    return [(cloud, machine) for cloud in clouds.values() for machine in cloud.machines(wanted)]
