"""The desk on the head: what commands from outside ask, over ssh. One question a call; JSON on stdout.

    desk  status [EVERY_S] | jobs | submit ID | stop ID | logs ID [--follow]

A client of ours answers, in the Python of the Ray that runs here (`rayclient.py`). A job comes out of the workspace,
which Ray's Python need not know: that is done here.
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
    """Give Ray a job that the workspace knows; the answer of its client. `folder` is one that Ray's Python sees."""
    job = clusters.get(cluster, "jobs", job_id, ClusterJob)
    if job is None:
        raise NoSuchRun(f"the workspace has no job `{job_id}` of `{cluster}`")
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{job_id}-", dir=folder) as place:
        runtime: dict[str, Any] = {"env_vars": job.env} if job.env else {}
        if job.code is not None:
            unpack(clusters.bucket, job.code, f"{place}/code")
        asked = {
            "folder": f"{place}/code" if job.code is not None else "",
            "package": job.code.sha256 if job.code is not None else "",
            "entrypoint": job.command,
            "submission_id": job_id,
            "runtime_env": runtime,
            "metadata": {"who": job.who, "matrix": job.matrix},
        }
        return subprocess.run(
            [*client, "submit"], input=json.dumps(asked), stdout=subprocess.PIPE, text=True, check=False
        ).stdout


def main(argv: list[str]) -> int:
    workspace, cluster, folder, job_id, *client = argv
    try:
        said = submit(Clusters(open_workspace(workspace)), cluster, job_id, client, folder)
    except OutlastError as problem:
        said = json.dumps({"error": problem.message, "hint": problem.hint})
    except OSError as problem:
        said = json.dumps({"error": f"the job cannot be handed to Ray: {problem}", "hint": ""})
    print(said.strip(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
