"""Machine types of Google that no table of ours contains."""

from __future__ import annotations

import pytest

from outlast.clouds.cloud import Requirements
from outlast.clouds.gcp.types import matching_kinds, read_type, with_driver
from outlast.errors import BadRequest

NEW = {
    "name": "a9-megagpu-8g",
    "guestCpus": 224,
    "memoryMb": 1024 * 2952,
    "accelerators": [{"guestAcceleratorType": "nvidia-next-400gb", "guestAcceleratorCount": 8}],
}


def test_a_type_with_a_gpu_that_we_do_not_know_is_offered_under_googles_name() -> None:
    kind = read_type(NEW)
    assert kind.gpu == "nvidia-next-400gb"
    assert [one.type for one in matching_kinds(Requirements(gpu="nvidia-next-400gb"), [kind])] == ["a9-megagpu-8g"]


def test_the_default_image_has_no_driver_for_gpus_before_turing() -> None:
    old, new = (matching_kinds(Requirements(gpu=gpu), []) for gpu in ("V100", "T4"))
    assert with_driver(old + new, "16GB+") == new
    with pytest.raises(BadRequest, match="does not support the GPU `V100`") as problem:
        with_driver(old, "V100")
    assert "[machine] image" in problem.value.hint
