"""Fetches a cluster's code and files onto a machine and runs its set-up commands, each once.

Each completed command leaves a mark file, named by the hash of this and all earlier commands. After a reboot the
set-up resumes; a changed command runs again with all that follow.
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


class ReportState(Protocol):
    """Reports a node's progress to its log and to the workspace."""

    def __call__(self, phase: str, why: str = "", down_in_s: float = -1.0) -> None: ...


def fetch_files(bucket: Bucket, cluster: Cluster, paths: NodePaths, secrets: Mapping[str, str]) -> None:
    """Fetch the code and the files. Raises OutlastError."""
    if cluster.code is not None:
        fetch_code(bucket, cluster.code, paths.code)
    for path, mount in cluster.mounts.items():
        target = paths.at(path)
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
    paths: NodePaths,
    variables: Mapping[str, str],
    *,
    report_state: ReportState,
    marks: str = "done",
) -> None:
    """Run set-up commands, in Ray's container if there is one. Raises OutlastError with a failed command's output."""
    done = f"{paths.folder}/{marks}"
    os.makedirs(done, exist_ok=True)
    done_hash = hashlib.sha256()
    workdir = paths.code if os.path.isdir(paths.code) else paths.home
    for phase, commands in phases:
        for number, command in enumerate(commands, 1):
            done_hash.update(f"{phase}\0{command}\0".encode())
            mark = f"{done}/{done_hash.hexdigest()}"
            if os.path.exists(mark):
                continue
            report_state("setting up", f"{phase} {number} of {len(commands)}")
            inside = paths.enter(workdir) if paths.inner else []
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
    output = answer.stdout.decode("utf-8", "replace").strip()
    if output:
        print(output, flush=True)
    if answer.returncode != 0:
        raise OutlastError(f"{what} exited with {answer.returncode}: {output[-_TAIL:] or 'no output'}")
