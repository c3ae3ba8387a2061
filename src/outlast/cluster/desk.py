"""The desk on the head: what commands from outside ask of Ray, over ssh. One question a call; JSON on stdout.

    desk WORKSPACE CLUSTER MACHINE  status | jobs | submit ID | stop ID | logs ID [--follow]

Ray's own client is used, of the Ray that runs here: nobody else needs one. Refuses to know machines and clouds.
"""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any

from outlast.cluster.record import DASHBOARD_PORT, PORT, Clusters, Job
from outlast.errors import NoSuchRun, OutlastError
from outlast.workspace.bundle import unpack
from outlast.workspace.workspace import open_workspace

_URL = f"http://127.0.0.1:{DASHBOARD_PORT}"


def status(clusters: Clusters, cluster: str) -> dict[str, Any]:
    """Nodes, demands and use, as Ray's autoscaler tells them."""
    from ray.autoscaler.v2.sdk import get_cluster_status

    place = clusters.head(cluster)
    found = get_cluster_status(f"{place.address if place else '127.0.0.1'}:{PORT}")
    alive = [(node, False) for node in found.active_nodes] + [(node, True) for node in found.idle_nodes]
    return {
        "nodes": [
            {
                "machine": node.instance_id,
                "kind": node.ray_node_type_name,
                "address": node.ip_address,
                "status": node.node_status or "",
                "idle": idle,
                "idle_s": (node.resource_usage.idle_time_ms / 1000.0) if node.resource_usage else 0.0,
                "used": node.used_resources(),
                "total": node.total_resources(),
            }
            for node, idle in alive
        ],
        "pending": [
            *({"kind": one.ray_node_type_name, "count": one.count} for one in found.pending_launches),
            *({"kind": node.ray_node_type_name, "machine": node.instance_id} for node in found.pending_nodes),
        ],
        "failed": [
            *({"kind": one.ray_node_type_name, "why": one.details or ""} for one in found.failed_launches),
            *(
                {"kind": node.ray_node_type_name, "machine": node.instance_id, "why": node.failure_detail or ""}
                for node in found.failed_nodes
            ),
        ],
        "usage": {use.resource_name: [use.used, use.total] for use in found.cluster_resource_usage},
        "demands": _demands(found.resource_demands),
    }


def _demands(found: Any) -> list[dict[str, Any]]:
    listed = [*found.ray_task_actor_demand, *found.placement_group_demand, *found.cluster_constraint_demand]
    return [
        {"bundle": dict(bundle.bundle), "count": bundle.count}
        for demand in listed
        for bundle in demand.bundles_by_count
    ]


def _client() -> Any:
    from ray.job_submission import JobSubmissionClient

    return JobSubmissionClient(_URL)


def jobs() -> list[dict[str, Any]]:
    return [
        {
            "id": job.submission_id or job.job_id,
            "status": str(getattr(job.status, "value", job.status)),
            "command": job.entrypoint or "",
            "message": job.message or "",
            "started_at": (job.start_time or 0) / 1000.0,
            "ended_at": (job.end_time or 0) / 1000.0,
            "exit_code": getattr(job, "driver_exit_code", None),
        }
        for job in _client().list_jobs()
        # Drivers that somebody started by hand have no submission; those that are over are of no interest.
        if job.submission_id or str(getattr(job.status, "value", job.status)) == "RUNNING"
    ]


def submit(clusters: Clusters, cluster: str, job_id: str) -> dict[str, Any]:
    """Give Ray a job that the workspace knows. One that Ray has already is left alone: the answer was lost."""
    job = clusters.get(cluster, "jobs", job_id, Job)
    if job is None:
        raise NoSuchRun(f"the workspace has no job `{job_id}` of `{cluster}`")
    client = _client()
    if any(known.submission_id == job_id for known in client.list_jobs()):
        return {"id": job_id, "again": True}
    with tempfile.TemporaryDirectory(prefix="outlast-job-") as folder:
        runtime: dict[str, Any] = {"env_vars": job.env} if job.env else {}
        if job.code is not None:
            unpack(clusters.bucket, job.code, f"{folder}/code")
            runtime["working_dir"] = f"{folder}/code"
        client.submit_job(
            entrypoint=job.command,
            submission_id=job_id,
            runtime_env=runtime,
            metadata={"who": job.who, "matrix": job.matrix},
        )
    return {"id": job_id}


def logs(job_id: str, *, follow: bool) -> None:
    """The output of the job's driver, to stdout; with `follow` until it ends."""
    client = _client()
    if not follow:
        sys.stdout.write(client.get_job_logs(job_id))
        return
    import asyncio

    async def copy() -> None:
        async for piece in client.tail_job_logs(job_id):
            sys.stdout.write(piece)
            sys.stdout.flush()

    asyncio.run(copy())


def answer(clusters: Clusters, cluster: str, words: list[str]) -> object:
    match words:
        case ["status"]:
            return status(clusters, cluster)
        case ["jobs"]:
            return jobs()
        case ["submit", job_id]:
            return submit(clusters, cluster, job_id)
        case ["stop", job_id]:
            return {"stopped": bool(_client().stop_job(job_id))}
    raise OutlastError(f"the desk does not know {words}")


def main(words: list[str]) -> int:
    workspace, cluster, _, *asked = words
    # Ray's own progress lines belong to stderr: stdout is the answer.
    stdout, sys.stdout = sys.stdout, sys.stderr
    try:
        if asked[:1] == ["logs"]:
            sys.stdout = stdout
            logs(asked[1], follow="--follow" in asked)
            return 0
        found = answer(Clusters(open_workspace(workspace)), cluster, asked)
    except OutlastError as problem:
        found = {"error": problem.message, "hint": problem.hint}
    except (RuntimeError, OSError, ValueError) as problem:
        # What Ray's client raises for what Ray refused.
        found = {"error": str(problem).strip().splitlines()[0] if str(problem).strip() else repr(problem), "hint": ""}
    stdout.write(json.dumps(found) + "\n")
    stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
