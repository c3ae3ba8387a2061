"""Commits under difficult conditions: changing files, invalid names, links, stores that fail in the middle."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import time
from pathlib import Path

import pytest
from tests.support.agent import RUN, Store, restored, write

from outlast.agent.checkpoint.checkpointer import Checkpointer, _pauses_s
from outlast.agent.checkpoint.snapshot import take_snapshot
from outlast.agent.retry import retry
from outlast.errors import Damaged, StoreUnreachable, WorkspaceError
from outlast.runs.checkpoints import restore
from outlast.spec.spec import CheckpointSpec
from outlast.store.parts import parts_prefix


def test_an_unreachable_store_does_not_make_a_restore_fall_back_to_an_older_checkpoint(
    checkpointer: Checkpointer, store: Store, tmp_path: Path
) -> None:
    write(checkpointer, "n", "1")
    assert checkpointer.commit(take_snapshot(checkpointer.scanner.folder))
    write(checkpointer, "n", "2")
    assert checkpointer.commit(take_snapshot(checkpointer.scanner.folder))
    [new] = take_snapshot(checkpointer.scanner.folder).files
    newest = checkpointer.committer.attempt.story.refresh().checkpoints[-1]
    parts = sorted(Path(store.root, "runs", RUN, "parts", "1").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    store.unreachable = parts[-1].name
    with pytest.raises(StoreUnreachable):
        restored(checkpointer, tmp_path / "back")
    store.unreachable = ""
    assert (restored(checkpointer, tmp_path / "back") / new).read_text() == "2"
    assert newest.id == "0001-00002"


def test_a_restore_skips_a_damaged_checkpoint(checkpointer: Checkpointer, store: Store, tmp_path: Path) -> None:
    for text in "12":
        write(checkpointer, "n", text)
        assert checkpointer.commit(take_snapshot(checkpointer.scanner.folder))
    manifest = Path(store.root, "runs", RUN, "checkpoints", "0001-00002", "manifest.json")
    manifest.write_bytes(manifest.read_bytes()[:40])
    assert (restored(checkpointer, tmp_path / "back") / "n").read_text() == "1"


def test_a_file_that_changes_during_a_commit_never_damages_a_checkpoint(
    checkpointer: Checkpointer, store: Store, tmp_path: Path
) -> None:
    write(checkpointer, "weights", "committed")
    write(checkpointer, "log", "a")
    assert checkpointer.commit(take_snapshot(checkpointer.scanner.folder))

    def change(name: str) -> None:
        store.before_write = lambda _key: write(checkpointer, name, "half of the next")

    write(checkpointer, "log", "b")
    change("log")
    assert not checkpointer.commit(take_snapshot(checkpointer.scanner.folder))
    write(checkpointer, "log", "c")
    change("weights")
    assert checkpointer.commit(take_snapshot(checkpointer.scanner.folder))
    back = restored(checkpointer, tmp_path / "back")
    assert [(back / name).read_text() for name in ("log", "weights")] == ["c", "committed"]
    # Every body is stored under its own digest.
    store.before_write = None
    for entry in store.list(parts_prefix(RUN)):
        assert hashlib.sha256(store.get(entry.key)).hexdigest() == entry.key.rsplit("/", 1)[-1]
    # The next commit deletes the parts of the failed one.
    assert checkpointer.commit(take_snapshot(checkpointer.scanner.folder))
    bodies = sorted(store.get(entry.key) for entry in store.list(parts_prefix(RUN)))
    assert bodies == [b"acommitted", b"c", b"half of the next"]


def test_commits_continue_after_the_response_to_a_manifest_was_lost(
    checkpointer: Checkpointer, store: Store, tmp_path: Path
) -> None:
    store.response_lost = "manifest"
    write(checkpointer, "n", "1")
    assert not checkpointer.commit(take_snapshot(checkpointer.scanner.folder))
    write(checkpointer, "n", "2")
    assert checkpointer.commit(take_snapshot(checkpointer.scanner.folder))
    assert (restored(checkpointer, tmp_path / "back") / "n").read_text() == "2"


def test_links_inside_a_checkpoint_are_restored_as_links_and_links_to_the_outside_as_files(
    checkpointer: Checkpointer, tmp_path: Path
) -> None:
    write(checkpointer, "step-1/weights", "w")
    os.symlink("step-1", Path(checkpointer.scanner.folder, "latest"))
    os.symlink(Path(checkpointer.scanner.folder, "step-1", "weights"), Path(checkpointer.scanner.folder, "best"))
    outside = tmp_path / "scratch"
    outside.mkdir()
    (outside / "optimizer").write_text("o")
    os.symlink(outside, Path(checkpointer.scanner.folder, "scratch"))
    os.symlink(outside, outside / "itself")
    os.symlink("nowhere", Path(checkpointer.scanner.folder, "dangling"))
    assert checkpointer.commit(take_snapshot(checkpointer.scanner.folder))
    back = restored(checkpointer, tmp_path / "elsewhere" / "back")
    assert os.readlink(back / "latest") == "step-1"
    assert (back / "latest" / "weights").read_text() == "w"
    assert (back / "best").read_text() == "w"
    assert not (back / "scratch").is_symlink()
    assert (back / "scratch" / "optimizer").read_text() == "o"
    # A link that changed is a new checkpoint, although no file changed.
    os.unlink(Path(checkpointer.scanner.folder, "latest"))
    assert checkpointer.commit(take_snapshot(checkpointer.scanner.folder))


def test_a_restore_replaces_a_link_at_the_folder_and_keeps_its_target(
    checkpointer: Checkpointer, tmp_path: Path
) -> None:
    write(checkpointer, "n", "1")
    assert checkpointer.commit(take_snapshot(checkpointer.scanner.folder))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    os.symlink(elsewhere, tmp_path / "link")
    assert (restored(checkpointer, tmp_path / "link") / "n").read_text() == "1"
    assert list(elsewhere.iterdir()) == []


def test_a_name_that_is_not_utf8_prevents_neither_later_commits_nor_outputs(
    checkpointer: Checkpointer, store: Store
) -> None:
    Path(os.fsdecode(os.fsencode(checkpointer.scanner.folder) + b"/bad\xff")).write_text("x")
    assert not checkpointer.commit(take_snapshot(checkpointer.scanner.folder))
    assert "bad" in checkpointer.trouble
    Path(os.fsdecode(os.fsencode(checkpointer.outputs.folder) + b"/bad\xff")).write_text("x")
    assert checkpointer.outputs.send_all() == 1
    assert [entry.key.rsplit("/", 1)[-1] for entry in store.list(f"runs/{RUN}/outputs/")] == ["bad\\xff"]
    shutil.rmtree(checkpointer.scanner.folder)
    write(checkpointer, "good", "x")
    assert checkpointer.commit(take_snapshot(checkpointer.scanner.folder))


def test_an_output_that_cannot_be_stored_does_not_prevent_the_others(checkpointer: Checkpointer, store: Store) -> None:
    deep = Path(checkpointer.outputs.folder, *(["d" * 200] * 6))
    deep.mkdir(parents=True)
    (deep / "far").write_text("x")
    Path(checkpointer.outputs.folder, "near").write_text("x")
    assert checkpointer.outputs.send_all() == 2
    assert len(checkpointer.outputs.unsent) == 1
    assert [entry.key.rsplit("/", 1)[-1] for entry in store.list(f"runs/{RUN}/outputs/")] == ["near"]


def test_outputs_written_before_a_checkpoint_are_stored_with_it(checkpointer: Checkpointer, store: Store) -> None:
    Path(checkpointer.outputs.folder, "epoch-1.txt").write_text("x")
    write(checkpointer, "epoch", "1")
    assert checkpointer.commit(take_snapshot(checkpointer.scanner.folder))
    assert store.get(f"runs/{RUN}/outputs/1/epoch-1.txt") == b"x"


def test_a_refused_request_is_repeated_only_on_demand() -> None:
    refused = iter([WorkspaceError("access denied")] * 2)

    def act() -> str:
        for problem in refused:
            raise problem
        return "done"

    with pytest.raises(WorkspaceError):
        retry(act, for_s=10.0, report=lambda _: None)
    assert retry(act, for_s=10.0, report=lambda _: None, despite_refusals=True) == "done"

    def damaged() -> None:
        raise Damaged("the record is damaged")

    with pytest.raises(Damaged):
        retry(damaged, for_s=10.0, report=lambda _: None, despite_refusals=True)


def test_the_last_commit_waits_only_for_an_unreachable_store(checkpointer: Checkpointer) -> None:
    Path(os.fsdecode(os.fsencode(checkpointer.scanner.folder) + b"/bad\xff")).write_text("x")
    began = time.monotonic()
    assert checkpointer.commit_last("orderly", died_at=time.time(), within_s=60.0)
    assert time.monotonic() - began < 30.0


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_an_unreadable_folder_fails_the_commit(checkpointer: Checkpointer) -> None:
    write(checkpointer, "weights", "w")
    write(checkpointer, "folder/rest", "r")
    os.chmod(Path(checkpointer.scanner.folder, "folder"), 0)
    try:
        assert not checkpointer.commit(take_snapshot(checkpointer.scanner.folder))
        assert "denied" in checkpointer.trouble
    finally:
        os.chmod(Path(checkpointer.scanner.folder, "folder"), 0o700)
    assert checkpointer.commit(take_snapshot(checkpointer.scanner.folder))


@pytest.mark.parametrize("name", ["weights", "step-000000001/weights"])
def test_a_program_that_saves_faster_than_the_store_accepts_is_committed(
    checkpointer: Checkpointer, store: Store, tmp_path: Path, name: str
) -> None:
    """From a copy, or from hard links to files that are never written to again."""
    write(checkpointer, "step-000000001/checkpoint.json", "{}")
    write(checkpointer, name, "0")
    saves = iter(range(1, 1000))

    def save(_key: str) -> None:
        number = next(saves)
        write(checkpointer, f"step-{number + 1:09}/checkpoint.json", f"{number + 1}")
        if name == "weights":
            write(checkpointer, name, f"{number}")

    store.before_write = save
    assert not checkpointer.commit(take_snapshot(checkpointer.scanner.folder))
    for _ in range(3):
        snapshot = take_snapshot(checkpointer.scanner.folder)
        now = Path(checkpointer.scanner.folder, name).read_text()
        assert checkpointer.commit(snapshot)
        shutil.rmtree(tmp_path / "back", ignore_errors=True)
        back = restored(checkpointer, tmp_path / "back")
        assert take_snapshot(str(back)).paths == snapshot.paths
        assert (back / name).read_text() == now
    assert not Path(checkpointer.scanner.folder).with_name("checkpoint-copy").exists()
    assert not Path(checkpointer.scanner.folder).parent.with_name("checkpoint-copy").exists()


def test_a_program_that_saves_as_regularly_as_it_is_scanned_is_scanned_between_its_saves() -> None:
    """A save and the moment after it take a quarter of the time; nothing is committed then."""
    for period_s in (0.08, 0.1, 0.104, 0.125, 0.2, 0.25):
        for begin in range(20):
            now_s = period_s * begin / 20
            between = 0
            for pause_s in itertools.islice(_pauses_s(), 20):
                now_s += pause_s + 0.004
                between += now_s % period_s > period_s / 4
            assert between >= 5


def metrics(checkpointer: Checkpointer) -> list[dict[str, float]]:
    return [checkpoint.metrics for checkpoint in checkpointer.committer.attempt.story.refresh().checkpoints]


def test_the_metric_of_a_checkpoint_is_the_value_logged_up_to_its_step(
    checkpointer: Checkpointer, tmp_path: Path
) -> None:
    checkpointer.committer.rule = CheckpointSpec(keep=2, keep_best="min:loss")
    reported: list[str] = []
    checkpointer.committer.report = reported.append
    log = tmp_path / "metrics.jsonl"
    checkpointer.committer.metrics_file = str(log)
    rows = (
        '{"step": 1, "loss": 0.25}\n{"step": 2, "loss": 0.75}\n',
        '{"step": 2, "loss": NaN}\n',
        '{"step": 3, "accuracy": 1}\n{"step": 9, "loss": 0.001}\nno row\n[1]\n{"step": 3, "loss": "low"}\n',
        '{"step": 4, "loss": 0.5, "at": 1e9}\n{"step": 4, "accuracy": 0.5}\n{"step": 9, "lo',
    )
    for step, text in enumerate(rows, start=1):
        with log.open("a") as file:
            file.write(text)
        shutil.rmtree(checkpointer.scanner.folder)
        write(checkpointer, f"step-{step}.pt", str(step))
        assert checkpointer.commit(take_snapshot(checkpointer.scanner.folder))
    assert metrics(checkpointer) == [{"loss": 0.25}, {}, {}, {"loss": 0.5}]
    assert [line for line in reported if "keep_best" in line] == [
        "keep_best: `loss` has no logged value up to this step; the checkpoint cannot be the best"
    ]
    there = checkpointer.committer.attempt.workspace.bucket.children(f"runs/{RUN}/checkpoints/")
    assert list(there) == ["0001-00001", "0001-00003", "0001-00004"]


def test_the_metric_stored_by_the_trainer_takes_precedence_over_the_log(
    checkpointer: Checkpointer, tmp_path: Path
) -> None:
    checkpointer.committer.rule = CheckpointSpec(keep=2, keep_best="max:accuracy")
    checkpointer.committer.metrics_file = str(tmp_path / "metrics.jsonl")
    Path(checkpointer.committer.metrics_file).write_text('{"step": 1, "accuracy": 0.5}\n')
    for step, marker in enumerate(['{"metrics": {"accuracy": 0.75}}', '{"metrics": {"accuracy": NaN}}', "{"], start=1):
        write(checkpointer, f"step-{step:09d}/checkpoint.json", marker)
        assert checkpointer.commit(take_snapshot(checkpointer.scanner.folder))
    assert metrics(checkpointer) == [{"accuracy": 0.75}, {}, {"accuracy": 0.5}]


def test_without_keep_best_no_metric_is_read(checkpointer: Checkpointer, tmp_path: Path) -> None:
    checkpointer.committer.metrics_file = str(tmp_path / "metrics.jsonl")
    Path(checkpointer.committer.metrics_file).write_text('{"step": 1, "loss": 0.5}\n')
    write(checkpointer, "n", "1")
    assert checkpointer.commit(take_snapshot(checkpointer.scanner.folder))
    assert metrics(checkpointer) == [{}]


def save_as_trainer(checkpointer: Checkpointer, step: int, body: bytes, *, linked_to: int = 0) -> Path:
    """Write a checkpoint of the trainer library with one large file, or with a link to that of an earlier one."""
    folder = Path(checkpointer.scanner.folder)
    large = folder / f"step-{step:09d}" / "rank-0" / "buffers-00000.bin"
    large.parent.mkdir(parents=True)
    if linked_to:
        os.link(folder / f"step-{linked_to:09d}" / "rank-0" / large.name, large)
    else:
        large.write_bytes(body)
    (folder / f"step-{step:09d}" / "checkpoint.json").write_text(str(step))
    return large


@pytest.mark.parametrize("again", [False, True], ids=["the same attempt", "after a restore"])
def test_a_linked_piece_of_a_trainers_checkpoint_is_not_read_again(
    checkpointer: Checkpointer, store: Store, tmp_path: Path, again: bool
) -> None:
    body = os.urandom(9 << 20)
    save_as_trainer(checkpointer, 1, body)
    assert checkpointer.commit(take_snapshot(checkpointer.scanner.folder))
    if again:
        shutil.rmtree(checkpointer.scanner.folder)
        states = reversed(checkpointer.committer.attempt.story.refresh().checkpoints)
        manifest, _ = restore(store, RUN, list(states), checkpointer.scanner.folder)
        assert manifest is not None
        checkpointer.restored(manifest)
    large = save_as_trainer(checkpointer, 2, b"", linked_to=1)
    # Only a read could see these bytes: size and times stay.
    before = large.stat()
    large.write_bytes(bytes(len(body)))
    os.utime(large, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert checkpointer.commit(take_snapshot(checkpointer.scanner.folder))
    back = restored(checkpointer, tmp_path / "back")
    assert (back / "step-000000002" / "rank-0" / "buffers-00000.bin").read_bytes() == body


def test_other_files_are_read_in_every_commit_whatever_their_times(checkpointer: Checkpointer, tmp_path: Path) -> None:
    large = Path(checkpointer.scanner.folder, "model.bin")
    large.parent.mkdir(parents=True, exist_ok=True)
    large.write_bytes(bytes(9 << 20))
    assert checkpointer.commit(take_snapshot(checkpointer.scanner.folder))
    before = large.stat()
    large.write_bytes(b"x" * (9 << 20))
    os.utime(large, ns=(before.st_atime_ns, before.st_mtime_ns))
    write(checkpointer, "n", "2")
    assert checkpointer.commit(take_snapshot(checkpointer.scanner.folder))
    assert (restored(checkpointer, tmp_path / "back") / "model.bin").read_bytes() == b"x" * (9 << 20)
