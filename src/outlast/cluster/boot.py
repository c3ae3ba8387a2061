"""What the machines of a cluster are born with: the boot script, and the metadata that tells a node who it is."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

from outlast.agent.container import OCI
from outlast.clouds.cloud import Boot
from outlast.code.wheel import store_wheel
from outlast.records.mounts import ATTRIBUTE, Mount, encode
from outlast.runs.data import local_path
from outlast.spec.cluster import HEAD
from outlast.store import access
from outlast.supervisor import install_script
from outlast.supervisor.boot import settings
from outlast.workspace import Workspace

# A node whose program ended does nothing but bill. It deletes itself on its way out; if it could not, it is off.
_SCRIPT = """#!/bin/bash
echo "outlast: starting the node"
{python} -P -m outlast.cluster.node_main
echo "outlast: the node ended with $?; switching off"
shutdown -h now
"""
_STARTING = 'say "starting the agent"\n'
# Most images of clouds for machine learning have it. Ray's own launcher gives up without.
_ENGINE = """
if ! command -v docker >/dev/null && ! command -v podman >/dev/null; then
    say "installing docker"
    apt-get -qq update && apt-get -qq install --yes docker.io >/dev/null || say "docker cannot be installed"
fi
"""
_AGENT, _NODE = "-m outlast.agent\n", "-m outlast.cluster.node_main\n"


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
) -> Boot:
    """Of a head, or of the workers, with the images of containers that run on them. Nothing in it is a secret."""
    metadata = {
        "outlast-workspace": workspace.url,
        "outlast-cluster": name,
        "outlast-role": role,
        "outlast-cloud": cloud,
        "outlast-secrets": secrets,
    }
    if volumes:
        metadata[ATTRIBUTE] = encode(volumes)
    if cloud != "local":
        metadata["outlast-wheel"] = f"{workspace.url}/{store_wheel(workspace.bucket)}"
        metadata |= access.metadata(workspace.url, os.environ)
        # The agent's way to an outlast of its own, with the cluster's program at its end.
        script = install_script.SCRIPT.replace(_AGENT, _NODE)
        if any(not image.startswith(OCI) for image in images):
            script = script.replace(_STARTING, _ENGINE + _STARTING)
        if role != HEAD:
            return Boot(script=script, metadata=metadata, life_max_s=life_s)
        # It launches the others.
        script = install_script.speaking(script, cloud, settings())
        return Boot(script=script, metadata=metadata, life_max_s=life_s, rights="supervisor")
    host = os.environ.get("STORAGE_EMULATOR_HOST", "")
    if host:
        metadata["outlast-storage-host"] = host
    if broker:
        metadata["outlast-broker"] = broker
    mounted = [mount.source for mount in volumes if mount.kind == "folder"]
    shares = (local_path(workspace.url), os.path.dirname(broker) if broker else "", *mounted)
    return Boot(
        script=_SCRIPT.format(python=shlex.quote(sys.executable)),
        metadata=metadata,
        shares=tuple(dict.fromkeys(path for path in shares if path)),
        shows=tuple(dict.fromkeys(image.removeprefix(OCI) for image in images if image.startswith(OCI))),
        forwards=_forwards(host),
        life_max_s=life_s,
    )


def _forwards(host: str) -> tuple[int, ...]:
    """The port of an endpoint that is rehearsed with, where it is one of this computer."""
    # Behind the port there may be a path: the token of the endpoint.
    name, _, port = host.rpartition("//")[2].partition("/")[0].rpartition(":")
    return (int(port),) if name in ("127.0.0.1", "localhost") and port.isdigit() else ()
