"""`outlast.training()` on a laptop: resume, save, stop, done, and failures in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.errors import UsageError
from outlast.trainer import files, state
from outlast.trainer.background import SaveFailed
from outlast.trainer.environment import detect_environment
from outlast.trainer.training import Training, training
from tests.support.waiting import eventually


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.startswith("OUTLAST_") or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)
    return tmp_path


@pytest.fixture
def made(folder: Path) -> Iterator[list[Training]]:
    """Trainings to close at the end; the handler of SIGTERM is restored."""
    before = signal.getsignal(signal.SIGTERM)
    all_made: list[Training] = []
    yield all_made
    for one in all_made:
        one.close()
    signal.signal(signal.SIGTERM, before)


def new(made: list[Training], folder: Path, **options: Any) -> Training:
    made.append(training(folder=str(folder), **options))
    return made[-1]


def test_a_fresh_training_restores_nothing(made: list[Training], folder: Path) -> None:
    assert new(made, folder).restore() is None


def test_a_saved_state_is_restored(made: list[Training], folder: Path) -> None:
    value = {"step": 7, "big": b"x" * 100_000, "nested": [1, {"a": (2.5, None)}], "view": bytearray(b"y" * 50_000)}
    run = new(made, folder)
    run.save(7, value, wait=True)
    assert new(made, folder).restore() == value


def test_the_state_may_change_while_it_is_being_written(made: list[Training], folder: Path) -> None:
    run = new(made, folder)
    big = bytearray(b"a" * 30_000_000)
    run.save(1, {"big": big})
    big[:] = b"b" * 30_000_000
    run.save(2, {"big": big}, wait=True)
    first, second = files.found_in(run.environment.checkpoints)[::-1]
    assert bytes(files.load(first, rank=0)["big"][:3]) == b"aaa"
    assert bytes(files.load(second, rank=0)["big"][:3]) == b"bbb"


def test_only_the_newest_checkpoints_stay(made: list[Training], folder: Path) -> None:
    run = new(made, folder, keep=2)
    for step in range(5):
        run.save(step, {"step": step}, wait=True)
    assert [found.step for found in files.found_in(run.environment.checkpoints)] == [4, 3]


@pytest.mark.parametrize("damage", ["truncate", "flip", "no marker", "invalid marker"])
def test_a_damaged_checkpoint_is_reported_and_skipped(
    made: list[Training], folder: Path, damage: str, capfd: pytest.CaptureFixture[str]
) -> None:
    run = new(made, folder)
    for step in (1, 2):
        run.save(step, {"step": step, "big": bytes(10_000)}, wait=True)
    newest = Path(files.found_in(run.environment.checkpoints)[0].path)
    if damage == "truncate":
        (newest / "rank-0" / "buffers-00000.bin").write_bytes(b"")
        (newest / "rank-0" / "state.bin").write_bytes(b"")
    elif damage == "flip":
        body = bytearray((newest / "rank-0" / "state.bin").read_bytes())
        body[len(body) // 2] ^= 1
        (newest / "rank-0" / "state.bin").write_bytes(body)
    elif damage == "no marker":
        (newest / "checkpoint.json").unlink()
    else:
        (newest / "checkpoint.json").write_text('{"ranks": "many"}')
    assert new(made, folder).restore()["step"] == 1
    assert "trying the previous one" in capfd.readouterr().err


def test_a_state_that_cannot_be_saved_raises_and_the_older_one_stays_valid(made: list[Training], folder: Path) -> None:
    run = new(made, folder)
    run.save(1, {"fine": True}, wait=True)
    with pytest.raises(state.UnsavableState, match=r'^state\["file"\] cannot be saved without pickle: _io'):
        run.save(2, {"file": open(os.devnull)})  # noqa: SIM115
    with pytest.raises(state.UnsavableState, match="cannot pickle"):
        new(made, folder, pickle=True).save(2, {"file": open(os.devnull)})  # noqa: SIM115
    assert new(made, folder).restore() == {"fine": True}


class Model:
    """An object that only pickle can save; loading it creates a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def test_a_pickle_is_neither_written_nor_loaded_unless_the_program_uses_pickle(
    made: list[Training], folder: Path
) -> None:
    mark, run = folder / "code ran", new(made, folder)
    run.save(1, {"step": 1}, wait=True)
    with pytest.raises(state.UnsavableState) as refused:
        run.save(2, {"model": Model(mark)})
    assert "pickle=True" in refused.value.hint
    new(made, folder, pickle=True).save(2, {"model": Model(mark)}, wait=True)
    with pytest.raises(state.PickleRefused, match=r"step-000000002/rank-0/state\.pickle is a pickle") as raised:
        new(made, folder).restore()
    assert "pickle=True" in raised.value.hint
    assert not mark.exists()
    assert new(made, folder, pickle=True).restore() == {"model": None}
    assert mark.exists()


