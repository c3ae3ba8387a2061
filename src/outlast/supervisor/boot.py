"""What a machine of a run is born with: the boot script and the metadata that tell the agent who it is."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import suppress

import msgspec

from outlast import private
from outlast.clouds.cloud import LABEL_ATTEMPT, LABEL_RUN, LABEL_WORKSPACE, Boot, Cloud
from outlast.code.wheel import store_wheel
from outlast.records import mounts
from outlast.records.machines import supervisor_name
from outlast.records.resources import ResourceRecords
from outlast.runs.data import local_path
from outlast.spec.command import render_param
from outlast.spec.spec import Spec
from outlast.store import access
from outlast.supervisor import install_script
from outlast.workspace import Workspace

# The machine is switched off whatever the reason was that the agent ended: without one it does nothing but bill.
_SCRIPT = """#!/bin/bash
echo "outlast: starting the agent"
{python} -P -m outlast.agent
code=$?
echo "outlast: the agent ended with $code; switching off"
shutdown -h now
"""

LIFE_MAX_S = 7 * 86400.0
# What a supervisor elsewhere does as the one here would. None of it is a secret.
_SETTINGS = (
    *("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT", "OUTLAST_GCP_SERVICE_ACCOUNT"),
    *("AWS_REGION", "AWS_DEFAULT_REGION", "OUTLAST_AWS_INSTANCE_PROFILE"),
)


def boot(workspace: Workspace, run: str, attempt: int, spec: Spec, cloud: str, *, path: str = "") -> Boot:
    """The boot of one attempt; `path` is where its submitter finds programs. Nothing in it is a secret: secrets are
    fetched by the name of their place."""
    metadata = {
        "outlast-workspace": workspace.url,
        "outlast-run": run,
        "outlast-attempt": str(attempt),
        "outlast-cloud": cloud,
        "outlast-params": msgspec.json.encode(spec.params).decode(),
        **access.metadata(workspace.url, os.environ),
        **{f"param-{name}": render_param(value) for name, value in spec.params.items()},
    }
    if cloud == "local":
        # Every machine of the local cloud sees the same disk: data that one attempt fetched serves the next.
        metadata["outlast-cache"] = _cache()
    else:
        metadata["outlast-wheel"] = f"{workspace.url}/{store_wheel(workspace.bucket)}"
    if spec.secrets or spec.databases:
        metadata["outlast-secrets"] = workspace.secrets_name(run)
    volumes = _volumes(workspace, spec)
    if volumes:
        metadata[mounts.ATTRIBUTE] = mounts.encode(volumes)
    if access.needs_key(workspace.url, cloud, os.environ):
        # The name of the key, which the machine asks its cloud for; never the key.
        metadata[access.STORE_KEY] = access.key_name(workspace.secrets_name(run))
    return Boot(
        script=_script(cloud),
        image=spec.machine.image,
        metadata=metadata,
        disk_gb=spec.machine.disk_gb,
        shares=_shares(workspace, volumes) if cloud == "local" else (),
        shows=_shows(spec) if cloud == "local" else (),
        software=environments(path) if cloud == "local" else (),
        forwards=_forwards(workspace.url) if cloud == "local" else (),
        databases=_databases(workspace, spec),
        life_max_s=_life_max_s(spec),
    )


def _script(cloud: str) -> str:
    """Machines made out of this computer have its outlast; the others bring their own."""
    return _SCRIPT.format(python=shlex.quote(sys.executable)) if cloud == "local" else install_script.SCRIPT


def _cache() -> str:
    return os.path.expanduser("~/.outlast/cache/data")


def _volumes(workspace: Workspace, spec: Spec) -> list[mounts.Mount]:
    """What is mounted. A volume that was deleted since is left out, and the agent says so."""
    records = ResourceRecords(workspace, "volume")
    found = {name: held for place in spec.volumes.values() if (held := records.find(name := place.partition("/")[0]))}
    wanted = {path: place for path, place in spec.volumes.items() if place.partition("/")[0] in found}
    return mounts.mounts_for(wanted, found)


def _shares(workspace: Workspace, volumes: list[mounts.Mount]) -> tuple[str, ...]:
    """What a machine made out of this computer writes to on it: on a real cloud it is a bucket."""
    # A cache that cannot be had costs time, not the run.
    with suppress(OSError):
        private.folder("cache", "data")
    mounted = [mount.source for mount in volumes if mount.kind == "folder"]
    return tuple(dict.fromkeys(path for path in (local_path(workspace.url), _cache(), *mounted) if path))


def _shows(spec: Spec) -> tuple[str, ...]:
    """What it reads from it: on a real cloud these are buckets and servers."""
    paths = (local_path(place) for place in (spec.code.git, *spec.data.values()) if place)
    return tuple(path for path in paths if path and os.path.exists(path))


def environments(path: str) -> tuple[str, ...]:
    """The virtual environments among the folders that programs are found in, and what those were made from: whoever has
    activated one means its Python, which need not be the one that runs outlast."""
    found: list[str] = []
    for folder in (folder.rstrip("/") for folder in path.split(os.pathsep)):
        environment = os.path.dirname(folder)
        if not os.path.isabs(folder) or os.path.basename(folder) != "bin":
            continue
        if os.path.isdir(f"{environment}/conda-meta"):
            found.append(environment)
        elif base := _base(f"{environment}/pyvenv.cfg"):
            found += [environment, base]
    # Under both names, if one is a link.
    named = (path for one in found for path in (os.path.realpath(one), one) if os.path.isdir(path))
    return tuple(dict.fromkeys(path for path in named if not _is_private(os.path.realpath(path))))


def _is_private(path: str) -> bool:
    """A Python that was installed right into a home would bring all of that along, keys and tokens as well."""
    home = os.path.realpath(os.path.expanduser("~"))
    return os.path.commonpath([path, home]) == path or path == os.path.join(home, ".local")


def _base(settings: str) -> str:
    """The folder of the Python that a virtual environment was made from; empty if it is none."""
    try:
        with open(settings, encoding="utf-8", errors="replace") as file:
            lines = [line.partition("=") for line in file]
    except OSError:
        return ""
    home = next((value.strip() for name, _, value in lines if name.strip() == "home"), "")
    return os.path.dirname(home) if os.path.isabs(home) else ""


def _forwards(url: str) -> tuple[int, ...]:
    """The ports of this computer's loopback at which stores are that stand for those of a cloud."""
    own = "AWS_ENDPOINT_URL_S3" if os.environ.get("AWS_ENDPOINT_URL_S3") else "AWS_ENDPOINT_URL"
    names = ("STORAGE_EMULATOR_HOST", *((own,) if url.startswith("s3://") else ()))
    found = (access.loopback_port(os.environ.get(name, "")) for name in names)
    return tuple(dict.fromkeys(port for port in found if port))


