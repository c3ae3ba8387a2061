"""Ray clusters: starting, finding, following and taking them down, and their jobs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from outlast.app.machines import interactive_cloud, interactive_clouds
from outlast.app.project import Project, load_project
from outlast.cluster.down import find as find_by_name
from outlast.cluster.down import take_down, without_record
from outlast.cluster.record import Cluster, Clusters
from outlast.cluster.up import ClusterOptions, Up, check, file_name
from outlast.errors import CloudError, OutlastError, RunFailed, SpecError, UsageError
from outlast.workspace import Workspace

if TYPE_CHECKING:
    from outlast.clouds.cloud import InteractiveCloud, Machine
    from outlast.cluster.listing import ClusterRow
    from outlast.cluster.status import ClusterStatus
    from outlast.spec.cluster import ClusterSpec, NodeKind

YAML = (".yaml", ".yml")
_POLL_S, _STATUS_S = 2.0, 2.0
Report = Callable[[str], None]
# Reads the documents of a YAML file.
ReadYaml = Callable[[str], Sequence[Any]]


class OpenCluster(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster that is up, and its cloud."""

    clusters: Clusters
    cloud: InteractiveCloud
    cluster: Cluster


def clusters_of(workspace: Workspace) -> Clusters:
    return Clusters(workspace)


def cluster_options(
    file: str, cloud_name: str, *, image: str = "", container: str = "", read_yaml: ReadYaml
) -> tuple[ClusterOptions, list[str]]:
    """Read the options of a cluster, and notes about deviations from the file. Raises SpecError, UsageError.

    `image` and `container` replace those of all machines in the file; with `none`, Ray runs outside of containers.
    """
    from outlast.user import current_user

    notes: list[str] = []
    if file.endswith(YAML):
        spec, notes = _ray_file(file, read_yaml)
        path, folder, source = file, os.path.dirname(os.path.abspath(file)), file
    else:
        project = load_project(file)
        spec = _project_cluster(project)
        path, folder, source = project.source.partition(" [")[0], project.folder, project.source
    if cloud_name:
        spec = msgspec.structs.replace(spec, cloud=cloud_name)
    kinds = [_with_images(kind, image, container) for kind in (spec.head, *spec.workers)]
    spec = msgspec.structs.replace(spec, head=kinds[0], workers=tuple(kinds[1:]))
    return ClusterOptions(spec=spec, source=source, file=file_name(path), folder=folder, who=current_user()), notes


def _with_images(kind: NodeKind, image: str, container: str) -> NodeKind:
    if image:
        kind = msgspec.structs.replace(kind, image=image)
    if container and kind.container is not None:
        other = None if container == "none" else msgspec.structs.replace(kind.container, image=container)
        kind = msgspec.structs.replace(kind, container=other)
    return kind


def _project_cluster(project: Project) -> ClusterSpec:
    from outlast.spec.cluster import parse_cluster
    from outlast.spec.parse import read_code, read_environment
    from outlast.spec.reader import Reader
    from outlast.spec.resources import volumes

    if "cluster" not in project.table:
        raise UsageError(
            f"{project.source} has no `[cluster]`" if project.table else "found no `outlast.toml` with `[cluster]`",
            hint="write one (see docs/clusters.md), or pass a Ray cluster file: outlast cluster up FILE.yaml",
        )
    spec = parse_cluster(project.table, name=project.name, source=project.source)
    reader = Reader(project.table)
    code = read_code(reader.section_of("code")) if "code" in project.table else None
    environment = read_environment(reader)
    mounted = volumes(reader.section_of("volumes"))
    if reader.problems:
        raise SpecError(reader.problems, source=project.source)
    return msgspec.structs.replace(spec, code=code, environment=environment, volumes=mounted)


def _ray_file(path: str, read_yaml: ReadYaml) -> tuple[ClusterSpec, list[str]]:
    from outlast.spec.raycluster import parse_ray

    documents = read_yaml(path)
    if len(documents) != 1:
        raise SpecError([f"expected one YAML document, got {len(documents)}"], source=path)
    return parse_ray(documents[0], source=path)


def find_cluster(clusters: Clusters, what: str, *, read_yaml: ReadYaml) -> Cluster:
    """Find a cluster by name or file; without either, that of the project, or the only one."""
    if what and (os.path.exists(what) or what.endswith((*YAML, ".toml"))):
        return find_by_name(clusters, _name_in(what, read_yaml), file_name(what))
    if what:
        return find_by_name(clusters, what, "")
    try:
        project = load_project()
    except OutlastError:
        project = Project({}, folder=".", source="")
    if isinstance(project.table.get("cluster"), dict):
        path = project.source.partition(" [")[0]
        return find_by_name(clusters, str(project.table["cluster"].get("name", project.name)), file_name(path))
    return find_by_name(clusters, "", "")


def _name_in(path: str, read_yaml: ReadYaml) -> str:
    """Return the name of the cluster in the file; empty if the file has become invalid since."""
    try:
        options, _ = cluster_options(path, "", read_yaml=read_yaml)
    except OutlastError:
        return ""
    return options.spec.name


def open_cluster(workspace: Workspace, what: str, *, read_yaml: ReadYaml) -> OpenCluster:
    """Return a cluster that can be used. Raises UsageError while it is taken down."""
    clusters = Clusters(workspace)
    found = find_cluster(clusters, what, read_yaml=read_yaml)
    if found.phase == "deleting":
        raise UsageError(f"`{found.name}` is being taken down", hint=f"repeat `outlast cluster down {found.name}`")
    return OpenCluster(clusters=clusters, cloud=interactive_cloud(found.cloud), cluster=found)


