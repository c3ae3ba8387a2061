"""Brings a cluster's code and files onto a machine and runs its set-up, phase by phase. Nothing is done twice.

A command that succeeded leaves its mark, named by its own text and all before it: after a reboot the set-up goes on
where it was, and a changed command runs anew with all that follow.
"""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Protocol

from outlast.agent.code import fetch_code
from outlast.cluster.paths import NodePaths
from outlast.cluster.record import Cluster, ClusterMount
from outlast.errors import OutlastError
from outlast.store.blobs import blob_key
from outlast.store.bucket import Bucket

_TAIL = 4000


class Tell(Protocol):
    def __call__(self, phase: str, why: str = "", goes_in_s: float = -1.0) -> None: ...


def bring(bucket: Bucket, cluster: Cluster, place: NodePaths, secrets: Mapping[str, str]) -> None:
    """The code and the files. Raises OutlastError."""
    if cluster.code is not None:
        fetch_code(bucket, cluster.code, place.code)
    for there, mount in cluster.mounts.items():
        target = place.at(there)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if mount.code is not None:
            fetch_code(bucket, mount.code, target)
        else:
            _write(target, _body(bucket, mount, secrets), mount)


def _body(bucket: Bucket, mount: ClusterMount, secrets: Mapping[str, str]) -> bytes:
    if mount.secret:
        return base64.b64decode(secrets[mount.secret])
    return bucket.get(blob_key(mount.blob))


def _write(path: str, body: bytes, mount: ClusterMount) -> None:
    mode = 0o600 if mount.secret else 0o755 if mount.executable else 0o644
    draft = f"{path}.outlast"
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(body)
    os.chmod(draft, mode)
    os.replace(draft, path)


def run_phases(
    phases: Sequence[tuple[str, Sequence[str]]],
    place: NodePaths,
    variables: Mapping[str, str],
    *,
    tell: Tell,
    marks: str = "done",
) -> None:
    """In the container, if Ray is in one. Raises OutlastError with what the command that failed has said."""
    done = f"{place.folder}/{marks}"
    os.makedirs(done, exist_ok=True)
    so_far = hashlib.sha256()
    workdir = place.code if os.path.isdir(place.code) else place.home
    for phase, commands in phases:
        for number, command in enumerate(commands, 1):
            so_far.update(f"{phase}\0{command}\0".encode())
            mark = f"{done}/{so_far.hexdigest()}"
            if os.path.exists(mark):
                continue
            tell("setting up", f"{phase} {number} of {len(commands)}")
            inside = place.enter(workdir) if place.inner else []
            _run([*inside, "bash", "-c", command], workdir, variables, f"{phase}[{number - 1}]")
            with open(mark, "w", encoding="utf-8") as file:
                file.write(command)


def _run(argv: Sequence[str], workdir: str, variables: Mapping[str, str], what: str) -> None:
    answer = subprocess.run(
        argv,
        cwd=workdir,
        env=dict(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    said = answer.stdout.decode("utf-8", "replace").strip()
    if said:
        print(said, flush=True)
    if answer.returncode != 0:
        raise OutlastError(f"{what} ended with {answer.returncode}: {said[-_TAIL:] or 'it said nothing'}")
