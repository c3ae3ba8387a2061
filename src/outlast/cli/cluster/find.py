"""Lookup of a cluster by name or by file, and the options in its file."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from outlast.cli.shared.project import Project, load_project
from outlast.cli.shared.terminal import find_workspace
from outlast.cli.shared.yaml_file import read_yaml
from outlast.errors import OutlastError, SpecError, UsageError

if TYPE_CHECKING:
    from outlast.app.types import Cluster, ClusterOptions, Clusters
    from outlast.spec.cluster import ClusterSpec, NodeKind

F = TypeVar("F", bound=Callable[..., Any])
_YAML = (".yaml", ".yml")


def cluster_options(
    file: str, cloud_name: str, *, image: str = "", container: str = ""
) -> tuple[ClusterOptions, list[str]]:
    """Read the options of a cluster, and notes about deviations from the file. Raises SpecError, UsageError.

    `image` and `container` replace those of all machines in the file; with `none`, Ray runs outside of containers.
    """
    import msgspec

    from outlast.cluster.up import ClusterOptions, file_name
    from outlast.user import current_user

    notes: list[str] = []
    if file.endswith(_YAML):
        spec, notes = _ray_file(file)
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
    import msgspec

    if image:
        kind = msgspec.structs.replace(kind, image=image)
    if container and kind.container is not None:
        other = None if container == "none" else msgspec.structs.replace(kind.container, image=container)
        kind = msgspec.structs.replace(kind, container=other)
    return kind


def _project_cluster(project: Project) -> ClusterSpec:
    import msgspec

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


def _ray_file(path: str) -> tuple[ClusterSpec, list[str]]:
    from outlast.spec.raycluster import parse_ray

    documents = read_yaml(path)
    if len(documents) != 1:
        raise SpecError([f"expected one YAML document, got {len(documents)}"], source=path)
    return parse_ray(documents[0], source=path)


def find_cluster(clusters: Clusters, what: str) -> Cluster:
    """Find a cluster by name or file; without either, that of the project, or the only one."""
    from outlast.cluster.down import find
    from outlast.cluster.up import file_name

    if what and (os.path.exists(what) or what.endswith((*_YAML, ".toml"))):
        return find(clusters, _name_in(what), file_name(what))
    if what:
        return find(clusters, what, "")
    try:
        project = load_project()
    except OutlastError:
        project = Project({}, folder=".", source="")
    if isinstance(project.table.get("cluster"), dict):
        path = project.source.partition(" [")[0]
        return find(clusters, str(project.table["cluster"].get("name", project.name)), file_name(path))
    return find(clusters, "", "")


def _name_in(path: str) -> str:
    """Return the name of the cluster in the file; empty if the file has become invalid since."""
    try:
        options, _ = cluster_options(path, "")
    except OutlastError:
        return ""
    return options.spec.name


def complete_cluster(ctx: click.Context, _param: click.Parameter, beginning: str) -> list[str]:
    from outlast.cluster.record import Clusters

    try:
        names = [found.name for found in Clusters(find_workspace(ctx.params.get("workspace_url") or "")).all()]
    except OutlastError:
        return []
    return [name for name in names if name.startswith(beginning)]


def cluster_argument(command: F) -> F:
    return click.argument("name", default="", metavar="[NAME]", shell_complete=complete_cluster)(command)
