"""Jobs from outside: the working directory through the workspace, the record first, then Ray hears of it."""

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
from outlast.cluster.status import ALONE, SSH_LOST, ask, desk_words, head_link, lost
from outlast.code.bundle import pack, store
from outlast.code.record import CodeRecord
from outlast.errors import CloudError, NoSuchRun, UsageError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,60}")
_POINTS_MAX = 1000


def upload(clusters: Clusters, folder: str, report: Callable[[str], None]) -> CodeRecord:
    """The working directory, without what git ignores and without secrets. Raises SpecError."""
    bundle = pack(folder)
    for left in bundle.left_out:
        report(f"left out of the bundle: {left.path} ({left.why})")
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
    """The id of the job, which Ray has when this returns."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"`{name}` cannot name a job", hint="letters, digits, `-`, `_` and `.`, a letter first")
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
    ask(link, "submit", job_id)
    return job_id


def grid(axes: Mapping[str, Sequence[str]], command: Sequence[str]) -> list[tuple[dict[str, str], list[str]]]:
    """Every point of the grid with its command: `{name}` in it is replaced, else `--name=value` is appended."""
    if not axes:
        raise UsageError("a matrix needs at least one axis", hint="--axis lr=0.1,0.01")
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    if len(points) > _POINTS_MAX:
        raise UsageError(f"the grid has {len(points)} points, and {_POINTS_MAX} are the most")
    return [(point, _filled(command, point)) for point in points]


def _filled(command: Sequence[str], point: Mapping[str, str]) -> list[str]:
    argv = list(command)
    for name, value in point.items():
        holder = "{" + name + "}"
        if any(holder in word for word in argv):
            argv = [word.replace(holder, value) for word in argv]
        else:
            argv.append(f"--{name}={value}")
    return argv


def find(told: Sequence[Mapping[str, Any]], text: str) -> Mapping[str, Any]:
    """The job that is meant by an id, an unambiguous beginning of one, or `last`. Raises NoSuchRun."""
    if text == "last" and told:
        return told[-1]
    fits = [job for job in told if job["id"] == text] or [job for job in told if str(job["id"]).startswith(text)]
    if len(fits) == 1:
        return fits[0]
    if not fits:
        raise NoSuchRun(f"there is no job `{text}`", hint="see `outlast cluster jobs`")
    raise NoSuchRun(f"`{text}` fits {len(fits)} jobs: {', '.join(str(job['id']) for job in fits[:8])}")


def follow(cloud: InteractiveCloud, cluster: Cluster, job_id: str, *, follow: bool) -> None:
    """Print the output of a job. Raises CloudError when the connection was lost."""
    argv = [*head_link(cloud, cluster).argv(options=ALONE), "--"]
    argv += [shlex.join(desk_words("logs", job_id, *(["--follow"] if follow else [])))]
    answer = subprocess.run(argv, stdin=subprocess.DEVNULL, check=False)
    if answer.returncode == SSH_LOST:
        raise lost(cloud, cluster)
    if answer.returncode != 0:
        raise CloudError(f"the output of `{job_id}` could not be read to its end", hint="repeat it; the job goes on")


def stop(cloud: InteractiveCloud, cluster: Cluster, job_id: str) -> tuple[bool, str]:
    """Whether it ran until now, and what it is since."""
    found = ask(head_link(cloud, cluster), "stop", job_id)
    return bool(found["stopped"]), str(found["status"])
