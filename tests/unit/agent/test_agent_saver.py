"""Checkpoints under attack: files that change, names that are none, links, stores that lie down in the middle."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import time
from pathlib import Path

import pytest
from tests.unit.agent.saving import RUN, Store, restored, write

from outlast.agent.checkpoint.checkpointer import Checkpointer, _pauses_s
from outlast.agent.checkpoint.copy import has_room
from outlast.agent.checkpoint.ready import take_snapshot, why_unsettled
from outlast.agent.retry import retry
from outlast.errors import Damaged, StoreUnreachable, WorkspaceError
from outlast.spec.spec import CheckpointSpec
from outlast.store.parts import parts_prefix


def test_a_store_that_does_not_answer_is_no_reason_to_go_back_to_an_older_checkpoint(
    saver: Checkpointer, store: Store, tmp_path: Path
) -> None:
    write(saver, "n", "1")
    assert saver.commit(take_snapshot(saver.folder))
    write(saver, "n", "2")
    assert saver.commit(take_snapshot(saver.folder))
    [new] = take_snapshot(saver.folder).files
    newest = saver.attempt.story.refresh().checkpoints[-1]
    parts = sorted(Path(store.root, "runs", RUN, "parts", "1").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    store.unreachable = parts[-1].name
    with pytest.raises(StoreUnreachable):
        restored(saver, tmp_path / "back")
    store.unreachable = ""
    assert (restored(saver, tmp_path / "back") / new).read_text() == "2"
    assert newest.id == "0001-00002"


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    saver: Checkpointer, store: Store, tmp_path: Path
) -> None:
    for text in "12":
        write(saver, "n", text)
        assert saver.commit(take_snapshot(saver.folder))
    manifest = Path(store.root, "runs", RUN, "checkpoints", "0001-00002", "manifest.json")
    manifest.write_bytes(manifest.read_bytes()[:40])
    assert (restored(saver, tmp_path / "back") / "n").read_text() == "1"


def test_a_file_that_changes_under_our_hands_never_spoils_a_committed_checkpoint(
    saver: Checkpointer, store: Store, tmp_path: Path
) -> None:
    write(saver, "weights", "committed")
    write(saver, "log", "a")
    assert saver.commit(take_snapshot(saver.folder))

    def change(name: str) -> None:
        store.before_write = lambda _key: write(saver, name, "half of the next")

    write(saver, "log", "b")
    change("log")
    assert not saver.commit(take_snapshot(saver.folder))
    write(saver, "log", "c")
    change("weights")
    assert saver.commit(take_snapshot(saver.folder))
    back = restored(saver, tmp_path / "back")
    assert [(back / name).read_text() for name in ("log", "weights")] == ["c", "committed"]
    # What was read is what was stored, under its own name: nothing in the workspace lies about itself.
    store.before_write = None
    for entry in store.list(parts_prefix(RUN)):
        assert hashlib.sha256(store.get(entry.key)).hexdigest() == entry.key.rsplit("/", 1)[-1]
    # What came to nothing goes with the next commit.
    assert saver.commit(take_snapshot(saver.folder))
    bodies = sorted(store.get(entry.key) for entry in store.list(parts_prefix(RUN)))
    assert bodies == [b"acommitted", b"c", b"half of the next"]


def test_a_manifest_whose_answer_was_lost_does_not_end_the_saving(
    saver: Checkpointer, store: Store, tmp_path: Path
) -> None:
    store.answer_lost = "manifest"
    write(saver, "n", "1")
    assert not saver.commit(take_snapshot(saver.folder))
    write(saver, "n", "2")
    assert saver.commit(take_snapshot(saver.folder))
    assert (restored(saver, tmp_path / "back") / "n").read_text() == "2"


def test_links_inside_of_a_checkpoint_come_back_as_links_and_those_that_lead_out_as_files(
    saver: Checkpointer, tmp_path: Path
) -> None:
    write(saver, "step-1/weights", "w")
    os.symlink("step-1", Path(saver.folder, "latest"))
    os.symlink(Path(saver.folder, "step-1", "weights"), Path(saver.folder, "best"))
    outside = tmp_path / "scratch"
    outside.mkdir()
    (outside / "optimizer").write_text("o")
    os.symlink(outside, Path(saver.folder, "scratch"))
    os.symlink(outside, outside / "itself")
    os.symlink("nowhere", Path(saver.folder, "dangling"))
    assert saver.commit(take_snapshot(saver.folder))
    back = restored(saver, tmp_path / "elsewhere" / "back")
    assert os.readlink(back / "latest") == "step-1"
    assert (back / "latest" / "weights").read_text() == "w"
    assert (back / "best").read_text() == "w"
    assert not (back / "scratch").is_symlink()
    assert (back / "scratch" / "optimizer").read_text() == "o"
    # A link that is set anew is a new checkpoint, though no file changed.
    os.unlink(Path(saver.folder, "latest"))
    assert saver.commit(take_snapshot(saver.folder))


def test_a_checkpoint_replaces_what_the_code_had_in_its_place_be_it_a_link(saver: Checkpointer, tmp_path: Path) -> None:
    write(saver, "n", "1")
    assert saver.commit(take_snapshot(saver.folder))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    os.symlink(elsewhere, tmp_path / "link")
    assert (restored(saver, tmp_path / "link") / "n").read_text() == "1"
    assert list(elsewhere.iterdir()) == []


def test_a_name_that_is_no_text_stops_neither_the_saver_nor_the_outputs(saver: Checkpointer, store: Store) -> None:
    Path(os.fsdecode(os.fsencode(saver.folder) + b"/bad\xff")).write_text("x")
    assert not saver.commit(take_snapshot(saver.folder))
    assert "bad" in saver.trouble
    Path(os.fsdecode(os.fsencode(saver.outputs) + b"/bad\xff")).write_text("x")
    assert saver.send_outputs() == 1
    assert [entry.key.rsplit("/", 1)[-1] for entry in store.list(f"runs/{RUN}/outputs/")] == ["bad\\xff"]
    shutil.rmtree(saver.folder)
    write(saver, "good", "x")
    assert saver.commit(take_snapshot(saver.folder))


def test_an_output_that_cannot_be_stored_keeps_none_of_the_others_back(saver: Checkpointer, store: Store) -> None:
    deep = Path(saver.outputs, *(["d" * 200] * 6))
    deep.mkdir(parents=True)
    (deep / "far").write_text("x")
    Path(saver.outputs, "near").write_text("x")
    assert saver.send_outputs() == 2
    assert len(saver.unsent) == 1
    assert [entry.key.rsplit("/", 1)[-1] for entry in store.list(f"runs/{RUN}/outputs/")] == ["near"]


def test_what_was_written_before_a_checkpoint_is_in_the_workspace_with_it(saver: Checkpointer, store: Store) -> None:
    Path(saver.outputs, "epoch-1.txt").write_text("x")
    write(saver, "epoch", "1")
    assert saver.commit(take_snapshot(saver.folder))
    assert store.get(f"runs/{RUN}/outputs/1/epoch-1.txt") == b"x"


def test_files_with_times_of_the_future_are_committed_all_the_same(saver: Checkpointer) -> None:
    write(saver, "n", "1")
    os.utime(Path(saver.folder, "n"), (time.time() + 3600, time.time() + 3600))
    assert why_unsettled(take_snapshot(saver.folder), now=time.time(), restless_s=0.0) == ""


def test_patience_takes_a_refusal_for_an_answer_only_if_it_is_not_stubborn() -> None:
    refused = iter([WorkspaceError("access denied")] * 2)

    def act() -> str:
        for problem in refused:
            raise problem
        return "done"

    with pytest.raises(WorkspaceError):
        retry(act, for_s=10.0, report=lambda _: None)
    assert retry(act, for_s=10.0, report=lambda _: None, stubborn=True) == "done"

    def damaged() -> None:
        raise Damaged("it is")

    with pytest.raises(Damaged):
        retry(damaged, for_s=10.0, report=lambda _: None, stubborn=True)


def test_only_a_store_that_is_away_is_waited_for_with_the_last_checkpoint(saver: Checkpointer) -> None:
    Path(os.fsdecode(os.fsencode(saver.folder) + b"/bad\xff")).write_text("x")
    began = time.monotonic()
    assert saver.commit_last("orderly", died_at=time.time(), within_s=60.0)
    assert time.monotonic() - began < 30.0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_never_left_out_of_a_checkpoint_in_silence(saver: Checkpointer) -> None:
    write(saver, "weights", "w")
    write(saver, "folder/rest", "r")
    os.chmod(Path(saver.folder, "folder"), 0)
    try:
        assert not saver.commit(take_snapshot(saver.folder))
        assert "denied" in saver.trouble
    finally:
        os.chmod(Path(saver.folder, "folder"), 0o700)
    assert saver.commit(take_snapshot(saver.folder))


def test_a_file_that_was_just_emptied_is_not_whole_until_it_settled(saver: Checkpointer) -> None:
    write(saver, "n", "")
    snapshot = take_snapshot(saver.folder)
    just_after, later = snapshot.changed_at + 0.1, snapshot.changed_at + 1.0
    assert "files change" in why_unsettled(snapshot, now=just_after, restless_s=0.0)
    assert why_unsettled(snapshot, now=later, restless_s=0.0) == ""


def test_a_file_that_was_emptied_to_be_written_anew_is_not_whole_however_restless_the_program(
    saver: Checkpointer,
) -> None:
    write(saver, "n", "")
    snapshot = take_snapshot(saver.folder)

    def is_ready(filled: set[str]) -> bool:
        now = snapshot.changed_at + 0.1
        return not why_unsettled(snapshot, now=now, restless_s=60.0, filled=filled)

    assert not is_ready({"n"})
    assert is_ready({"another"})


@pytest.mark.parametrize("name", ["weights", "step-000000001/weights"])
def test_a_program_that_saves_faster_than_the_store_takes_it_is_committed_all_the_same(
    saver: Checkpointer, store: Store, tmp_path: Path, name: str
) -> None:
    """By a copy, or by another name for what is never written to again."""
    write(saver, "step-000000001/checkpoint.json", "{}")
    write(saver, name, "0")
    saves = iter(range(1, 1000))

    def save(_key: str) -> None:
        number = next(saves)
        write(saver, f"step-{number + 1:09}/checkpoint.json", f"{number + 1}")
        if name == "weights":
            write(saver, name, f"{number}")

    store.before_write = save
    assert not saver.commit(take_snapshot(saver.folder))
    for _ in range(3):
        snapshot = take_snapshot(saver.folder)
        now = Path(saver.folder, name).read_text()
        assert saver.commit(snapshot)
        shutil.rmtree(tmp_path / "back", ignore_errors=True)
        back = restored(saver, tmp_path / "back")
        assert take_snapshot(str(back)).paths == snapshot.paths
        assert (back / name).read_text() == now
    assert not Path(saver.folder).with_name("still").exists()
    assert not Path(saver.folder).parent.with_name("still").exists()


def test_a_copy_is_not_made_where_the_program_needs_the_room(saver: Checkpointer) -> None:
    write(saver, "n", "")
    with open(Path(saver.folder, "n"), "r+b") as file:
        # It takes no room, and its copy would.
        file.truncate(shutil.disk_usage(saver.folder).free // 2)
    assert not has_room(take_snapshot(saver.folder), saver.folder)
    write(saver, "n", "small")
    assert has_room(take_snapshot(saver.folder), saver.folder)


def test_a_program_that_saves_as_regularly_as_it_is_looked_at_is_seen_between_its_saves() -> None:
    """Whatever the two begin with: for a quarter of the time, a save and the moment after it, nothing is taken."""
    for period_s in (0.08, 0.1, 0.104, 0.125, 0.2, 0.25):
        for begin in range(20):
            now_s = period_s * begin / 20
            between = 0
            for pause_s in itertools.islice(_pauses_s(), 20):
                now_s += pause_s + 0.004
                between += now_s % period_s > period_s / 4
            assert between >= 5


def judged(saver: Checkpointer) -> list[dict[str, float]]:
    return [checkpoint.metrics for checkpoint in saver.attempt.story.refresh().checkpoints]


def test_the_best_checkpoint_is_told_from_what_was_logged_up_to_its_step(saver: Checkpointer, tmp_path: Path) -> None:
    saver.rule = CheckpointSpec(keep=2, keep_best="min:loss")
    told: list[str] = []
    saver.report = told.append
    log = tmp_path / "metrics.jsonl"
    saver.metrics_file = str(log)
    rows = (
        '{"step": 1, "loss": 0.25}\n{"step": 2, "loss": 0.75}\n',
        '{"step": 2, "loss": NaN}\n',
        '{"step": 3, "accuracy": 1}\n{"step": 9, "loss": 0.001}\nno row\n[1]\n{"step": 3, "loss": "low"}\n',
        '{"step": 4, "loss": 0.5, "at": 1e9}\n{"step": 4, "accuracy": 0.5}\n{"step": 9, "lo',
    )
    for step, text in enumerate(rows, start=1):
        with log.open("a") as file:
            file.write(text)
        shutil.rmtree(saver.folder)
        write(saver, f"step-{step}.pt", str(step))
        assert saver.commit(take_snapshot(saver.folder))
    assert judged(saver) == [{"loss": 0.25}, {}, {}, {"loss": 0.5}]
    assert [line for line in told if "keep_best" in line] == [
        "keep_best: no number was logged as `loss` up to here; such checkpoints are not the best"
    ]
    there = saver.attempt.workspace.bucket.children(f"runs/{RUN}/checkpoints/")
    assert list(there) == ["0001-00001", "0001-00003", "0001-00004"]


def test_what_the_trainer_stored_with_a_checkpoint_counts_more_than_what_it_logged(
    saver: Checkpointer, tmp_path: Path
) -> None:
    saver.rule = CheckpointSpec(keep=2, keep_best="max:accuracy")
    saver.metrics_file = str(tmp_path / "metrics.jsonl")
    Path(saver.metrics_file).write_text('{"step": 1, "accuracy": 0.5}\n')
    for step, marker in enumerate(['{"metrics": {"accuracy": 0.75}}', '{"metrics": {"accuracy": NaN}}', "{"], start=1):
        write(saver, f"step-{step:09d}/checkpoint.json", marker)
        assert saver.commit(take_snapshot(saver.folder))
    assert judged(saver) == [{"accuracy": 0.75}, {}, {"accuracy": 0.5}]


def test_without_a_rule_for_the_best_nothing_is_read_and_nothing_told(saver: Checkpointer, tmp_path: Path) -> None:
    saver.metrics_file = str(tmp_path / "metrics.jsonl")
    Path(saver.metrics_file).write_text('{"step": 1, "loss": 0.5}\n')
    write(saver, "n", "1")
    assert saver.commit(take_snapshot(saver.folder))
    assert judged(saver) == [{}]
