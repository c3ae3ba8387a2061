"""What is asked of Ray where it runs, in its own Python, whichever that is. One question a call; JSON on stdout.

    rayclient.py ADDRESS  status [EVERY_S] | jobs | submit | stop ID | logs ID [--follow]

Copied beside Ray: needs the standard library and what Ray brings, and nothing of ours. Jobs go by Ray's own HTTP on the
loopback, with the paths that its client calls, as to load that client takes seconds of a small machine; only what the
autoscaler knows is told by Ray's Python alone. `submit` reads the job from stdin.
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
_LIVES = ("PENDING", "RUNNING")


class RequestRefused(RuntimeError):
    """Ray does not answer, or not as was asked."""


class Unknown(RequestRefused):
    """Ray has no such thing."""


class Api:
    """Of the Ray that runs here. Raises Refused."""

    def __init__(self, token: str, *, timeout_s: float = _CALL_S) -> None:
        self.headers = {"Authorization": f"Bearer {token}"}
        self.timeout_s = timeout_s

    @staticmethod
    def of_environment() -> Api:
        """With the token that Ray's variables tell of."""
        with open(os.environ["RAY_AUTH_TOKEN_PATH"], encoding="utf-8") as file:
            return Api(file.read())

    def get(self, path: str) -> Any:
        return self._ask("GET", path)

    def jobs(self) -> list[dict[str, Any]]:
        return [job for job in self.get("/api/jobs/") if isinstance(job, dict)]

    def job(self, job_id: str) -> dict[str, Any]:
        """Raises Unknown."""
        return dict(self.get(f"/api/jobs/{job_id}"))

    def knows(self, job_id: str) -> bool:
        try:
            self.job(job_id)
        except Unknown:
            return False
        return True

    def submit(self, job: dict[str, Any]) -> None:
        self._ask("POST", "/api/jobs/", json.dumps(job).encode())

    def stop(self, job_id: str) -> bool:
        """Whether it ran until now."""
        return bool(self._ask("POST", f"/api/jobs/{job_id}/stop")["stopped"])

    def logs(self, job_id: str) -> str:
        return str(self.get(f"/api/jobs/{job_id}/logs")["logs"])

    def bring(self, folder: str, package: str) -> str:
        """The folder as a package of Ray's; its URI, for `working_dir`. The same content is brought once."""
        name = f"_ray_pkg_outlast_{package[:32]}.zip"
        try:
            # The question alone keeps a package that is there from being collected for ten minutes.
            self.get(f"/api/packages/gcs/{name}")
        except Unknown:
            with tempfile.TemporaryFile() as file:
                _zip(folder, file)
                file.seek(0)
                self._ask("PUT", f"/api/packages/gcs/{name}", file.read(), timeout_s=_PACKAGE_S)
        return f"gcs://{name}"

    async def follow(self, job_id: str, sink: IO[str]) -> None:
        """The output of a job until it ends."""
        import asyncio

        # Ray's dashboard is made with it, so it is where Ray is.
        import aiohttp

        watch = asyncio.create_task(_leave_with(sink))
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
            raise RequestRefused(f"Ray does not show the output of `{job_id}`: {problem}") from problem
        finally:
            watch.cancel()
        # Ray says goodbye when the job is over; a dashboard that died does not.
        if closed not in (1000, 1001):
            raise RequestRefused(f"Ray stopped showing the output of `{job_id}` (code {closed})")

    def _ask(self, method: str, path: str, body: bytes | None = None, *, timeout_s: float = 0.0) -> Any:
        asked = urllib.request.Request(f"{_URL}{path}", data=body, method=method, headers=self.headers)
        try:
            with urllib.request.urlopen(asked, timeout=timeout_s or self.timeout_s) as answer:
                said = answer.read()
            return json.loads(said) if said else {}
        except urllib.error.HTTPError as problem:
            # Ray answers with a traceback; what is meant is at its end.
            text = problem.read().decode("utf-8", "replace").strip()
            why = " ".join(text.splitlines()[-_LINES:])
            kind = Unknown if problem.code == 404 else RequestRefused
            raise kind(f"Ray refuses {method} {path} with {problem.code}: {why}") from problem
        except (OSError, ValueError) as problem:
            raise RequestRefused(f"Ray does not answer: {problem}") from problem


