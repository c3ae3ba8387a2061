"""A run as one file: what it contains, where it can be restored, and what damaged files are answered with."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest
from tests.unit.test_retention import ended, submit, workspace

import outlast
from outlast.errors import OutlastError, UsageError
from outlast.retention import archive as archives
from outlast.retention.archive import archive_run, restore_run
from outlast.retention.prune import Pruner, delete_runs
from outlast.runs.ended import EndedRuns
from outlast.runs.notes import read_note
from outlast.spec.spec import RetentionSpec
from outlast.store.bucket import Bucket
from outlast.workspace import Workspace, open_workspace

__all__ = ["workspace"]


@pytest.fixture
def other(tmp_path: Path) -> Workspace:
    return open_workspace(str(tmp_path / "other"))


def objects(bucket: Bucket, *prefixes: str) -> dict[str, bytes]:
    return {entry.key: bucket.get(entry.key) for prefix in prefixes for entry in bucket.list(prefix)}


def test_a_restored_run_is_the_same_and_counts_as_ended(workspace: Workspace, other: Workspace, tmp_path: Path) -> None:
    run, stays = ended(workspace, b"code"), ended(workspace, b"other code")
    space = outlast.workspace("")
    space._workspace = workspace
    space.run(run).annotate("the good one", tags=["paper"])
    path = space.run(run).archive(tmp_path / "run.tar")
    before = objects(workspace.bucket, f"runs/{run}/")
    used = workspace.request(run).code.shared_keys
    found = restore_run(other, path)
    assert (found.run, found.objects) == (run, len(before) + len(used) + 1)
    assert objects(other.bucket, f"runs/{run}/") == before
    assert objects(other.bucket, "code/") == {used[0]: b"code"}  # not that of the other run
    assert read_note(other.bucket, run).text == "the good one"
    assert other.find(run) == run != stays
    assert [record.run for record in EndedRuns(other).newest()[0]] == [run]
    assert restore_run(other, path) == found  # may be repeated
    # It obeys the same rules as any other run, and the next submission gets a free number.
    assert submit(other, b"new code") != run
    Pruner(other, min_age_s=0.0).prune(RetentionSpec(older_than_s=86400.0 * 365 * 1000))
    assert objects(other.bucket, "code/").keys() >= set(used)


def test_an_interrupted_restoration_is_completed_by_the_next(
    workspace: Workspace, other: Workspace, tmp_path: Path
) -> None:
    run = ended(workspace)
    path = archive_run(workspace, run, str(tmp_path / "run.tar")).path
    restore_run(other, path)
    whole = objects(other.bucket, "runs/", "code/")
    for key in whole:  # the process dies before this object is stored
        fresh = open_workspace(f"{other.bucket.url}-{hashlib.sha256(key.encode()).hexdigest()[:8]}")
        for done, body in whole.items():
            if done != key:
                fresh.bucket.create(done, body)
        restore_run(fresh, path)
        assert objects(fresh.bucket, "runs/", "code/") == whole


def test_names_that_are_taken_or_deleted_are_refused(workspace: Workspace, other: Workspace, tmp_path: Path) -> None:
    run = ended(workspace)
    path = archive_run(workspace, run, str(tmp_path / "run.tar")).path
    delete_runs(workspace, [run])
    with pytest.raises(UsageError, match="never used again") as refused:
        restore_run(workspace, path)
    assert "--workspace" in (refused.value.hint or "")
    assert objects(workspace.bucket, "runs/") == {}
    assert submit(other, b"something else") == run
    with pytest.raises(UsageError, match=f"has another run `{run}`"):
        restore_run(other, path)


def test_live_runs_and_existing_files_are_refused(workspace: Workspace, tmp_path: Path) -> None:
    live, over = submit(workspace, b"code"), ended(workspace)
    with pytest.raises(UsageError, match="still live"):
        archive_run(workspace, live, str(tmp_path / "run.tar"))
    (tmp_path / "run.tar").write_text("precious")
    with pytest.raises(UsageError, match="exists already"):
        archive_run(workspace, over, str(tmp_path / "run.tar"))
    with pytest.raises(UsageError, match="cannot write"):
        archive_run(workspace, over, str(tmp_path / "missing" / "run.tar"))
    assert [path.name for path in tmp_path.glob("run*")] == ["run.tar"]


def rewritten(path: str, change: dict[str, bytes | None]) -> str:
    """Return a copy of an archive with other bodies; None leaves a member out. The hashes fit unless they change."""
    with tarfile.open(path) as tar:
        bodies = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    hashes = json.loads(bodies["objects.json"])
    for name, body in change.items():
        if name not in ("objects.json", "outlast.json"):
            hashes.pop(name, None)
            if body is not None:
                hashes[name] = [len(body), hashlib.sha256(body).hexdigest()]
    bodies["objects.json"] = json.dumps(hashes).encode()
    with tarfile.open(f"{path}.changed", "w") as tar:
        for name, body in {**bodies, **change}.items():
            if body is not None:
                member = tarfile.TarInfo(name)
                member.size = len(body)
                tar.addfile(member, io.BytesIO(body))
    return f"{path}.changed"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"objects.json": None}, "it has no"),
        ({"outlast.json": b"{}"}, "missing required field"),
        ({"objects.json": b"{}"}, "objects are missing"),
        ({"runs/run-1/spec.json": None}, "objects are missing"),
        ({"workspace.json": b"{}"}, "does not belong to run-1"),
        ({"runs/run-2/spec.json": b"{}"}, "does not belong to run-1"),
        ({"runs/run-1/../../x": b"{}"}, "invalid object key"),
    ],
)
def test_foreign_and_damaged_files_change_nothing(
    workspace: Workspace, other: Workspace, tmp_path: Path, change: dict[str, bytes | None], problem: str
) -> None:
    path = archive_run(workspace, ended(workspace), str(tmp_path / "run.tar")).path
    with pytest.raises(OutlastError, match=problem):
        restore_run(other, rewritten(path, change))
    assert objects(other.bucket, "runs/", "code/") == {}


def test_a_truncated_or_altered_file_is_recognized(workspace: Workspace, other: Workspace, tmp_path: Path) -> None:
    path = Path(archive_run(workspace, ended(workspace), str(tmp_path / "run.tar")).path)
    body = path.read_bytes()
    for broken in (body[: len(body) // 2], body.replace(b"x" * 5000, b"x" * 4999 + b"y"), b"no tar", b""):
        path.write_bytes(broken)
        with pytest.raises(UsageError, match="not a complete archive"):
            restore_run(other, str(path))
    assert objects(other.bucket, "runs/", "code/") == {}
    with pytest.raises(UsageError, match="cannot read"):
        restore_run(other, str(tmp_path / "none.tar"))


def test_large_objects_do_not_pass_through_memory(
    workspace: Workspace, other: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "_LARGE", 100)
    run = ended(workspace)
    path = archive_run(workspace, run, str(tmp_path / "run.tar")).path
    restore_run(other, path)
    assert objects(other.bucket, f"runs/{run}/") == objects(workspace.bucket, f"runs/{run}/")
