"""HTTP routes for log windows, outputs and files of checkpoints.

No path outside the workspace can be addressed: outputs are looked up in the run's list, files of a checkpoint in its
manifest. Files are sent as downloads; only images, detected by their first bytes, are shown inline.
"""

from __future__ import annotations

import asyncio
import csv
import hashlib
import io
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.background import BackgroundTask

from outlast.app.metrics import columns, curves_of
from outlast.app.outputs import newest_outputs, zip_outputs
from outlast.app.whole_log import whole_log
from outlast.errors import Damaged, Missing, NoSuchRun, OutlastError
from outlast.runs.manifest import read_manifest
from outlast.runs.metrics import thinned
from outlast.store.bucket import Entry
from outlast.store.parts import StoredFile
from outlast.ui.feed import Feed
from outlast.ui.views.preview import image_type
from outlast.workspace import Workspace

T = TypeVar("T")
_SPARK_POINTS = 60

# A file must not run or load anything, whatever its content.
_SANDBOXED = {"content-security-policy": "sandbox; default-src 'none'", "cache-control": "private, no-cache"}


def checked_name(run: str) -> str:
    """Return the name if it is valid for a run. Raises NoSuchRun: a name must not lead outside `runs/`."""
    if not run or run in (".", "..") or any(sign in run for sign in "/\\\0") or len(run) > 255:
        raise NoSuchRun("no run has this name", hint="see `outlast ps --all`")
    return run


def find_output(workspace: Workspace, run: str, path: str) -> Entry:
    """Return an output of the run. Raises Missing."""
    found = newest_outputs(workspace, checked_name(run), also_current=True).get(path)
    if found is None:
        raise Missing(f"{run} has no output `{path}`")
    return found


def add_routes(app: FastAPI, feed: Feed) -> None:
    """Register the routes of all files."""
    workspace = feed.workspace

    async def answered(work: Callable[[], T], respond: Callable[[T], Response]) -> Response:
        try:
            return respond(await asyncio.get_running_loop().run_in_executor(None, work))
        except (Missing, NoSuchRun) as problem:
            return JSONResponse({"error": problem.message}, 404)
        except OutlastError as problem:
            return JSONResponse({"error": problem.message}, 503)

    async def window(run: str, attempt: int, request: Request) -> Response:
        begin, end = _number(request, "begin", -1), _number(request, "end", -1)
        limit = _number(request, "limit", 48 * 1024)

        def work() -> Any:
            index = feed.logs.index(checked_name(run), attempt)
            index.refresh()
            return index.window(begin=begin, end=end, limit=limit)

        return await answered(work, _json)

    async def search(run: str, attempt: int, request: Request) -> Response:
        text, begin = request.query_params.get("q", ""), _number(request, "begin", 0)

        def work() -> Any:
            index = feed.logs.index(checked_name(run), attempt)
            index.refresh()
            return index.search(text, begin=max(0, begin))

        return await answered(work, _json)

    async def output(run: str, request: Request) -> Response:
        path = request.query_params.get("path", "")
        send = _image if "show" in request.query_params else lambda w, e: _fetched(w, e, path)
        return await answered(lambda: send(workspace, find_output(workspace, run, path)), lambda made: made)

    async def part(run: str, checkpoint: str, request: Request) -> Response:
        path = request.query_params.get("path", "")
        return await answered(lambda: _fetched_part(workspace, run, checkpoint, path), lambda made: made)

    async def whole(run: str) -> Response:
        return await answered(lambda: _whole_log(workspace, checked_name(run)), lambda made: made)

    async def zipped(request: Request) -> Response:
        runs = [checked_name(run) for run in request.query_params.get("runs", "").split(",") if run]
        return await answered(lambda: _zipped(workspace, runs), lambda made: made)

    async def curve(run: str, request: Request) -> Response:
        metric = request.query_params.get("metric", "")
        return await answered(lambda: _sparkline(workspace, checked_name(run), metric), _json)

    async def curves(run: str) -> Response:
        return await answered(lambda: _curves(workspace, checked_name(run)), lambda made: made)

    app.add_api_route("/api/log/{run}", whole)
    app.add_api_route("/api/outputs.zip", zipped)
    app.add_api_route("/api/metrics/{run}", curves)
    app.add_api_route("/api/curve/{run}", curve)
    app.add_api_route("/api/log/{run}/{attempt}", window)
    app.add_api_route("/api/log/{run}/{attempt}/search", search)
    app.add_api_route("/api/output/{run}", output)
    app.add_api_route("/api/checkpoint/{run}/{checkpoint}", part)


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else default


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json", headers={"cache-control": "no-store"})


