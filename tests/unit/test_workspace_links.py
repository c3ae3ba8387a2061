"""Symbolic links inside a workspace folder: no call lists, reads, writes or deletes their targets."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.cli.console import Console
from tests.unit.plan.worlds import placed

from outlast.cli.run.pull import pull_outputs
from outlast.errors import Exists, Missing, OutlastError, WorkspaceError
from outlast.runs import events as ev
from outlast.runs.retention import collect
from outlast.store.folder import FolderBucket
from outlast.store.parts import parts_prefix
from outlast.workspace import Workspace

SAYS = "is a symbolic link; outlast does not follow links inside a workspace"


@pytest.fixture
def bucket(tmp_path: Path) -> FolderBucket:
    made = FolderBucket(str(tmp_path / "workspace"))
    made.put("kept/object", b"ours")
    return made


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    (folder / "deep").mkdir(parents=True)
    (folder / "secret").write_bytes(b"private")
    (folder / "deep" / "secret").write_bytes(b"private")
    return folder


def untouched(outside: Path) -> bool:
    found = {str(path.relative_to(outside)): path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    return found == {"secret": b"private", "deep/secret": b"private"}


def finished(bucket: FolderBucket, run: str) -> Workspace:
    """A run with one attempt, which is over."""
    workspace = Workspace(bucket)
    happened: list[ev.Event] = [ev.Submitted(), placed(1), ev.Started(attempt=1, at=1.0), ev.Finished(attempt=1)]
    for number, event in enumerate(happened):
        workspace.story(run).append_or_raise(event, nonce=str(number))
    return workspace


def test_garbage_collection_deletes_nothing_that_a_link_leads_to(bucket: FolderBucket, outside: Path) -> None:
    workspace = finished(bucket, "r")
    bucket.put(f"{parts_prefix('r')}1/unneeded", b"x")
    folder = Path(bucket.root, parts_prefix("r"))
    (folder / "2").symlink_to(outside)
    (folder / "1" / "link").symlink_to(outside / "secret")
    (Path(bucket.root) / "runs" / "r" / "checkpoints").symlink_to(outside)
    assert collect(bucket, "r", workspace.story("r").refresh()) == 1
    assert untouched(outside)


def test_pull_does_not_follow_links(bucket: FolderBucket, outside: Path, tmp_path: Path) -> None:
    workspace = finished(bucket, "r")
    bucket.put("runs/r/outputs/1/model", b"weights")
    outputs = Path(bucket.root, "runs/r/outputs/1")
    (outputs / "folder").symlink_to(outside)
    (outputs / "file").symlink_to(outside / "secret")
    assert pull_outputs(workspace, "r", str(tmp_path / "pulled"), quiet=True) == 1
    assert [path.name for path in (tmp_path / "pulled").rglob("*")] == ["model"]


def test_the_dashboard_does_not_follow_links(bucket: FolderBucket, outside: Path) -> None:
    files = pytest.importorskip("outlast.ui.files", reason="NiceGUI, which the dashboard needs, is missing")
    workspace = finished(bucket, "r")
    bucket.put("runs/r/outputs/1/model", b"weights")
    outputs = Path(bucket.root, "runs/r/outputs/1")
    (outputs / "folder").symlink_to(outside)
    (outputs / "file").symlink_to(outside / "secret")
    assert files.find_output(workspace, "r", "model").bytes == 7
    for path in ("file", "folder/secret", "folder/deep/secret"):
        with pytest.raises(Missing):
            files.find_output(workspace, "r", path)


@pytest.mark.parametrize("key", ["file", "folder/secret", "folder/deep/secret", "kept/folder/secret"])
def test_for_readers_a_link_does_not_exist_and_the_error_names_it(
    bucket: FolderBucket, outside: Path, tmp_path: Path, key: str
) -> None:
    for link in ("folder", "kept/folder"):
        Path(bucket.root, link).symlink_to(outside)
    Path(bucket.root, "file").symlink_to(outside / "secret")
    reads: list[Callable[[], object]] = [
        lambda: bucket.get(key),
        lambda: bucket.head(key),
        lambda: bucket.read_into(key, memoryview(bytearray(10))),
        lambda: bucket.download(key, str(tmp_path / "copy")),
        lambda: bucket.make_durable([key]),
    ]
    for read in reads:
        with pytest.raises(Missing, match=SAYS):
            read()
    assert not (tmp_path / "copy").exists()
    assert [entry.key for entry in bucket.list("")] == ["kept/object"]
    assert list(bucket.children("")) == ["kept"]
    assert list(bucket.children("kept/")) == ["object"]
    for prefix in ("folder/", "folder/deep/", "kept/folder/"):
        assert list(bucket.list(prefix)) == []
        assert list(bucket.children(prefix)) == []


@pytest.mark.parametrize("key", ["folder/secret", "folder/new", "folder/deep/new", "folder/new/er"])
def test_a_writer_does_not_follow_a_link(bucket: FolderBucket, outside: Path, tmp_path: Path, key: str) -> None:
    Path(bucket.root, "folder").symlink_to(outside)
    (tmp_path / "body").write_bytes(b"x")
    writes: list[Callable[[], object]] = [
        lambda: bucket.put(key, b"x"),
        lambda: bucket.put(key, b"x", durable=True),
        lambda: bucket.create(key, b"x"),
        lambda: bucket.write(key, b"x"),
        lambda: bucket.upload(key, str(tmp_path / "body")),
    ]
    for write in writes:
        with pytest.raises(WorkspaceError, match=SAYS) as caught:
            write()
        assert not isinstance(caught.value, Missing | Exists)
    bucket.delete(key)
    assert untouched(outside)
    assert sorted(os.listdir(outside / "deep")) == ["secret"]
    assert os.listdir(Path(bucket.root, ".staging")) == []


def test_a_link_at_an_objects_key_is_replaced_and_its_target_stays(bucket: FolderBucket, outside: Path) -> None:
    for name in ("put", "written", "deleted", "created"):
        Path(bucket.root, name).symlink_to(outside / "secret")
    bucket.put("put", b"ours")
    bucket.write("written", b"ours")
    bucket.delete("deleted")
    # Not `Exists`: a writer would read the object, find none, and try again for ever.
    with pytest.raises(WorkspaceError, match=SAYS) as caught:
        bucket.create("created", b"ours")
    assert not isinstance(caught.value, Exists)
    assert (bucket.get("put"), bucket.get("written")) == (b"ours", b"ours")
    assert untouched(outside)


def test_a_link_in_the_place_of_the_staging_folder_is_refused(tmp_path: Path, outside: Path) -> None:
    bucket = FolderBucket(str(tmp_path / "workspace"))
    os.mkdir(bucket.root)
    Path(bucket.root, ".staging").symlink_to(outside)
    os.utime(outside / "secret", (0, 0))
    for act in (lambda: bucket.put("a", b"x"), lambda: bucket.remove_stale_writes(older_s=60.0)):
        with pytest.raises(WorkspaceError, match=SAYS):
            act()
    assert untouched(outside)


def test_the_workspace_folder_itself_may_be_a_link_and_be_below_one(tmp_path: Path) -> None:
    (tmp_path / "disk" / "real").mkdir(parents=True)
    (tmp_path / "linked").symlink_to(tmp_path / "disk")
    (tmp_path / "linked" / "workspace").symlink_to("real")
    bucket = FolderBucket(str(tmp_path / "linked" / "workspace"))
    bucket.create("runs/r/story/1", b"x")
    bucket.write("runs/r/parts/1", b"y")
    bucket.make_durable(["runs/r/parts/1"])
    assert [entry.key for entry in bucket.list("runs/")] == ["runs/r/parts/1", "runs/r/story/1"]
    bucket.delete("runs/r/parts/1")
    assert list(bucket.children("runs/r/")) == ["story"]
    assert (tmp_path / "disk" / "real" / "runs" / "r" / "story" / "1").read_bytes() == b"x"


def test_a_folder_replaced_by_a_link_during_a_call_is_not_followed(tmp_path: Path) -> None:
    bucket = FolderBucket(str(tmp_path / "workspace"))
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "object").write_bytes(b"private")
    folder, aside, link = (Path(bucket.root, name) for name in ("folder", "aside", "link"))
    bucket.put("folder/object", b"ours")
    bucket.put("folder/stays", b"ours")
    ours = os.open(folder, os.O_RDONLY)
    link.symlink_to(outside)
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            os.rename(folder, aside)
            os.rename(link, folder)
            os.rename(folder, link)
            os.rename(aside, folder)

    swapper = threading.Thread(target=swap)
    swapper.start()
    seen: set[bytes] = set()
    try:
        for _ in range(1500):
            try:
                seen.add(bucket.get("folder/object"))
                seen.update(b"%d" % entry.bytes for entry in bucket.list("folder/"))
            except OutlastError:
                pass
            bucket.delete("folder/object")
            with open("object", "wb", opener=lambda name, flags: os.open(name, flags, dir_fd=ours)) as file:
                file.write(b"ours")
    finally:
        done.set()
        swapper.join()
        os.close(ours)
    assert seen <= {b"ours", b"4"}
    assert [(path.name, path.read_bytes()) for path in outside.iterdir()] == [("object", b"private")]


def test_a_pipe_at_an_objects_key_does_not_block_readers(bucket: FolderBucket, tmp_path: Path) -> None:
    os.mkfifo(Path(bucket.root, "pipe"))
    for read in (bucket.get, bucket.head, lambda key: bucket.download(key, str(tmp_path / "copy"))):
        with pytest.raises(Missing):
            read("pipe")


def test_omitted_links_are_reported_with_escaped_names(tmp_path: Path) -> None:
    console = Console(tmp_path)
    workspace = tmp_path / "workspace"
    (workspace / "runs").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (workspace / "runs" / "moved-1").symlink_to(tmp_path / "elsewhere")
    (workspace / "runs" / "\x1b[31mred-1").symlink_to(tmp_path / "elsewhere")
    answer = console.run("ps", "--all", "--workspace", str(workspace))
    assert answer.returncode == 0
    assert f"`runs/moved-1` {SAYS}" in answer.stderr
    assert answer.stderr.count("runs/moved-1") == 1
    assert "red-1" in answer.stderr
    assert "\x1b" not in answer.stderr
