"""The memory of the trainer library: the copy of the state, and restores into a template."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast.errors import UsageError
from outlast.trainer.arena import Arena, available_bytes
from outlast.trainer.state import size_of
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


def test_memory_that_others_need_is_released_after_a_save(run: Training, tmp_path: Path) -> None:
    # A sparse file that is larger than the memory: as much is not free.
    run._saver._arena = Arena(str(tmp_path / "arena"), available_bytes() * 2, create=True)
    run.save(1, state(1), wait=True)
    assert run._saver._arena is None
    eventually(lambda: not (tmp_path / "arena").exists(), what="the release")
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
    file = Path(run.environment.checkpoints) / "step-000000008" / "rank-0" / "buffers.bin"
    content = bytearray(file.read_bytes())
    content[70_000] ^= 1
    file.write_bytes(content)
    template = {"w": numpy.zeros(100_000)}
    run.restore(into=template)
    assert set(template["w"]) == {7.0}