def _image(workspace: Workspace, entry: Entry) -> Response:
    body = workspace.bucket.get(entry.key)
    kind = image_type(body[:16])
    if kind:
        return Response(body, media_type=kind, headers=_SANDBOXED)
    return JSONResponse({"error": "not an image"}, 415)


def _fetched(workspace: Workspace, entry: Entry, path: str) -> Response:
    """Return an output as a download, fetched completely first, so that errors occur before anything is sent."""
    folder = tempfile.mkdtemp(prefix="outlast-page-")
    target = os.path.join(folder, "file")
    try:
        workspace.bucket.download(entry.key, target)
    except OutlastError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return _attached(folder, target, path)


def _fetched_part(workspace: Workspace, run: str, checkpoint: str, path: str) -> Response:
    """Return a file of a checkpoint, assembled from its parts after checking their hashes."""
    found = _find_file(workspace, run, checkpoint, path)
    folder = tempfile.mkdtemp(prefix="outlast-page-")
    target = os.path.join(folder, "file")
    try:
        with open(target, "wb") as file:
            for part in found.parts:
                body = workspace.bucket.get(part.key)
                if hashlib.sha256(body).hexdigest() != part.sha256:
                    raise Damaged(f"`{path}` is damaged")
                file.write(body if found.size is None else body[found.at : found.at + found.size])
    except OutlastError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return _attached(folder, target, path)


def _whole_log(workspace: Workspace, run: str) -> Response:
    """Return the output of all attempts as one download."""
    pieces = whole_log(workspace, run)
    first = next(pieces, b"")  # errors occur before anything is sent

    def text() -> Iterator[bytes]:
        yield first
        yield from pieces

    headers = {"content-disposition": f"attachment; filename*=UTF-8''{quote(run, safe='')}.log", **_SANDBOXED}
    return StreamingResponse(text(), media_type="application/octet-stream", headers=headers)


def _zipped(workspace: Workspace, runs: Sequence[str]) -> Response:
    """Return the outputs of runs as one archive."""
    folder = tempfile.mkdtemp(prefix="outlast-page-")
    target = os.path.join(folder, "file")
    try:
        if not zip_outputs(workspace, runs, target):
            raise Missing("these runs have no outputs yet" if len(runs) > 1 else "the run has no outputs yet")
    except OutlastError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return _attached(folder, target, f"{runs[0]}.zip" if len(runs) == 1 else "outputs.zip")


def _sparkline(workspace: Workspace, run: str, metric: str) -> list[float]:
    """Return the values of a metric, reduced to those that a small curve can show."""
    points = curves_of(workspace, run).series.get(metric, ())
    return [point.value for point in thinned(points, _SPARK_POINTS // 2)]


def _curves(workspace: Workspace, run: str) -> Response:
    """Return the metrics of a run as CSV, one row per step."""
    found = columns(curves_of(workspace, run))
    lines = io.StringIO()
    writer = csv.writer(lines)
    writer.writerow(found)
    for row in zip(*found.values(), strict=True):
        writer.writerow(["" if isinstance(value, float) and math.isnan(value) else value for value in row])
    headers = {"content-disposition": f"attachment; filename*=UTF-8''{quote(run, safe='')}.csv", **_SANDBOXED}
    return Response(lines.getvalue(), media_type="text/csv", headers=headers)


def _attached(folder: str, target: str, path: str) -> Response:
    gone = BackgroundTask(shutil.rmtree, folder, ignore_errors=True)
    name = quote(path.rpartition("/")[2], safe="")
    headers = {"content-disposition": f"attachment; filename*=UTF-8''{name}", **_SANDBOXED}
    return FileResponse(target, media_type="application/octet-stream", headers=headers, background=gone)


def _find_file(workspace: Workspace, run: str, checkpoint: str, path: str) -> StoredFile:
    if not checkpoint or any(sign in checkpoint for sign in "/\\\0") or checkpoint in (".", ".."):
        raise Missing("no checkpoint has this name")
    manifest = read_manifest(workspace.bucket, checked_name(run), checkpoint)
    for file in manifest.files:
        if file.path == path and not file.link:
            return file
    raise Missing(f"checkpoint {checkpoint} has no file `{path}`")
