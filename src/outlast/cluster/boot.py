"""The boot script and the metadata of a cluster's machines."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

from outlast.agent.container import OCI
from outlast.clouds.cloud import Boot, HostAccess
from outlast.clouds.traits import traits_of
from outlast.kit import boot_script
from outlast.records.mounts import ATTRIBUTE, Mount, encode, mounts_for
from outlast.records.resources import ResourceRecords
from outlast.runs.data import local_path
from outlast.spec.cluster import HEAD, ClusterSpec
from outlast.store import access
from outlast.supervisor.boot import environments, settings
from outlast.workspace import Workspace

# A node whose program has ended only costs money. The program deletes the machine; if that failed, switch it off.
_SCRIPT = """#!/bin/bash
echo "outlast: starting the node"
{python} -P -m outlast.cluster.node_main
echo "outlast: the node program exited with $?; switching off"
shutdown -h now
"""
# Most machine learning images have docker. Ray's own launcher fails without it.
_ENGINE = """
if ! command -v docker >/dev/null && ! command -v podman >/dev/null; then
    log "installing docker"
    apt-get -qq update && apt-get -qq install --yes docker.io >/dev/null || log "could not install docker"
fi
"""


def boot(
    workspace: Workspace,
    name: str,
    cloud: str,
    *,
    role: str,
    secrets: str,
    life_s: float,
    broker: str = "",
    volumes: Sequence[Mount] = (),
    images: Sequence[str] = (),
    environment: str = "",
) -> Boot:
    """Return the boot settings of a head or a worker. They contain no secrets.

    `images` are its container images, `environment` is the path of its packages on this computer.
    """
    metadata = {
        "outlast-workspace": workspace.url,
        "outlast-cluster": name,
        "outlast-role": role,
        "outlast-cloud": cloud,
        "outlast-secrets": secrets,
    }
    if volumes:
        metadata[ATTRIBUTE] = encode(volumes)
    if not traits_of(cloud).shares_host_files:
        # The head launches the workers, and so needs the client of its cloud's API.
        head = role == HEAD
        metadata |= boot_script.metadata(workspace.bucket, extra=traits_of(cloud).extra if head else "")
        metadata |= access.metadata(workspace.url, os.environ)
        before = _ENGINE if any(not image.startswith(OCI) for image in images) else ""
        script = boot_script.boot_script(
            "node", "outlast.cluster.node_main", before=before, settings=settings() if head else None
        )
        return Boot(script=script, metadata=metadata, life_max_s=life_s, rights="supervisor" if head else "machine")
    host = os.environ.get("STORAGE_EMULATOR_HOST", "")
    if host:
        metadata["outlast-storage-host"] = host
    if broker:
        metadata["outlast-broker"] = broker
    if environment:
        metadata["outlast-environment"] = environment
    mounted = [mount.source for mount in volumes if mount.kind == "folder"]
    writable = (local_path(workspace.url), os.path.dirname(broker) if broker else "", *mounted)
    return Boot(
        script=_SCRIPT.format(python=shlex.quote(sys.executable)),
        metadata=metadata,
        host=HostAccess(
            writable=tuple(dict.fromkeys(path for path in writable if path)),
            readable=tuple(dict.fromkeys(image.removeprefix(OCI) for image in images if image.startswith(OCI))),
            software=environments(f"{environment}/bin") if environment else (),
            ports=(port,) if (port := access.loopback_port(host)) else (),
        ),
        life_max_s=life_s,
    )


def volume_mounts(workspace: Workspace, spec: ClusterSpec) -> list[Mount]:
    """Return the mounts of each machine."""
    records = ResourceRecords(workspace, "volume")
    names = {place.partition("/")[0] for place in spec.volumes.values()}
    found = {name: record for name in names if (record := records.find(name)) is not None}
    wanted = {path: place for path, place in spec.volumes.items() if place.partition("/")[0] in found}
    return mounts_for(wanted, found)