async def _leave_with(sink: IO[str]) -> None:
    """End this program when nobody reads it any more, also while there is nothing to say.

    At once: Ray hears no goodbye on a connection as long as it has something to show, and who says one waits for it.
    """
    import asyncio

    poll = select.poll()
    poll.register(sink.fileno(), 0)
    while not poll.poll(0):
        await asyncio.sleep(1.0)
    os._exit(0)


def _zip(folder: str, file: IO[bytes]) -> None:
    """As Ray packs a working directory: links by what they point to, empty folders, modes."""
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
            # A link to what it is itself in would never end.
            inside = os.path.realpath(folder) + os.sep
            if not (entry.is_symlink() and inside.startswith(os.path.realpath(entry.path) + os.sep)):
                yield from _paths(root, entry.path)
        elif os.path.exists(entry.path):
            yield entry.path


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
        "failed": [{"kind": one.ray_node_type_name, "why": one.details or ""} for one in found.failed_launches],
        "ended": _ended(found.failed_nodes),
        "usage": {use.resource_name: [use.used, use.total] for use in found.cluster_resource_usage},
        "demands": _demands(found.resource_demands),
    }


def _ended(nodes: Any) -> list[dict[str, Any]]:
    """Nodes that were, and why they are no more: Ray's autoscaler calls all of them failed, Ray itself knows better."""
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
        # Drivers that somebody started by hand have no submission; those that are over are of no interest.
        if job.get("submission_id") or job["status"] == "RUNNING"
    ]


def submit(job: dict[str, Any]) -> dict[str, Any]:
    """Give Ray a job. One that Ray has already is left alone: the answer was lost."""
    api = Api.of_environment()
    if api.knows(job["submission_id"]):
        return {"id": job["submission_id"], "again": True}
    folder, package = job.pop("folder", ""), job.pop("package", "")
    if folder:
        job["runtime_env"]["working_dir"] = api.bring(folder, package)
    api.submit(job)
    return {"id": job["submission_id"]}


def stop(job_id: str) -> dict[str, Any]:
    """Whether it ran until now. Ray asks it to leave first and kills it after a while; its end is waited for."""
    api = Api.of_environment()
    stopped = api.stop(job_id)
    ends_at = time.monotonic() + _STOP_S
    while (found := api.job(job_id)["status"]) in _LIVES and time.monotonic() < ends_at:
        time.sleep(0.2)
    return {"stopped": stopped, "status": found}


def logs(job_id: str, sink: IO[str], *, follow: bool) -> None:
    """The output of the job's driver; with `follow` until it ends."""
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
    return {"error": f"the desk does not know {argv}", "hint": ""}


def _answered(address: str, asked: list[str]) -> Any:
    try:
        return answer(address, asked)
    except (RuntimeError, OSError, ValueError, KeyError, TypeError) as problem:
        # What Ray's Python raises for what Ray refused, and what follows from an answer that is another one than ever.
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
    address, *asked = argv
    # Ray's own progress lines belong to stderr: stdout is the answer.
    stdout, sys.stdout = sys.stdout, sys.stderr
    if asked[:1] == ["logs"]:
        return _show(asked[1], stdout, follow="--follow" in asked)
    every_s = float(asked.pop()) if asked[:1] == ["status"] and len(asked) == 2 else 0.0
    while True:
        try:
            stdout.write(json.dumps(_answered(address, asked)) + "\n")
            stdout.flush()
        except BrokenPipeError:
            os._exit(0)  # whoever watched has left
        if not every_s:
            return 0
        time.sleep(every_s)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