def test_a_pickle_under_the_name_of_plain_data_is_damaged_and_never_loaded(
    made: list[Training], folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mark = folder / "code ran"
    for step, value in ((1, "fine"), (2, Model(mark))):
        new(made, folder, pickle=True).save(step, value, wait=True)
    newest = Path(files.found_in(made[0].environment.checkpoints)[0].path)
    (newest / "rank-0" / "state.pickle").rename(newest / "rank-0" / "state.bin")
    marker = newest / files.MARKER
    marker.write_text(marker.read_text().replace("state.pickle", "state.bin"))
    assert new(made, folder, pickle=True).restore() == "fine"
    assert not mark.exists()
    assert "cannot be decoded" in capfd.readouterr().err


def test_a_program_with_pickle_resumes_from_plain_data(made: list[Training], folder: Path) -> None:
    new(made, folder).save(1, {"step": 1}, wait=True)
    assert new(made, folder, pickle=True).restore() == {"step": 1}


def test_a_save_that_fails_in_the_background_raises_at_the_next_call(made: list[Training], folder: Path) -> None:
    run = new(made, folder)
    run.save(1, {"a": 1}, wait=True)
    # A file at the path of the saver's folder.
    Path(run.environment.checkpoints, "step-000000002.tmp").write_text("in the way")
    run.save(2, {"a": 2})
    with pytest.raises(SaveFailed, match=r"not saved: File exists: .*step-000000002\.tmp"):
        run.save(3, {"a": 3}, wait=True)
    assert new(made, folder).restore() == {"a": 1}


def test_a_killed_saver_is_replaced(made: list[Training], folder: Path) -> None:
    run = new(made, folder)
    run.save(1, {"a": 1}, wait=True)
    process = run._saver._process
    assert process is not None
    process.kill()
    process.wait()
    run.save(2, {"a": 2}, wait=True)
    assert new(made, folder).restore() == {"a": 2}


def test_steps_end_early_after_a_save_on_sigterm(made: list[Training], folder: Path) -> None:
    run = new(made, folder, every="1h")
    seen = []
    current = {"step": 0}
    for step in run.steps(0, total=100):
        seen.append(step)
        current["step"] = step + 1
        run.save_if_due(step, lambda: dict(current))
        if step == 5:
            os.kill(os.getpid(), signal.SIGTERM)
    assert seen == list(range(6))
    assert run.stopped_early
    with pytest.raises(SystemExit):
        run.done()
    assert not os.path.exists(run.environment.done_file)
    again = new(made, folder)
    assert again.restore() == {"step": 6}
    assert list(again.steps(6, total=8)) == [6, 7]
    again.done(metrics={"loss": 0.5})
    assert json.loads(Path(again.environment.done_file).read_text()) == {"metrics": {"loss": 0.5}}


def test_every_steps_sets_the_interval(made: list[Training], folder: Path) -> None:
    run = new(made, folder, every_steps=3)
    saved = [step for step in run.steps(0, total=10) if run.save_if_due(step, lambda s=step: s) or run._saver.wait()]
    assert saved == [2, 5, 8]


def test_the_interval_follows_from_the_stall_and_the_mean_life(made: list[Training], folder: Path) -> None:
    run = new(made, folder)
    run._stall_s = 0.5
    assert run.interval_s == pytest.approx(84.85, abs=0.01)
    assert new(made, folder, every="5m").interval_s == 300
    with pytest.raises(UsageError, match="parsecs"):
        training(every="5 parsecs", folder=str(folder))


def test_metrics_are_lines(made: list[Training], folder: Path) -> None:
    run = new(made, folder)
    run.log(1, loss=0.5, accuracy=1)
    run.log(2, loss=0.25)
    lines = [json.loads(line) for line in Path(run.environment.metrics_file).read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in lines] == [(1, 0.5), (2, 0.25)]


def test_files_that_the_users_code_writes_are_restored(made: list[Training], folder: Path) -> None:
    run = new(made, folder)
    run.save(3, into=lambda where: (Path(where) / "model.bin").write_bytes(b"weights"))
    assert (Path(new(made, folder).files) / "model.bin").read_bytes() == b"weights"


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete"])
def test_damaged_files_are_reported_and_skipped(
    made: list[Training], folder: Path, damage: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def write(where: str, text: str) -> None:
        Path(where, "deep").mkdir()
        Path(where, "deep", "model.bin").write_text(text)

    run = new(made, folder)
    run.save(1, into=lambda where: write(where, "old weights"))
    run.save(2, into=lambda where: write(where, "new weights"))
    damaged = Path(run.files, "deep", "model.bin")
    assert damaged.read_text() == "new weights"
    if damage == "delete":
        damaged.unlink()
    else:
        damaged.write_text("NEW weights" if damage == "flip" else "new")
    again = new(made, folder)
    assert Path(again.files, "deep", "model.bin").read_text() == "old weights"
    errors = capfd.readouterr().err
    assert f"{damaged}: " in errors
    assert "trying the previous one" in errors
    again.restore()
    assert again.resumed
    assert again._saved_step == 1


def test_metrics_are_stored_with_a_checkpoint(made: list[Training], folder: Path) -> None:
    run = new(made, folder)
    run.save(1, {"a": 1}, wait=True, metrics={"loss": 0.5, "accuracy": float("nan")})
    run.save(2, into=lambda where: Path(where, "m").write_text("x"), metrics={"loss": 1})
    second, first = (files.read_marker(found.path)["metrics"] for found in files.found_in(run.environment.checkpoints))
    assert (first["loss"], second) == (0.5, {"loss": 1.0})


@pytest.mark.parametrize("size", [0, 1, (16 << 20) - 1, 16 << 20, (40 << 20) + 4097])
def test_states_of_any_size_are_restored_and_every_piece_is_verified(
    made: list[Training], folder: Path, size: int
) -> None:
    run = new(made, folder)
    big = bytearray(os.urandom(1 << 20) * (size >> 20) + os.urandom(size & 0xFFFFF))
    run.save(1, {"big": bytearray(5)}, wait=True)
    # The large one is stored beside the stream, the small one in it.
    run.save(2, {"big": big, "rest": b"z" * 4095}, wait=True)
    back = new(made, folder).restore()
    assert (back["big"], back["rest"]) == (big, b"z" * 4095)
    newest = Path(files.found_in(run.environment.checkpoints)[0].path, "rank-0")
    paths = sorted(newest.glob("buffers-*.bin")) if size >= 4096 else [newest / "state.bin"]
    assert sum(path.stat().st_size for path in paths) >= size
    for path, at in ((paths[0], 0), (paths[-1], paths[-1].stat().st_size // 2), (paths[-1], -1)):
        with path.open("r+b") as file:
            at = at % path.stat().st_size
            file.seek(at)
            before = file.read(1)
            file.seek(at)
            file.write(bytes([before[0] ^ 1]))
            file.flush()
            assert new(made, folder).restore() == {"big": bytearray(5)}
            file.seek(at)
            file.write(before)


def _known(*streams: str, **changed: Any) -> dict[str, Any]:
    """Return the entries of a rank's files in a marker, each with these changes."""
    return {name: {"bytes": 0, "piece": 4096, "sha256": [], **changed} for name in (*streams, "buffers-00000.bin")}


@pytest.mark.parametrize(
    "fields",
    [
        {"parts": []},
        {"parts": {"0": {"buffers": []}}},
        {"parts": {"0": {"files": {}, "buffers": []}}},
        {"parts": {"0": {"files": {"state.bin": 7, "buffers-00000.bin": {}}, "buffers": ["x"]}}},
        {"parts": {"0": {"files": {"state.bin": {"bytes": 1, "piece": 0, "sha256": []}}, "buffers": []}}},
        {"parts": {"0": {"files": _known("state.bin", "state.pickle"), "buffers": []}}},
        {"parts": {"0": {"files": _known("state.bin", piece=4096.0), "buffers": []}}},
        {"parts": {"0": {"files": _known("state.bin", sha256={}), "buffers": []}}},
        {"parts": {"0": {"files": _known("state.bin"), "buffers": [-64, 64]}}},
        {"parts": {"0": {"files": {"../../step-000000001/checkpoint.json": {}}, "buffers": []}}},
    ],
)
def test_a_checkpoint_with_an_inconsistent_marker_is_skipped(
    made: list[Training], folder: Path, fields: dict[str, Any]
) -> None:
    run = new(made, folder)
    for step in (1, 2):
        run.save(step, {"step": step}, wait=True)
    marker = Path(files.found_in(run.environment.checkpoints)[0].path, files.MARKER)
    marker.write_text(json.dumps({"step": 2, "ranks": 1, **fields}))
    assert new(made, folder).restore() == {"step": 1}
    with pytest.raises(files.BadCheckpoint):
        files.check(files.found_in(run.environment.checkpoints)[0])


def test_several_ranks_commit_when_all_have_saved(folder: Path, made: list[Training]) -> None:
    runs = []
    for rank in range(3):
        environment = detect_environment({"RANK": str(rank), "WORLD_SIZE": "3"}, folder=str(folder))
        run = Training(environment, every_s=0, every_steps=0, keep=2, replicated=False)
        made.append(run)
        runs.append(run)
    runs[0].save(4, {"rank": 0})
    runs[1].save(4, {"rank": 1}, wait=True)
    assert files.found_in(runs[0].environment.checkpoints) == []
    runs[2].save(4, {"rank": 2}, wait=True)
    eventually(lambda: files.found_in(runs[0].environment.checkpoints), what="the commit of all ranks")
    assert [run.restore() for run in runs] == [{"rank": rank} for rank in range(3)]


def test_all_ranks_stop_after_the_same_step(folder: Path, made: list[Training]) -> None:
    iterators = []
    for rank in range(3):
        environment = detect_environment({"RANK": str(rank), "WORLD_SIZE": "3"}, folder=str(folder))
        run = Training(environment, every_s=0, every_steps=0, keep=2, replicated=True)
        made.append(run)
        iterators.append(run.steps(0, total=50))
    taken: list[list[int]] = [[], [], []]
    for turn in range(50):
        if turn == 4:
            made[0].request_stop()  # the signal reaches one rank first
        for rank in (1, 2, 0):
            step = next(iterators[rank], None)
            if step is not None:
                taken[rank].append(step)
    assert taken[0] == taken[1] == taken[2]
    assert len(taken[0]) < 10


def test_all_ranks_save_after_the_same_step_despite_different_clocks(folder: Path, made: list[Training]) -> None:
    for rank in range(3):
        environment = detect_environment({"RANK": str(rank), "WORLD_SIZE": "3"}, folder=str(folder))
        # By the clocks of the other ranks, a save is due at once, or never.
        made.append(Training(environment, every_s=(1e-9, 1e-9, 1e9)[rank], every_steps=0, keep=2, replicated=False))
    saved: list[list[int]] = [[], [], []]
    for step in range(9):
        for rank in (1, 2, 0):
            if made[rank].save_if_due(step, lambda rank=rank: {"rank": rank}):  # type: ignore[misc]
                saved[rank].append(step)
    assert saved[0] == saved[1] == saved[2]
    assert saved[0]
    made[0].close()
    assert files.found_in(made[0].environment.checkpoints)[0].step == saved[0][-1] + 1


def test_importing_outlast_loads_no_dependencies() -> None:
    script = "import sys, outlast; print([m for m in sys.modules if m.split('.')[0] in ('msgspec','click','obstore')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_trainer_loads_no_dependencies() -> None:
    script = (
        "import sys, outlast, tempfile; r = outlast.training(folder=tempfile.mkdtemp());"
        "print([m for m in sys.modules if m in ('click', 'obstore', 'msgspec')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
