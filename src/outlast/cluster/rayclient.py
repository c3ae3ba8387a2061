"""What is asked of Ray by its own client, in Ray's own Python, whichever that is. One question a call; JSON on stdout.

    rayclient.py ADDRESS  status | jobs | submit | stop ID | logs ID [--follow]

Copied beside Ray: needs the standard library and Ray, and nothing of ours. `submit` reads the job from stdin.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any


def status(address: str) -> dict[str, Any]:
    """Nodes, demands and use, as Ray's autoscaler tells them."""
    from ray.autoscaler.v2.sdk import get_cluster_status

    found = get_cluster_status(address)
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

    return JobSubmissionClient("http://127.0.0.1:8265")


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


def submit(job: dict[str, Any]) -> dict[str, Any]:
    """Give Ray a job. One that Ray has already is left alone: the answer was lost."""
    client = _client()
    if any(known.submission_id == job["submission_id"] for known in client.list_jobs()):
        return {"id": job["submission_id"], "again": True}
    client.submit_job(**job)
    return {"id": job["submission_id"]}


def logs(job_id: str, follow: bool) -> None:
    """The output of the job's driver, to stdout; with `follow` until it ends."""
    client = _client()
    if not follow:
        sys.stdout.write(client.get_job_logs(job_id))
        return

    async def copy() -> None:
        async for piece in client.tail_job_logs(job_id):
            sys.stdout.write(piece)
            sys.stdout.flush()

    asyncio.run(copy())


def answer(address: str, words: list[str]) -> Any:
    if words == ["status"]:
        return status(address)
    if words == ["jobs"]:
        return jobs()
    if words == ["submit"]:
        return submit(json.load(sys.stdin))
    if words[:1] == ["stop"] and len(words) == 2:
        return {"stopped": bool(_client().stop_job(words[1]))}
    return {"error": f"the desk does not know {words}", "hint": ""}


def main(words: list[str]) -> int:
    address, *asked = words
    if asked[:1] == ["logs"]:
        logs(asked[1], "--follow" in asked)
        return 0
    # Ray's own progress lines belong to stderr: stdout is the answer.
    stdout, sys.stdout = sys.stdout, sys.stderr
    try:
        found = answer(address, asked)
    except (RuntimeError, OSError, ValueError) as problem:
        # What Ray's client raises for what Ray refused.
        found = {"error": str(problem).strip().splitlines()[0] if str(problem).strip() else repr(problem), "hint": ""}
    stdout.write(json.dumps(found) + "\n")
    stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
