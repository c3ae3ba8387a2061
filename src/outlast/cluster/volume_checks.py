"""The volumes of a cluster: that they are there, that all of its machines reach them, and how those mount them."""

from __future__ import annotations

import msgspec

from outlast.clouds.cloud import Cloud
from outlast.errors import SpecError
from outlast.records.mounts import Mount, mounts_for
from outlast.records.resources import ResourceRecords
from outlast.spec.cluster import ClusterSpec, NodeKind
from outlast.volumes.mounts import check_volumes, zones_for
from outlast.workspace import Workspace


def checked(workspace: Workspace, cloud: Cloud, spec: ClusterSpec, *, source: str) -> ClusterSpec:
    """The spec, each kind of machine only in zones that reach all volumes. Raises SpecError before anything costs."""
    if not spec.volumes:
        return spec
    records = ResourceRecords(workspace, "volume")
    kinds = [[kind.needs()] for kind in (spec.head, *spec.workers)]
    problems = check_volumes(records, spec.volumes, cloud=cloud, where=spec.cloud, kinds=kinds)
    if problems:
        raise SpecError(problems, source=source)

    def narrowed(kind: NodeKind) -> NodeKind:
        zones = zones_for(records, cloud, spec.volumes, [kind.needs()])
        return kind if zones is None else msgspec.structs.replace(kind, zones=zones)

    return msgspec.structs.replace(spec, head=narrowed(spec.head), workers=tuple(map(narrowed, spec.workers)))


def mounts(workspace: Workspace, spec: ClusterSpec) -> list[Mount]:
    """What every machine of it mounts."""
    records = ResourceRecords(workspace, "volume")
    names = {place.partition("/")[0] for place in spec.volumes.values()}
    found = {name: held for name in names if (held := records.find(name)) is not None}
    wanted = {path: place for path, place in spec.volumes.items() if place.partition("/")[0] in found}
    return mounts_for(wanted, found)
