"""`outlast cluster submit` and the other commands for jobs. The job's record and code go to the workspace first."""

from __future__ import annotations

import itertools
import re
import secrets
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outlast.clouds.cloud import InteractiveCloud
from outlast.cluster.record import Cluster, ClusterJob, Clusters
from outlast.cluster.status import SEPARATE_CONNECTION, SSH_LOST, call_head, connection_lost, head_link, head_rpc_argv
from outlast.code.bundle import pack, store
from outlast.code.record import CodeRecord
from outlast.errors import BeingCollected, CloudError, NoSuchRun, UsageError
from outlast.store.shared import check_references

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,60}")
_POINTS_MAX = 1000


def upload(clusters: Clusters, folder: str, report: Callable[[str], None]) -> CodeRecord:
    """Store the working directory, without ignored files and secrets. Raises SpecError."""
    bundle = pack(folder)
    for skipped in bundle.left_out:
        report(f"left out of the bundle: {skipped.path} ({skipped.why})")
    return store(clusters.bucket, bundle)


def submit(
    clusters: Clusters,
    cloud: InteractiveCloud,
    cluster: Cluster,
    *,
    name: str,
    command: Sequence[str],
    code: CodeRecord | None,
    env: Mapping[str, str],
    who: str,
    matrix: str = "",
) -> str:
    """Submit a job to Ray and return its id."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"invalid job name `{name}`", hint="use letters, digits, `-`, `_` and `.`, starting with a letter"
        )
    link = head_link(cloud, cluster)
    job_id = f"{name}-{secrets.token_hex(3)}"
    job = ClusterJob(
        id=job_id,
        command=shlex.join(command),
        head=cluster.head,
        who=who,
        asked_at=time.time(),
        code=code,
        env=dict(env),
        matrix=matrix,
    )
    clusters.add(cluster.name, "jobs", job_id, job)
    if code is not None:
        try:
            check_references(clusters.bucket, code.shared_keys)
        except BeingCollected:
            clusters.drop(cluster.name, "jobs", job_id)
            raise
    call_head(link, "submit", job_id)
    return job_id


def grid(axes: Mapping[str, Sequence[str]], command: Sequence[str]) -> list[tuple[dict[str, str], list[str]]]:
    """Return every point of the grid with its command: `{name}` is replaced, else `--name=value` is appended."""
    if not axes:
        raise UsageError("a matrix needs at least one axis", hint="--axis lr=0.1,0.01")
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    if len(points) > _POINTS_MAX:
        raise UsageError(f"the grid has {len(points)} points; at most {_POINTS_MAX} are allowed")
    return [(point, _filled(command, point)) for point in points]


def _filled(command: Sequence[str], point: Mapping[str, str]) -> list[str]:
    argv = list(command)
    for name, value in point.items():
        placeholder = "{" + name + "}"
        if any(placeholder in word for word in argv):
            argv = [word.replace(placeholder, value) for word in argv]
        else:
            argv.append(f"--{name}={value}")
    return argv


def find(jobs: Sequence[Mapping[str, Any]], text: str) -> Mapping[str, Any]:
    """Return a job by its id, a unique prefix of it, or `last`. Raises NoSuchRun."""
    if text == "last" and jobs:
        return jobs[-1]
    fits = [job for job in jobs if job["id"] == text] or [job for job in jobs if str(job["id"]).startswith(text)]
    if len(fits) == 1:
        return fits[0]
    if not fits:
        raise NoSuchRun(f"no job `{text}`", hint="`outlast cluster jobs` lists the jobs")
    raise NoSuchRun(f"`{text}` matches {len(fits)} jobs: {', '.join(str(job['id']) for job in fits[:8])}")


def follow(cloud: InteractiveCloud, cluster: Cluster, job_id: str, *, follow: bool) -> None:
    """Print the output of a job. Raises CloudError when the connection breaks."""
    argv = [*head_link(cloud, cluster).argv(options=SEPARATE_CONNECTION), "--"]
    argv += [shlex.join(head_rpc_argv("logs", job_id, *(["--follow"] if follow else [])))]
    answer = subprocess.run(argv, stdin=subprocess.DEVNULL, check=False)
    if answer.returncode == SSH_LOST:
        raise connection_lost(cloud, cluster)
    if answer.returncode != 0:
        raise CloudError(
            f"could not read the output of `{job_id}` to its end", hint="repeat the command; the job continues"
        )


def stop(cloud: InteractiveCloud, cluster: Cluster, job_id: str) -> tuple[bool, str]:
    """Stop a job. Return whether it was running, and its status now."""
    found = call_head(head_link(cloud, cluster), "stop", job_id)
    return bool(found["stopped"]), str(found["status"])
