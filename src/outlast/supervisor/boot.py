"""The boot script and the metadata of the machines of runs, and of supervisor machines."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import suppress

import msgspec

from outlast import private
from outlast.clouds.cloud import LABEL_ATTEMPT, LABEL_RUN, LABEL_WORKSPACE, Boot, Cloud, HostAccess
from outlast.clouds.traits import known_clouds, traits_of
from outlast.kit import boot_script
from outlast.records import mounts
from outlast.records.machines import supervisor_name
from outlast.records.resources import ResourceRecords
from outlast.runs.data import local_path
from outlast.spec.command import render_param
from outlast.spec.spec import Spec
from outlast.store import access
from outlast.workspace import Workspace

# Switch the machine off when the agent ends, for any reason: without an agent it only costs money.
_SCRIPT = """#!/bin/bash
echo "outlast: starting the agent"
{python} -P -m outlast.agent
code=$?
echo "outlast: the agent ended with $code; switching off"
shutdown -h now
"""

LIFE_MAX_S = 7 * 86400.0


def boot(workspace: Workspace, run: str, attempt: int, spec: Spec, cloud: str, *, path: str = "") -> Boot:
    """Return the boot of one attempt; `path` is the submitter's PATH. It names secrets and contains none."""
    metadata = {
        "outlast-workspace": workspace.url,
        "outlast-run": run,
        "outlast-attempt": str(attempt),
        "outlast-cloud": cloud,
        "outlast-params": msgspec.json.encode(spec.params).decode(),
        **access.metadata(workspace.url, os.environ),
        **{f"param-{name}": render_param(value) for name, value in spec.params.items()},
    }
    if spec.machine.nodes > 1:
        # The same for all: a machine finds its rank by its name.
        metadata["outlast-nodes"] = str(spec.machine.nodes)
    traits = traits_of(cloud)
    if traits.shares_host_files:
        # All machines of the local cloud share one disk: the next attempt can use data that an earlier one fetched.
        metadata["outlast-cache"] = _cache()
    else:
        metadata |= boot_script.metadata(workspace.bucket)
    if spec.machine.container:
        # A cloud may have to allow its machines to read from its registry.
        metadata["outlast-container"] = spec.machine.container
    if spec.secrets or spec.databases:
        metadata["outlast-secrets"] = workspace.secrets_name(run)
    volumes = _volumes(workspace, spec)
    if volumes:
        metadata[mounts.ATTRIBUTE] = mounts.encode(volumes)
    if access.needs_key(workspace.url, cloud, os.environ):
        # The name of the key, under which the machine fetches it from its cloud.
        metadata[access.STORE_KEY] = access.key_name(workspace.secrets_name(run))
    return Boot(
        script=_script(spec, shares_host_files=traits.shares_host_files),
        image=spec.machine.image,
        metadata=metadata,
        disk_gb=spec.machine.disk_gb,
        host=_host_access(workspace, spec, volumes, path) if traits.shares_host_files else None,
        life_max_s=_life_max_s(spec),
        network=spec.machine.networks.get(cloud),
        reservation=spec.machine.reservation,
        peers=spec.member is not None or spec.machine.nodes > 1,
    )


def _script(spec: Spec, *, shares_host_files: bool) -> str:
    """Return the script that starts the agent: local machines use this computer's outlast, others install it."""
    if shares_host_files:
        return _SCRIPT.format(python=shlex.quote(sys.executable))
    mirror = spec.environment.python_mirror
    name = "UV_PYTHON_DOWNLOADS_JSON_URL" if mirror.endswith(".json") else "UV_PYTHON_INSTALL_MIRROR"
    return boot_script.boot_script("agent", "outlast.agent", settings={name: mirror} if mirror else None)


def _host_access(workspace: Workspace, spec: Spec, volumes: list[mounts.Mount], path: str) -> HostAccess:
    return HostAccess(
        writable=_writable(workspace, volumes),
        readable=_readable(spec),
        software=environments(path),
        ports=access.emulator_ports(workspace.url, os.environ),
        databases=_databases(workspace, spec),
        all_databases=bool(spec.secrets),
    )


def _cache() -> str:
    return os.path.expanduser("~/.outlast/cache/data")


def _volumes(workspace: Workspace, spec: Spec) -> list[mounts.Mount]:
    """Return the mounts. A volume that was deleted since is left out, and the agent reports it."""
    records = ResourceRecords(workspace, "volume")
    found = {name: held for place in spec.volumes.values() if (held := records.find(name := place.partition("/")[0]))}
    wanted = {path: place for path, place in spec.volumes.items() if place.partition("/")[0] in found}
    return mounts.mounts_for(wanted, found)


