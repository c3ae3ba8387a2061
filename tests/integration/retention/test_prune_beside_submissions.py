"""A thousand old runs are pruned by processes that are killed, while twenty runs are submitted, resumed and killed.

The checker reads the files of the workspace itself: it shares no code with the deletion that it judges.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest

from outlast.code.record import CodeRecord, code_key
from outlast.errors import WorkspaceError
from outlast.retention.prune import Pruner
from outlast.runs import events as ev
from outlast.runs.checkpoints import restore
from outlast.runs.ended import EndedRuns, record_of
from outlast.runs.manifest import Manifest, write_manifest
from outlast.runs.packs import upload_files
from outlast.spec.spec import RetentionSpec, Spec
from outlast.store.parallel import one_by_one
from outlast.store.parts import Parts
from outlast.store.shared import store_shared
from outlast.submit.prepare import PreparedRun
from outlast.submit.write import write_run
from outlast.workspace import Heartbeat, Workspace, open_workspace

OLD, LIVE = 1000, 20
OLD_S = 3600.0


def placed(attempt: int) -> ev.Placed:
    return ev.Placed(
        attempt=attempt, cloud="local", region="r", zone="z", type="t", spot=True, price_usd_per_hour=1.0, machine="m"
    )


def submit(workspace: Workspace, body: bytes) -> str:
    """Submit as a user does who repeats a submission that a collection refused."""
    while True:
        try:
            name = store_shared(workspace.bucket, code_key, hashlib.sha256(body).hexdigest(), body)
            code = CodeRecord(kind="bundle", sha256=name, bytes=len(body))
            prepared = PreparedRun(
                spec=Spec(name="run", command="train"), code=code, who="ada", path="", secrets={}, store_keys={}
            )
            run = write_run(workspace, {}, prepared).run
            workspace.write_heartbeat(run, Heartbeat())
            return run
        except WorkspaceError:
            continue


def commit(workspace: Workspace, run: str, attempt: int, folder: Path, number: int) -> None:
    parts = Parts(workspace.bucket, run, attempt)
    files, *_ = [upload_files(parts, str(folder), [path.name for path in folder.iterdir()], each=one_by_one)]
    parts.make_durable()
    name = f"{attempt:04d}-{number:05d}"
    write_manifest(
        workspace.bucket, Manifest(run=run, checkpoint=name, attempt=attempt, files=tuple(files), step=number)
    )
    append(workspace, run, ev.Saved(attempt=attempt, checkpoint=name, step=number))


def append(workspace: Workspace, run: str, event: ev.Event) -> None:
    workspace.story(run).append_or_raise(event, nonce=workspace.ids())


def end(workspace: Workspace, run: str, attempt: int) -> None:
    append(workspace, run, ev.Finished(attempt=attempt))
    for number in range(1, attempt + 1):
        append(workspace, run, ev.Released(attempt=number, cost_usd=0.5, seconds=60.0))
    EndedRuns(workspace).add(record_of(run, workspace.story(run).refresh()))
    for entry in list(workspace.bucket.list(f"wakeups/{run}/")):
        workspace.bucket.delete(entry.key)
    workspace.bucket.delete(f"heartbeats/{run}")


def old_runs(root: Path, workspace: Workspace) -> None:
    """Write runs as of yesterday, by the times of their files."""
    records = []
    yesterday = time.time() - 86400.0
    for number in range(1, OLD + 1):
        run, body = f"old-{number}", f"code {number % 30}".encode() * 100
        name = store_shared(workspace.bucket, code_key, hashlib.sha256(body).hexdigest(), body)
        workspace.bucket.create(f"runs/{run}/spec.json", json.dumps({"run": run, "code": name}).encode(), durable=False)
        events = [ev.Submitted(at=yesterday), placed(1), ev.Started(attempt=1), ev.Finished(attempt=1, at=yesterday)]
        events.append(ev.Released(attempt=1, cost_usd=0.5, seconds=60.0))
        for at, event in enumerate(events, 1):
            workspace.bucket.create(f"runs/{run}/story/{at:08d}.json", ev.encode(event), durable=False)
        workspace.bucket.create(f"runs/{run}/parts/1/{number}", b"x" * 1000, durable=False)
        records.append(record_of(run, workspace.story(run).refresh()))
    for begin in range(0, OLD, 100):
        EndedRuns(workspace).write_page(records[begin : begin + 100])
    for path in root.rglob("*"):
        if path.is_file():
            os.utime(path, (yesterday, yesterday))


def live_run(url: str, number: int, scratch: Path, done: list[str]) -> None:
    """Submit with code that old runs use, commit, lose the machine, resume, commit, and end or stay alive."""
    workspace = open_workspace(url)
    run = submit(workspace, f"code {number % 30}".encode() * 100)
    folder = scratch / run
    folder.mkdir(parents=True)
    for attempt in (1, 2, 3):
        append(workspace, run, placed(attempt))
        state = workspace.story(run).refresh()
        manifest, problems = restore(workspace.bucket, run, reversed(state.checkpoints), str(folder))
        assert problems == []
        assert (manifest is None) == (attempt == 1)
        append(workspace, run, ev.Started(attempt=attempt, resumed_from=manifest.checkpoint if manifest else ""))
        for count in (1, 2):
            folder.mkdir(exist_ok=True)
            (folder / f"weights-{attempt}-{count}").write_bytes(os.urandom(20_000))
            commit(workspace, run, attempt, folder, count)
        if attempt < 3:
            append(workspace, run, ev.Lost(attempt=attempt, why="killed", preempted=True))
    if number % 2:
        end(workspace, run, 3)
    done.append(run)


def prune_forever(url: str) -> None:
    while True:
        try:
            Pruner(open_workspace(url), min_age_s=0.0).prune(RetentionSpec(older_than_s=OLD_S))
        except WorkspaceError:
            continue


def lost_objects(root: Path) -> list[str]:
    """Walk all manifests and requests of runs that are still there; return what they name and is not there."""
    lost = []
    for request in root.glob("runs/*/spec.json"):
        run = request.parent
        for name in re.findall(r"[0-9a-f]{64}(?:\.\d+)?", request.read_text()):
            path = root / "code" / f"{name}.tar.zst"
            if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != name.partition(".")[0]:
                lost.append(f"{run.name}: code {name}")
        for manifest in run.glob("checkpoints/*/manifest.json"):
            for key, digest in set(re.findall(r'"key":"([^"]+)","sha256":"([0-9a-f]{64})"', manifest.read_text())):
                path = root / key
                if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
                    lost.append(f"{run.name}: part {key}")
    return lost


@pytest.mark.full
def test_no_live_object_is_lost_and_only_referenced_bytes_stay(tmp_path: Path) -> None:
    root = tmp_path / "workspace"
    workspace = open_workspace(str(root))
    EndedRuns(workspace).rebuild()
    old_runs(root, workspace)
    done: list[str] = []
    live = [
        threading.Thread(target=live_run, args=(str(root), number, tmp_path / "scratch", done))
        for number in range(LIVE)
    ]
    context = multiprocessing.get_context("spawn")
    kills = 0
    for thread in live:
        thread.start()
    while any(thread.is_alive() for thread in live) or kills < 5:
        pruners = [context.Process(target=prune_forever, args=(str(root),)) for _ in range(2)]
        for pruner in pruners:
            pruner.start()
        pruners[0].join(2.0)  # it never ends by itself: it is killed anywhere in its work
        for pruner in pruners:
            os.kill(pruner.pid or 0, signal.SIGKILL)
            pruner.join()
        kills += 2
    for thread in live:
        thread.join()
    assert len(done) == LIVE
    assert lost_objects(root) == []
    # A mark of a killed collector keeps nothing: it only makes later submissions store another copy.
    Pruner(workspace, min_age_s=0.0).prune(RetentionSpec(older_than_s=OLD_S))
    assert lost_objects(root) == []
    assert sorted(path.parent.name for path in root.glob("runs/*/spec.json")) == sorted(done)
    assert not list(root.glob("runs/old-*/**/*.json"))
    used = {
        name
        for path in root.glob("runs/*/spec.json")
        for name in re.findall(r"[0-9a-f]{64}(?:\.\d+)?", path.read_text())
    }
    assert {path.name.removesuffix(".tar.zst") for path in root.glob("code/*")} == used
    for run in done:  # each can still be resumed, from its newest checkpoint
        state = workspace.story(run).refresh()
        manifest, problems = restore(workspace.bucket, run, reversed(state.checkpoints), str(tmp_path / "again" / run))
        assert (manifest is not None, problems) == (True, [])