def _databases(workspace: Workspace, spec: Spec) -> tuple[str, ...]:
    """Those of this computer that the run names, by the local cloud's names."""
    records = ResourceRecords(workspace, "database")
    found = (records.find(name) for name in spec.databases.values())
    return tuple(one.there for one in found if one is not None and one.cloud == "local")


def _life_max_s(spec: Spec) -> float:
    limits = [limit for limit in (spec.limits.max_s, spec.limits.deadline_s) if limit]
    return min(limits, default=LIFE_MAX_S) + 600.0 + spec.limits.keep_on_failure_s


def settings() -> dict[str, str]:
    """What is said here of clouds, for a machine that calls them in our place."""
    return {name: os.environ[name] for name in sorted(os.environ) if name in _SETTINGS and os.environ[name]}


def supervisor_boot(workspace: Workspace, cloud: str) -> Boot:
    """The boot of the machine that supervises a workspace. It says nothing of runs: those are in the workspace."""
    script = install_script.supervisor_script(
        cloud, supervisor_name(workspace), workspace_url=workspace.url, settings=settings()
    )
    metadata = {
        "outlast-workspace": workspace.url,
        "outlast-cloud": cloud,
        "outlast-wheel": f"{workspace.url}/{store_wheel(workspace.bucket)}",
        **access.metadata(workspace.url, os.environ),
    }
    return Boot(script=script, metadata=metadata, rights="supervisor")


def labels(workspace: Workspace, run: str, attempt: int) -> dict[str, str]:
    return {LABEL_WORKSPACE: workspace.id, LABEL_RUN: run, LABEL_ATTEMPT: str(attempt)}


def drop_secrets(workspace: Workspace, cloud: Cloud, run: str) -> None:
    """What the run's machines on this cloud could read."""
    name = workspace.secrets_name(run)
    cloud.drop_secrets(name)
    if access.needs_key(workspace.url, cloud.name, os.environ):
        cloud.drop_secrets(access.key_name(name))
