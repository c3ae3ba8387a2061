"""What frameworks say about their own checkpoint folders is believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.agent.whole import look

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
    assert look(str(tmp_path)).paths == (sorted(f"checkpoint-10/{name}" for name in names) if whole else [])