# Life


def check_cluster(workspace: Workspace, options: ClusterOptions) -> None:
    """Raise the error that starting it would raise before a machine is launched."""
    check(options, interactive_cloud(options.spec.cloud), workspace.url)


def start_cluster(workspace: Workspace, options: ClusterOptions, *, report: Report) -> Cluster:
    """Start a cluster; repeating it adopts its machines."""
    return Up(Clusters(workspace), interactive_cloud(options.spec.cloud), options, report=report).run()


def stray_machines(clusters: Clusters, name: str) -> list[tuple[InteractiveCloud, Machine]]:
    """Return machines of a cluster that has no record."""
    return [] if not name or os.path.exists(name) else list(without_record(clusters, _clouds(clusters), name))


def delete_stray(clusters: Clusters, cloud: InteractiveCloud, machine: Machine) -> None:
    cloud.delete(machine.name)
    clusters.machine_records.remove(machine.name)


def stop_cluster(clusters: Clusters, found: Cluster, *, report: Report) -> float:
    """Delete every machine of a cluster in every status, with its disk; return its total cost."""
    known = {**_clouds(clusters), found.cloud: interactive_cloud(found.cloud)}
    return take_down(clusters, known, found, report=report)


def _clouds(clusters: Clusters) -> Mapping[str, InteractiveCloud]:
    return interactive_clouds(clusters.workspace)


# Status


def cluster_rows(clusters: Clusters) -> list[ClusterRow]:
    """Return the clusters of a workspace as rows of a listing."""
    from outlast.cluster.listing import rows

    return list(rows(clusters, _clouds(clusters)))


def status_of(clusters: Clusters, found: Cluster) -> ClusterStatus:
    """Return nodes, demands, usage and cost of a cluster."""
    from outlast.cluster.status import read_status

    return read_status(clusters, interactive_cloud(found.cloud), found)


def watch_cluster(clusters: Clusters, found: Cluster, show: Callable[[Cluster, ClusterStatus], None]) -> None:
    """Call `show` with the status until the cluster is down."""
    from outlast.cluster.status import ClusterWatch, read_status

    window = ClusterWatch(interactive_cloud(found.cloud), _STATUS_S)
    try:
        while (now := clusters.find(found.name)) is not None and now.id == found.id:
            snapshot = read_status(clusters, interactive_cloud(now.cloud), now, watch=window)
            show(now, snapshot)
            if snapshot.unreachable:
                time.sleep(_STATUS_S)
    finally:
        window.close()


# Jobs


def submit_jobs(
    where: OpenCluster,
    points: Sequence[tuple[Mapping[str, str], Sequence[str]]],
    *,
    name: str,
    folder: str,
    env: Mapping[str, str],
    report: Report,
) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Submit one job per point of a grid, all with one copy of the folder; yield id and point of each."""
    from outlast.cluster import jobs
    from outlast.user import current_user

    code = jobs.upload(where.clusters, folder, report)
    for point, argv in points:
        label = " ".join(f"{axis}={value}" for axis, value in point.items())
        job_id = jobs.submit(
            where.clusters,
            where.cloud,
            where.cluster,
            name=name,
            command=tuple(argv),
            code=code,
            env=dict(env),
            who=current_user(),
            matrix=label,
        )
        yield job_id, point


def grid_of(
    axes: Mapping[str, Sequence[str]], command: tuple[str, ...]
) -> list[tuple[Mapping[str, str], Sequence[str]]]:
    """Return the points of a grid, each with its command."""
    from outlast.cluster.jobs import grid

    return list(grid({name: list(values) for name, values in axes.items()}, command))


def jobs_of(where: OpenCluster) -> list[dict[str, Any]]:
    """Return the jobs of a cluster, the newest last."""
    from outlast.cluster.status import jobs

    return list(jobs(where.clusters, where.cloud, where.cluster))


def find_job(where: OpenCluster, text: str) -> Mapping[str, Any]:
    """Find a job by its id, a prefix of it, or `last`."""
    from outlast.cluster.jobs import find

    return find(jobs_of(where), text)


def live_job(where: OpenCluster, text: str) -> str:
    """Return the id of a job whose output can be read. Raises RunFailed for one that was lost."""
    job = find_job(where, text)
    if job["status"] in ("LOST", "UNSENT"):
        raise RunFailed(f"{job['id']} is {job['status']}: {job.get('message')}")
    return str(job["id"])


def follow_job(where: OpenCluster, job_id: str, *, follow: bool = True) -> None:
    """Print the output of a job on stdout; with `follow` until it ends."""
    from outlast.cluster import jobs

    jobs.follow(where.cloud, where.cluster, job_id, follow=follow)


def wait_for_job(where: OpenCluster, job_id: str) -> int:
    """Wait for the end of a job; return its exit code. Raises RunFailed if it has none."""
    from outlast.cluster.status import is_over

    while not is_over(str((job := find_job(where, job_id))["status"])):
        time.sleep(_POLL_S)
    if job["status"] == "SUCCEEDED":
        return 0
    if job.get("exit_code"):
        return int(job["exit_code"])
    raise RunFailed(f"{job_id} is {job['status']}: {job.get('message') or 'no message from Ray'}")


def stop_job(where: OpenCluster, job_id: str) -> tuple[bool, str]:
    """Stop a job; return whether it ran, and its status now. Raises CloudError if it goes on."""
    from outlast.cluster import jobs
    from outlast.cluster.status import is_over

    ran, status = jobs.stop(where.cloud, where.cluster, job_id)
    if not is_over(status):
        raise CloudError(f"{job_id} was stopped, but is still {status}", hint="repeat the command later")
    return ran, status
