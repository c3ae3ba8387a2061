"""Client of Ray on its own machine, run by Ray's Python: one request per call, JSON on stdout.

    rayclient.py ADDRESS  status [EVERY_S] | jobs | submit | stop ID | logs ID [--follow]

The file is copied next to Ray, so it needs the standard library and Ray's dependencies only. Jobs use Ray's HTTP API on
the loopback interface, because importing Ray's client takes seconds on a small machine; only the autoscaler's status
needs Ray's Python API. `submit` reads the job from stdin.
"""

from __future__ import annotations

import json
import os
import select
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from typing import IO, Any

_URL = "http://127.0.0.1:8265"
_CALL_S = 60.0
_PACKAGE_S = 300.0
_STOP_S = 30.0
_LINES = 3
_DEAD_MAX = 1000
_IS_DEAD = "filter_keys=state&filter_predicates=%3D&filter_values=DEAD"
_ALIVE = ("PENDING", "RUNNING")


class RequestRefused(RuntimeError):
    """Ray did not answer, or refused the request."""


class Unknown(RequestRefused):
    """Ray does not have the requested object."""


class Api:
    """Ray's HTTP API on this machine. Methods raise RequestRefused."""

    def __init__(self, token: str, *, timeout_s: float = _CALL_S) -> None:
        self.headers = {"Authorization": f"Bearer {token}"}
        self.timeout_s = timeout_s

    @staticmethod
    def of_environment() -> Api:
        """Return an API with the token from Ray's environment."""
        with open(os.environ["RAY_AUTH_TOKEN_PATH"], encoding="utf-8") as file:
            return Api(file.read())

    def get(self, path: str) -> Any:
        return self._call("GET", path)

    def jobs(self) -> list[dict[str, Any]]:
        return [job for job in self.get("/api/jobs/") if isinstance(job, dict)]

    def job(self, job_id: str) -> dict[str, Any]:
        """Return a job. Raises Unknown."""
        return dict(self.get(f"/api/jobs/{job_id}"))

    def has_job(self, job_id: str) -> bool:
        try:
            self.job(job_id)
        except Unknown:
            return False
        return True

    def submit(self, job: dict[str, Any]) -> None:
        self._call("POST", "/api/jobs/", json.dumps(job).encode())

    def stop(self, job_id: str) -> bool:
        """Stop a job and return whether it was running."""
        return bool(self._call("POST", f"/api/jobs/{job_id}/stop")["stopped"])

    def logs(self, job_id: str) -> str:
        return str(self.get(f"/api/jobs/{job_id}/logs")["logs"])

    def upload(self, folder: str, package: str) -> str:
        """Upload a folder as a Ray package, unless Ray has it, and return its URI for `working_dir`."""
        name = f"_ray_pkg_outlast_{package[:32]}.zip"
        try:
            # This request also keeps Ray from deleting the package for ten minutes.
            self.get(f"/api/packages/gcs/{name}")
        except Unknown:
            with tempfile.TemporaryFile() as file:
                _zip(folder, file)
                file.seek(0)
                self._call("PUT", f"/api/packages/gcs/{name}", file.read(), timeout_s=_PACKAGE_S)
        return f"gcs://{name}"

    async def follow(self, job_id: str, sink: IO[str]) -> None:
        """Copy the output of a job to `sink` until the job ends."""
        import asyncio

        # Ray's dashboard depends on it, so it is always installed.
        import aiohttp

        watch = asyncio.create_task(_exit_with(sink))
        try:
            async with (
                aiohttp.ClientSession(headers=self.headers) as session,
                session.ws_connect(f"{_URL}/api/jobs/{job_id}/logs/tail", max_msg_size=0) as stream,
            ):
                async for piece in stream:
                    if piece.type == aiohttp.WSMsgType.TEXT:
                        try:
                            sink.write(piece.data)
                            sink.flush()
                        except BrokenPipeError:
                            os._exit(0)  # as below
                closed = stream.close_code
        except aiohttp.ClientError as problem:
            raise RequestRefused(f"could not read the output of `{job_id}` from Ray: {problem}") from problem
        finally:
            watch.cancel()
        # Ray closes the connection normally when the job has ended; a dashboard that crashed does not.
        if closed not in (1000, 1001):
            raise RequestRefused(f"Ray stopped showing the output of `{job_id}` (code {closed})")

    def _call(self, method: str, path: str, body: bytes | None = None, *, timeout_s: float = 0.0) -> Any:
        request = urllib.request.Request(f"{_URL}{path}", data=body, method=method, headers=self.headers)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s or self.timeout_s) as answer:
                text = answer.read()
            return json.loads(text) if text else {}
        except urllib.error.HTTPError as problem:
            # Ray answers with a traceback; the reason is at its end.
            traceback = problem.read().decode("utf-8", "replace").strip()
            why = " ".join(traceback.splitlines()[-_LINES:])
            kind = Unknown if problem.code == 404 else RequestRefused
            raise kind(f"Ray refused {method} {path} with status {problem.code}: {why}") from problem
        except (OSError, ValueError) as problem:
            raise RequestRefused(f"Ray does not answer: {problem}") from problem


async def _exit_with(sink: IO[str]) -> None:
    """Exit when the reader of `sink` has gone, even without output.

    Exit without closing the connection: while Ray has output to send, it would not answer the close.
    """
    import asyncio

    poll = select.poll()
    poll.register(sink.fileno(), 0)
    while not poll.poll(0):
        await asyncio.sleep(1.0)
    os._exit(0)