def _writable(workspace: Workspace, volumes: list[mounts.Mount]) -> tuple[str, ...]:
    """Return the host folders that a local machine may write; on a real cloud these are buckets."""
    # Without a cache the run is slower, but works.
    with suppress(OSError):
        private.folder("cache", "data")
    mounted = [mount.source for mount in volumes if mount.kind == "folder"]
    return tuple(dict.fromkeys(path for path in (local_path(workspace.url), _cache(), *mounted) if path))


def _readable(spec: Spec) -> tuple[str, ...]:
    """Return the host paths that a local machine may read; on a real cloud these are buckets and servers."""
    paths = (local_path(place) for place in (spec.code.git, *spec.data.values()) if place)
    return tuple(path for path in paths if path and os.path.exists(path))


def environments(path: str) -> tuple[str, ...]:
    """Return the virtual environments on a PATH, and the Python installations that they are based on.

    A user who activated an environment expects its Python, which may not be the one that runs outlast.
    """
    found: list[str] = []
    for folder in (folder.rstrip("/") for folder in path.split(os.pathsep)):
        environment = os.path.dirname(folder)
        if not os.path.isabs(folder) or os.path.basename(folder) != "bin":
            continue
        if os.path.isdir(f"{environment}/conda-meta"):
            found.append(environment)
        elif base := _base(f"{environment}/pyvenv.cfg"):
            found += [environment, base]
    # Include both the link and its target.
    named = (path for one in found for path in (os.path.realpath(one), one) if os.path.isdir(path))
    return tuple(dict.fromkeys(path for path in named if not _is_private(os.path.realpath(path))))


def _is_private(path: str) -> bool:
    """Return whether the folder contains the home directory: sharing it would expose keys and tokens."""
    home = os.path.realpath(os.path.expanduser("~"))
    return os.path.commonpath([path, home]) == path or path == os.path.join(home, ".local")


def _base(settings: str) -> str:
    """Return the base installation of a virtual environment; empty if the environment does not exist."""
    try:
        with open(settings, encoding="utf-8", errors="replace") as file:
            lines = [line.partition("=") for line in file]
    except OSError:
        return ""
    home = next((value.strip() for name, _, value in lines if name.strip() == "home"), "")
    return os.path.dirname(home) if os.path.isabs(home) else ""


def _databases(workspace: Workspace, spec: Spec) -> tuple[str, ...]:
    """Return the local databases that the run names, by their names in the local cloud."""
    records = ResourceRecords(workspace, "database")
    found = (records.find(name) for name in spec.databases.values())
    return tuple(one.there for one in found if one is not None and traits_of(one.cloud).shares_host_files)


def _life_max_s(spec: Spec) -> float:
    limits = [limit for limit in (spec.limits.max_s, spec.limits.deadline_s) if limit]
    return min(limits, default=LIFE_MAX_S) + 600.0 + spec.limits.keep_on_failure_s


def settings() -> dict[str, str]:
    """Return the cloud settings of this computer, for a supervisor machine."""
    names = {name for cloud in known_clouds() for name in traits_of(cloud).settings}
    return {name: os.environ[name] for name in sorted(names) if os.environ.get(name)}


def supervisor_boot(workspace: Workspace, cloud: str) -> Boot:
    """Return the boot of a supervisor machine. It reads the runs from the workspace."""
    script = boot_script.supervisor_script(
        cloud, supervisor_name(workspace), workspace_url=workspace.url, settings=settings()
    )
    metadata = {
        "outlast-workspace": workspace.url,
        "outlast-cloud": cloud,
        **boot_script.metadata(workspace.bucket, extra=traits_of(cloud).extra),
        **access.metadata(workspace.url, os.environ),
    }
    return Boot(script=script, metadata=metadata, rights="supervisor")


def labels(workspace: Workspace, run: str, attempt: int) -> dict[str, str]:
    return {LABEL_WORKSPACE: workspace.id, LABEL_RUN: run, LABEL_ATTEMPT: str(attempt)}


def drop_secrets(workspace: Workspace, cloud: Cloud, run: str) -> None:
    """Delete the secrets of a run from a cloud."""
    name = workspace.secrets_name(run)
    cloud.drop_secrets(name)
    if access.needs_key(workspace.url, cloud.name, os.environ):
        cloud.drop_secrets(access.key_name(name))
