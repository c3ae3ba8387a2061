"""The argument that names a cluster, by name or file, with completion."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from outlast.cli.shared.terminal import find_workspace
from outlast.cli.shared.yaml_file import read_yaml
from outlast.errors import OutlastError

if TYPE_CHECKING:
    from outlast.app.clusters import OpenCluster
    from outlast.app.types import Cluster, ClusterOptions, Clusters

F = TypeVar("F", bound=Callable[..., Any])


def cluster_options(
    file: str, cloud_name: str, *, image: str = "", container: str = ""
) -> tuple[ClusterOptions, list[str]]:
    """Read the options of a cluster, and notes about deviations from the file."""
    from outlast.app import clusters as app

    return app.cluster_options(file, cloud_name, image=image, container=container, read_yaml=read_yaml)


def find_cluster(clusters: Clusters, what: str) -> Cluster:
    """Find a cluster by name or file; without either, that of the project, or the only one."""
    from outlast.app import clusters as app

    return app.find_cluster(clusters, what, read_yaml=read_yaml)


def connect(workspace_url: str, name: str) -> OpenCluster:
    """Find a cluster that can be used."""
    from outlast.app.clusters import open_cluster

    return open_cluster(find_workspace(workspace_url), name, read_yaml=read_yaml)


def clusters_in(workspace_url: str) -> Clusters:
    from outlast.app.clusters import clusters_of

    return clusters_of(find_workspace(workspace_url))


def complete_cluster(ctx: click.Context, _param: click.Parameter, beginning: str) -> list[str]:
    try:
        names = [found.name for found in clusters_in(ctx.params.get("workspace_url") or "").all()]
    except OutlastError:
        return []
    return [name for name in names if name.startswith(beginning)]


def cluster_argument(command: F) -> F:
    return click.argument("name", default="", metavar="[NAME]", shell_complete=complete_cluster)(command)