def _zip(folder: str, file: IO[bytes]) -> None:
    """Pack a working directory as Ray does: follow links, keep empty folders and modes."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1, strict_timestamps=False) as package:
        for path in _paths(folder, folder):
            package.write(path, os.path.relpath(path, folder))


def _paths(root: str, folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    if not found and folder != root:
        yield folder
    for entry in found:
        if entry.is_dir():
            # Skip a link to one of its parents, which would recurse forever.
            inside = os.path.realpath(folder) + os.sep
            if not (entry.is_symlink() and inside.startswith(os.path.realpath(entry.path) + os.sep)):
                yield from _paths(root, entry.path)
        elif os.path.exists(entry.path):
            yield entry.path


def status(address: str) -> dict[str, Any]:
    """Return nodes, demands and usage, from Ray's autoscaler."""
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
        "failed": [{"kind": one.ray_node_type_name, "why": one.details or ""} for one in found.failed_launches],
        "ended": _ended(found.failed_nodes),
        "usage": {use.resource_name: [use.used, use.total] for use in found.cluster_resource_usage},
        "demands": _demands(found.resource_demands),
    }


def _ended(nodes: Any) -> list[dict[str, Any]]:
    """Return ended nodes with Ray's reason. The autoscaler calls all of them failed."""
    if not nodes:
        return []
    dead = Api.of_environment().get(f"/api/v0/nodes?detail=1&limit={_DEAD_MAX}&{_IS_DEAD}")["data"]["result"]["result"]
    why = {node["node_id"]: str(node.get("state_message") or "") for node in dead}
    return [
        {"kind": node.ray_node_type_name, "machine": node.instance_id, "why": why.get(node.node_id, "")}
        for node in nodes
    ]


def _demands(found: Any) -> list[dict[str, Any]]:
    listed = [*found.ray_task_actor_demand, *found.placement_group_demand, *found.cluster_constraint_demand]
    return [
        {"bundle": dict(bundle.bundle), "count": bundle.count}
        for demand in listed
        for bundle in demand.bundles_by_count
    ]


def jobs() -> list[dict[str, Any]]:
    return [
        {
            "id": job.get("submission_id") or job.get("job_id"),
            "status": job["status"],
            "command": job.get("entrypoint") or "",
            "message": job.get("message") or "",
            "started_at": (job.get("start_time") or 0) / 1000.0,
            "ended_at": (job.get("end_time") or 0) / 1000.0,
            "exit_code": job.get("driver_exit_code"),
        }
        for job in Api.of_environment().jobs()
        # Drivers that users started manually have no submission id; list them only while they run.
        if job.get("submission_id") or job["status"] == "RUNNING"
    ]


def submit(job: dict[str, Any]) -> dict[str, Any]:
    """Submit a job. A job that Ray already has stays: an earlier answer was lost."""
    api = Api.of_environment()
    if api.has_job(job["submission_id"]):
        return {"id": job["submission_id"], "again": True}
    folder, package = job.pop("folder", ""), job.pop("package", "")
    if folder:
        job["runtime_env"]["working_dir"] = api.upload(folder, package)
    api.submit(job)
    return {"id": job["submission_id"]}


def stop(job_id: str) -> dict[str, Any]:
    """Stop a job and wait for its end. Ray sends SIGTERM first and SIGKILL later."""
    api = Api.of_environment()
    stopped = api.stop(job_id)
    ends_at = time.monotonic() + _STOP_S
    while (found := api.job(job_id)["status"]) in _ALIVE and time.monotonic() < ends_at:
        time.sleep(0.2)
    return {"stopped": stopped, "status": found}


def logs(job_id: str, sink: IO[str], *, follow: bool) -> None:
    """Write the output of the job's driver to `sink`; with `follow`, until it ends."""
    api = Api.of_environment()
    if not follow:
        sink.write(api.logs(job_id))
        sink.flush()
        return
    import asyncio

    asyncio.run(api.follow(job_id, sink))


def answer(address: str, argv: list[str]) -> Any:
    if argv == ["status"]:
        return status(address)
    if argv == ["jobs"]:
        return jobs()
    if argv == ["submit"]:
        return submit(json.load(sys.stdin))
    if argv[:1] == ["stop"] and len(argv) == 2:
        return stop(argv[1])
    return {"error": f"unknown request {argv}", "hint": ""}


def _answered(address: str, request: list[str]) -> Any:
    try:
        return answer(address, request)
    except (RuntimeError, OSError, ValueError, KeyError, TypeError) as problem:
        # Errors that Ray's Python raises, and those of answers with an unexpected format.
        return {"error": str(problem).strip().splitlines()[0] if str(problem).strip() else repr(problem), "hint": ""}


def _show(job_id: str, sink: IO[str], *, follow: bool) -> int:
    try:
        logs(job_id, sink, follow=follow)
    except BrokenPipeError:
        os._exit(0)
    except (RuntimeError, OSError) as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    return 0


def main(argv: list[str]) -> int:
    address, *request = argv
    # Ray's progress lines go to stderr: stdout has the answer only.
    stdout, sys.stdout = sys.stdout, sys.stderr
    if request[:1] == ["logs"]:
        return _show(request[1], stdout, follow="--follow" in request)
    every_s = float(request.pop()) if request[:1] == ["status"] and len(request) == 2 else 0.0
    while True:
        try:
            stdout.write(json.dumps(_answered(address, request)) + "\n")
            stdout.flush()
        except BrokenPipeError:
            os._exit(0)  # the reader has gone
        if not every_s:
            return 0
        time.sleep(every_s)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
