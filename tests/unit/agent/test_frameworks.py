"""The rules of frameworks for their checkpoint folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outlast.agent.checkpoint.snapshot import FolderSnapshot, take_snapshot

HF = ["config.json", "generation_config.json", "model.safetensors", "training_args.bin", "optimizer.pt", "scheduler.pt"]
ACCELERATE = ["model.safetensors", "optimizer.bin", "scheduler.bin", "sampler.bin"]


@pytest.mark.parametrize(
    ("names", "complete"),
    [
        # The Trainer writes the description first and its state last.
        *((HF[:count], False) for count in range(1, len(HF) + 1)),
        ([*HF, "trainer_state.json"], True),
        ([*HF, "trainer_state.json", "checkpoint-is-incomplete.txt"], False),
        (["adapter_config.json", "README.md"], False),
        # Accelerate's `save_state`, as the examples of diffusers name it.
        *((ACCELERATE[:count], False) for count in range(1, len(ACCELERATE) + 1)),
        ([*ACCELERATE, "random_states_0.pkl"], True),
        # Files of a user's loop under the same folder name.
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
def test_a_folder_is_included_once_its_framework_has_completed_it(
    names: list[str], complete: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoint-10"
    folder.mkdir()
    for name in names:
        (folder / name).write_text("x")
    assert take_snapshot(str(tmp_path)).paths == (sorted(f"checkpoint-10/{name}" for name in names) if complete else [])


def own_loop(folder: Path, step: int) -> None:
    """Write the files that the Trainer writes first, and never the state that it writes last."""
    (folder / f"checkpoint-{step}").mkdir()
    for name in ("config.json", "model.safetensors", "optimizer.pt"):
        (folder / f"checkpoint-{step}" / name).write_text("x")


def folders(snapshot: FolderSnapshot) -> set[str]:
    return {os.path.dirname(path) for path in snapshot.paths}


def test_a_users_loop_with_save_pretrained_is_included_once_it_has_gone_on_or_ended(tmp_path: Path) -> None:
    own_loop(tmp_path, 90)
    own_loop(tmp_path, 100)
    assert folders(take_snapshot(str(tmp_path))) == {"checkpoint-90"}
    assert folders(take_snapshot(str(tmp_path), command_ended=True)) == {"checkpoint-90", "checkpoint-100"}


def test_an_incomplete_folder_without_complete_siblings_is_the_only_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "train_log.json").write_text("{}")
    assert not take_snapshot(str(tmp_path)).only_incomplete
    own_loop(tmp_path, 100)
    assert take_snapshot(str(tmp_path)).only_incomplete
    assert not take_snapshot(str(tmp_path), command_ended=True).only_incomplete
    own_loop(tmp_path, 200)
    assert not take_snapshot(str(tmp_path)).only_incomplete


def test_an_incomplete_folder_of_accelerate_is_left_out_at_any_age(tmp_path: Path) -> None:
    for step, names in ((10, ACCELERATE), (20, ["model.safetensors"])):
        (tmp_path / f"checkpoint-{step}").mkdir()
        for name in names:
            (tmp_path / f"checkpoint-{step}" / name).write_text("x")
            os.utime(tmp_path / f"checkpoint-{step}" / name, (1.0, 1.0))
    assert folders(take_snapshot(str(tmp_path))) == {"checkpoint-10"}


@pytest.mark.parametrize(
    ("names", "paths"),
    [
        (("tmp_ckpts",), ["tmp_ckpts/model.pt"]),
        (("tmp_*.pt",), ["tmp_1.pt"]),
        (("*.tmp",), ["state.tmp"]),
        (("plain",), ["plain/model.pt"]),
    ],
)
def test_files_that_the_user_names_are_included_even_with_temporary_names(
    tmp_path: Path, names: tuple[str, ...], paths: list[str]
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
    assert take_snapshot(str(tmp_path), names=names).paths == paths


def test_the_trainer_may_pause_between_two_files(tmp_path: Path) -> None:
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


def test_a_temperature_is_not_a_temporary_name(tmp_path: Path) -> None:
    for name in ("temp_0.7", "temp-2", "temp_model", "tmp-1", "tmp_x"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.pt").write_text("x")
    assert take_snapshot(str(tmp_path)).paths == ["temp-2/model.pt", "temp_0.7/model.pt"]
