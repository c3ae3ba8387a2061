"""The head's side of `outlast cluster` commands, called over ssh: one request per call, JSON on stdout.

    head_rpc  status [EVERY_S] | jobs | submit ID | stop ID | logs ID [--follow]

`rayclient.py` answers, in the Python that has Ray. This module only handles `submit`: it fetches the job from the
workspace, which Ray's Python cannot read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from outlast.cluster.record import ClusterJob, Clusters
from outlast.code.bundle import unpack
from outlast.errors import NoSuchRun, OutlastError
from outlast.workspace import open_workspace


def submit(clusters: Clusters, cluster: str, job_id: str, client: list[str], folder: str) -> str:
    """Submit a job of the workspace to Ray and return the client's answer. Ray's Python must see `folder`."""
    job = clusters.get(cluster, "jobs", job_id, ClusterJob)
    if job is None:
        raise NoSuchRun(f"cluster `{cluster}` has no job `{job_id}`")
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{job_id}-", dir=folder) as staging:
        runtime: dict[str, Any] = {"env_vars": job.env} if job.env else {}
        if job.code is not None:
            unpack(clusters.bucket, job.code, f"{staging}/code")
        request = {
            "folder": f"{staging}/code" if job.code is not None else "",
            "package": job.code.sha256 if job.code is not None else "",
            "entrypoint": job.command,
            "submission_id": job_id,
            "runtime_env": runtime,
            "metadata": {"who": job.who, "matrix": job.matrix},
        }
        return subprocess.run(
            [*client, "submit"], input=json.dumps(request), stdout=subprocess.PIPE, text=True, check=False
        ).stdout


def main(argv: list[str]) -> int:
    workspace, cluster, folder, job_id, *client = argv
    try:
        answer = submit(Clusters(open_workspace(workspace)), cluster, job_id, client, folder)
    except OutlastError as problem:
        answer = json.dumps({"error": problem.message, "hint": problem.hint})
    except OSError as problem:
        answer = json.dumps({"error": f"could not submit the job to Ray: {problem}", "hint": ""})
    print(answer.strip(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
