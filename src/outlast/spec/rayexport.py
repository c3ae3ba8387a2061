"""The conversion of a cluster to a `[cluster]` table, for imported Ray cluster files. No IO."""

from __future__ import annotations

from typing import Any

from outlast.spec.cluster import HEAD, ClusterSpec, ContainerSpec, NodeKind
from outlast.spec.convert import Findings
from outlast.spec.requirements import Range


def cluster_table(spec: ClusterSpec) -> tuple[dict[str, Any], Findings]:
    """Return the table of the file, and findings on parts that it cannot express."""
    findings = Findings()
    cluster: dict[str, Any] = {"name": spec.name, "cloud": spec.cloud}
    cluster["max_workers"] = spec.max_workers
    if spec.upscaling_speed != 1.0:
        cluster["upscaling_speed"] = spec.upscaling_speed
    cluster["idle"] = f"{spec.idle_s:g}s"
    for field in ("initialization", "setup", "head_setup", "worker_setup"):
        if commands := getattr(spec.phases, field):
            cluster[field] = list(commands)
    if spec.files:
        cluster["files"] = dict(spec.files)
    if image := _container(spec, findings):
        cluster["container"] = image
    if spec.files_exclude:
        why = "files that git ignores are never sent; `outlast cluster up FILE.yaml` supports the list"
        findings.left_out.append(f"rsync_exclude: {', '.join(spec.files_exclude)}: {why}")
    cluster["head"] = _kind(spec.head, findings)
    cluster["workers"] = {kind.name: _kind(kind, findings) for kind in spec.workers}
    return {"cluster": cluster}, findings


def _container(spec: ClusterSpec, findings: Findings) -> str:
    """Return the image that all machines share; a table supports no other property of a container."""
    containers = {kind.name: kind.container for kind in (spec.head, *spec.workers)}
    images = {one.image if one else "" for one in containers.values()}
    if len(images) > 1:
        why = "node types have different images, but `[cluster] container` is the same for all"
        findings.problems.append(f"docker: {why}; use the file as it is: `outlast cluster up FILE.yaml`")
    for name, one in containers.items():
        plain = ContainerSpec(image=one.image) if one else None
        for field in one.__struct_fields__ if one else ():
            if getattr(one, field) != getattr(plain, field):
                why = "has no field in outlast.toml; `outlast cluster up FILE.yaml` supports it"
                findings.left_out.append(f"docker: {field} of {name} {why}")
    return max(images)


def _kind(kind: NodeKind, findings: Findings) -> dict[str, Any]:
    plain = NodeKind(name=kind.name, spot=kind.name != HEAD)
    found: dict[str, Any] = {}
    for field in ("type", "image", "spot"):
        if getattr(kind, field) != getattr(plain, field):
            found[field] = getattr(kind, field)
    if kind.name != HEAD:
        found |= {"min": kind.min, "max": kind.max}
    for field, value, unit in (("cpus", kind.cpus, ""), ("memory", kind.memory_gb, "GB")):
        if value != Range():
            found[field] = _range(value, unit)
    if kind.gpu:
        found["gpu"] = f"{kind.gpu}:{kind.gpus}"
    if kind.disk_gb != plain.disk_gb:
        found["disk"] = f"{kind.disk_gb:g}GB"
    for name in ("zones", "exclude_zones"):
        if zones := getattr(kind, name):
            found[name] = list(zones)
    for name, table in (("resources", kind.resources), ("ray", kind.options)):
        if table:
            found[name] = dict(table)
    if kind.metadata:
        names = ", ".join(kind.metadata)
        findings.left_out.append(f"{kind.name}: metadata ({names}) has no field in outlast.toml")
    return found


def _range(value: Range, unit: str) -> str:
    if value.high is None:
        return f"{value.low:g}{unit}+"
    low, high = f"{value.low:g}{unit}", f"{value.high:g}{unit}"
    return low if low == high else f"{low}..{high}"
