"""What frameworks say about their own checkpoint folders is believed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outlast.agent.checkpoint.ready import FolderSnapshot, take_snapshot

HF = ["config.json", "generation_config.json", "model.safetensors", "training_args.bin", "optimizer.pt", "scheduler.pt"]
ACCELERATE = ["model.safetensors", "optimizer.bin", "scheduler.bin", "sampler.bin"]


@pytest.mark.parametrize(
    ("names", "whole"),
    [
        # The Trainer writes the description first and its state last.
        *((HF[:count], False) for count in range(1, len(HF) + 1)),
        ([*HF, "trainer_state.json"], True),
        ([*HF, "trainer_state.json", "checkpoint-is-incomplete.txt"], False),
        (["adapter_config.json", "README.md"], False),
        # Accelerate's `save_state`, as the examples of diffusers name it.
        *((ACCELERATE[:count], False) for count in range(1, len(ACCELERATE) + 1)),
        ([*ACCELERATE, "random_states_0.pkl"], True),
        # Somebody's own files under the same name are judged by what moves.
        (["weights.npz"], True),
        (["config.json", "weights.npz"], True),
        (["model.pt"], True),
        (["model.pt", "optimizer.pt"], True),
        (["model.pth.tar", "training_state.json"], True),
        # PyTorch's distributed checkpoints.
        (["__0_0.distcp"], False),
        (["__0_0.distcp", ".metadata"], True),
    ],
)
def test_a_folder_is_taken_when_its_framework_says_that_it_is_whole(
    names: list[str], whole: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoint-10"
    folder.mkdir()
    for name in names:
        (folder / name).write_text("x")
    assert take_snapshot(str(tmp_path)).paths == (sorted(f"checkpoint-10/{name}" for name in names) if whole else [])


def own_loop(folder: Path, step: int) -> None:
    """It writes what the Trainer writes first, and never the state that the Trainer writes last."""
    (folder / f"checkpoint-{step}").mkdir()
    for name in ("config.json", "model.safetensors", "optimizer.pt"):
        (folder / f"checkpoint-{step}" / name).write_text("x")


def folders(snapshot: FolderSnapshot) -> set[str]:
    return {os.path.dirname(path) for path in snapshot.paths}


def test_a_loop_of_ones_own_with_save_pretrained_is_taken_when_it_has_gone_on_or_ended(tmp_path: Path) -> None:
    own_loop(tmp_path, 90)
    own_loop(tmp_path, 100)
    assert folders(take_snapshot(str(tmp_path))) == {"checkpoint-90"}
    assert folders(take_snapshot(str(tmp_path), over=True)) == {"checkpoint-90", "checkpoint-100"}


def test_nothing_is_committed_without_the_only_checkpoint_that_there_is(tmp_path: Path) -> None:
    (tmp_path / "train_log.json").write_text("{}")
    assert not take_snapshot(str(tmp_path)).waits
    own_loop(tmp_path, 100)
    assert take_snapshot(str(tmp_path)).waits
    assert not take_snapshot(str(tmp_path), over=True).waits
    own_loop(tmp_path, 200)
    assert not take_snapshot(str(tmp_path)).waits


def test_half_a_folder_of_accelerates_is_not_taken_however_old_it_is(tmp_path: Path) -> None:
    for step, names in ((10, ACCELERATE), (20, ["model.safetensors"])):
        (tmp_path / f"checkpoint-{step}").mkdir()
        for name in names:
            (tmp_path / f"checkpoint-{step}" / name).write_text("x")
            os.utime(tmp_path / f"checkpoint-{step}" / name, (1.0, 1.0))
    assert folders(take_snapshot(str(tmp_path))) == {"checkpoint-10"}


@pytest.mark.parametrize(
    ("names", "taken"),
    [
        (("tmp_ckpts",), ["tmp_ckpts/model.pt"]),
        (("tmp_*.pt",), ["tmp_1.pt"]),
        (("*.tmp",), ["state.tmp"]),
        (("plain",), ["plain/model.pt"]),
    ],
)
def test_what_somebody_names_is_meant_whatever_it_is_called(
    tmp_path: Path, names: tuple[str, ...], taken: list[str]
) -> None:
    for path in (
        "tmp_ckpts/model.pt",
        "tmp_ckpts/model.pt.tmp",
        "tmp_1.pt",
        "state.tmp",
        "plain/model.pt",
        "plain/a.tmp",
    ):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("x")
    assert take_snapshot(str(tmp_path), names=names).paths == taken


def test_the_trainer_may_take_its_time_between_two_files(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-100").mkdir()
    for name in HF:
        (tmp_path / "checkpoint-100" / name).write_text("x")
        os.utime(tmp_path / "checkpoint-100" / name, (1.0, 1.0))
    assert not take_snapshot(str(tmp_path)).paths


def test_a_distributed_checkpoint_may_be_the_checkpoint_folder_itself(tmp_path: Path) -> None:
    """As in PyTorch's tutorial, which saves to the same place each time."""
    (tmp_path / "__0_0.distcp").write_text("x")
    assert not take_snapshot(str(tmp_path)).paths
    (tmp_path / ".metadata").write_text("x")
    assert take_snapshot(str(tmp_path)).paths == [".metadata", "__0_0.distcp"]


def test_a_temperature_is_nothing_temporary(tmp_path: Path) -> None:
    for name in ("temp_0.7", "temp-2", "temp_model", "tmp-1", "tmp_x"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.pt").write_text("x")
    assert take_snapshot(str(tmp_path)).paths == ["temp-2/model.pt", "temp_0.7/model.pt"]
