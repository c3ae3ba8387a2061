"""The memory of the trainer library: the copy of the state, and restores into a template."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast.errors import UsageError
from outlast.trainer.arena import Arena, available_bytes
from outlast.trainer.background import SaveFailed
from outlast.trainer.state import dump, size_of
from outlast.trainer.training import Training
from tests.support.waiting import eventually

numpy = pytest.importorskip("numpy")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Training]:
    made = outlast.training(folder=str(tmp_path))
    yield made
    made.close()


def state(value: float, *, rows: int = 3) -> dict[str, Any]:
    return {"step": int(value), "layers": [numpy.full((rows, 2), value), {"bias": numpy.full(5, value)}]}


def test_the_memory_for_the_first_save_is_allocated_before(run: Training) -> None:
    large = {"w": numpy.zeros(40 << 20, dtype=numpy.uint8)}
    assert run._saver._arena is None
    run.save_if_due(0, lambda: large)
    arena = run._saver._arena
    assert arena is not None
    assert arena.size >= size_of(large) == 40 << 20
    run.save(1, large, wait=True)
    assert run._saver._arena is arena, "the save uses it"
    assert run.restore()["w"].nbytes == 40 << 20


def test_a_small_state_needs_no_preparation(run: Training) -> None:
    run.save_if_due(0, lambda: state(1))
    assert run._saver._arena is None


def test_memory_that_others_need_is_released_after_a_save(run: Training) -> None:
    # A sparse file that is larger than the memory: as much is not free.
    run._saver._arena = Arena(available_bytes() * 2)
    run.save(1, state(1), wait=True)
    assert run._saver._arena is None
    assert run._saver._process is None
    run.save(2, state(2), wait=True)
    assert run._saver._arena is not None
    assert run.restore()["step"] == 2


def test_the_free_memory_is_that_of_the_narrowest_limit(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (groups / "job" / "step").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal:       16000000 kB\nMemAvailable:    8000000 kB\n")
    assert available_bytes(str(proc), str(groups)) == 8_000_000 << 10
    (proc / "self" / "cgroup").write_text("0::/job/step\n")
    (groups / "job" / "step" / "memory.max").write_text("max\n")
    (groups / "job" / "memory.max").write_text("5000\n")
    (groups / "job" / "memory.current").write_text("4000\n")
    (groups / "job" / "memory.stat").write_text("anon 3000\ninactive_file 500\n")
    assert available_bytes(str(proc), str(groups)) == 1500


def test_a_restore_into_a_template_fills_its_arrays(run: Training) -> None:
    run.save(7, {**state(7), "extra": 1}, wait=True)
    template = state(0)
    layer, bias = template["layers"][0], template["layers"][1]["bias"]
    assert run.restore(into=template) is template
    assert template["step"] == 7
    assert template["layers"][0] is layer
    assert layer.tolist() == [[7.0, 7.0]] * 3
    assert bias.tolist() == [7.0] * 5
    assert "extra" not in template


def test_a_template_that_does_not_fit_is_refused_and_unchanged(run: Training) -> None:
    run.save(7, state(7), wait=True)
    template = {**state(0, rows=4), "head": numpy.zeros(2)}
    with pytest.raises(UsageError, match=r"state\['layers'\]\[0\] is \(4, 2\) here, and \(3, 2\) in the checkpoint"):
        run.restore(into=template)
    assert template["step"] == 0


def test_a_partial_restore_keeps_what_does_not_fit(run: Training, capfd: pytest.CaptureFixture[str]) -> None:
    run.save(7, state(7), wait=True)
    template = {**state(0, rows=4), "head": numpy.zeros(2)}
    run.restore(into=template, partial=True)
    assert template["step"] == 7
    assert template["layers"][0].tolist() == [[0.0, 0.0]] * 4
    assert template["layers"][1]["bias"].tolist() == [7.0] * 5
    assert "not restored: state['head'] is missing in the checkpoint" in capfd.readouterr().err


def test_a_damaged_checkpoint_does_not_reach_the_template(run: Training) -> None:
    run.save(7, {"w": numpy.full(100_000, 7.0)}, wait=True)
    run.save(8, {"w": numpy.full(100_000, 8.0)}, wait=True)
    file = Path(run.environment.checkpoints) / "step-000000008" / "rank-0" / "buffers-00000.bin"
    content = bytearray(file.read_bytes())
    content[70_000] ^= 1
    file.write_bytes(content)
    template = {"w": numpy.zeros(100_000)}
    run.restore(into=template)
    assert set(template["w"]) == {7.0}


def _pieces(run: Training, step: int) -> list[Path]:
    return sorted(Path(run.environment.checkpoints, f"step-{step:09d}", "rank-0").glob("buffers-*.bin"))


def _inodes(run: Training, step: int) -> list[int]:
    return [path.stat().st_ino for path in _pieces(run, step)]


def large(rng: Any) -> dict[str, Any]:
    """Return a state of three and a half pieces."""
    return {
        "w": rng.integers(0, 255, 50 << 20, dtype=numpy.uint8),
        "v": rng.integers(0, 255, 6 << 20, dtype=numpy.uint8),
    }


def test_a_save_writes_only_the_pieces_that_changed(run: Training) -> None:
    current = large(numpy.random.default_rng(1))
    run.save(1, current, wait=True)
    current["w"][(20 << 20) + 5] ^= 1
    run.save(2, current, wait=True)
    first, second = _inodes(run, 1), _inodes(run, 2)
    assert [old == new for old, new in zip(first, second, strict=True)] == [True, False, True, True]
    back = run.restore()
    assert all((back[name] == current[name]).all() for name in current)
    current["v"][-1] ^= 1
    run.save(3, current, wait=True)
    assert [a == b for a, b in zip(second, _inodes(run, 3), strict=True)] == [True, True, True, False]
    assert (run.restore()["v"] == current["v"]).all()


@pytest.mark.parametrize("how", ["the saver is killed", "the last save failed", "the checkpoint is deleted"])
def test_after_a_problem_everything_is_written(run: Training, how: str) -> None:
    current = large(numpy.random.default_rng(1))
    run.save(1, current, wait=True)
    if how == "the saver is killed":
        assert run._saver._process is not None
        run._saver._process.kill()
        run._saver._process.wait()
    elif how == "the last save failed":
        obstacle = Path(run.environment.checkpoints, "step-000000002.tmp")
        obstacle.write_text("in the way")
        current["w"][5] ^= 1
        with pytest.raises(SaveFailed):
            run.save(2, current, wait=True)
        obstacle.unlink()
    else:
        shutil.rmtree(Path(run.environment.checkpoints, "step-000000001"))
    run.save(3, current, wait=True)
    assert {path.stat().st_nlink for path in _pieces(run, 3)} == {1}
    back = run.restore()
    assert all((back[name] == current[name]).all() for name in current)


def test_a_copy_that_ends_in_the_middle_does_not_hide_changes(run: Training) -> None:
    current = large(numpy.random.default_rng(1))
    run.save(1, current, wait=True)
    current["w"][5] ^= 1
    # The second buffer cannot be copied: the memory then holds parts of two states.
    stream, body, buffers = dump(current, pickle=False)

    def fail() -> memoryview:
        raise KeyboardInterrupt

    buffers[1].view = fail
    with pytest.raises(KeyboardInterrupt):
        run._saver.save(2, stream, body, buffers, metrics={})
    run.save(2, current, wait=True)
    assert (run.restore()["w"] == current["w"]).all()


def test_remains_of_an_interrupted_save_do_not_reach_older_checkpoints(run: Training) -> None:
    current = large(numpy.random.default_rng(1))
    run.save(1, current, wait=True)
    # A process that was killed had linked a piece already.
    staged = Path(run.environment.checkpoints, "step-000000002.tmp", "rank-0")
    staged.mkdir(parents=True)
    (staged / "buffers-00000.bin").hardlink_to(_pieces(run, 1)[0])
    current["w"][5] ^= 1
    run.save(2, current, wait=True)
    shutil.rmtree(Path(run.environment.checkpoints, "step-000000002"))
    current["w"][5] ^= 1
    assert (run.restore()["w"] == current["w"]).all()


def test_a_restore_of_several_pieces_into_a_template(run: Training) -> None:
    current = large(numpy.random.default_rng(1))
    run.save(1, current, wait=True)
    template = {name: numpy.zeros_like(array) for name, array in current.items()}
    run.restore(into=template)
    assert all((template[name] == current[name]).all() for name in current)
    with _pieces(run, 1)[2].open("r+b") as file:
        file.write(b"damaged")
    template = {name: numpy.zeros_like(array) for name, array in current.items()}
    assert run.restore(into=template) is None
    assert not template["w"].any()


def test_values_that_must_be_copied_first_are_copied_one_at_a_time(run: Training) -> None:
    tracemalloc = pytest.importorskip("tracemalloc")
    # NumPy reports its memory: ten arrays of 8 MB that are not dense.
    whole = numpy.zeros((2000, 1000))
    current = {str(n): whole[::2, :] for n in range(10)}
    run.save(1, current, wait=True)
    tracemalloc.start()
    try:
        run.save(2, current)
        assert tracemalloc.get_traced_memory()[1] < 3 * 8_000_000
    finally:
        tracemalloc.stop()


def test_the_memory_does_not_outlive_the_process(tmp_path: Path) -> None:
    code = (
        "import os, signal, outlast\n"
        f"run = outlast.training(folder={str(tmp_path)!r})\n"
        "run.save(1, {'w': bytearray(40 << 20)}, wait=True)\n"
        "print(run._saver._process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    names = set(os.listdir("/dev/shm"))
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    eventually(lambda: not Path("/proc", done.stdout.strip()).exists(), what="the end of the saver")
    assert not [name for name in set(os.listdir("/dev/shm")) - names if name.startswith("outlast")]


def test_a_full_disk_is_an_error_of_the_save(run: Training) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The kernel refuses to write beyond this size, as it does on a full file system.
    resource.setrlimit(resource.RLIMIT_FSIZE, (30 << 20, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            run.save(1, {"w": bytearray(40 << 20)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    run.save(1, {"w": bytearray(b"x" * (40 << 20))}, wait=True)
    assert run.restore() == {"w": bytearray(b"x" * (40 << 20))}
