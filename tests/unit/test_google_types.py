"""Machine types of Google that no table of ours contains."""

from __future__ import annotations

from outlast.clouds.cloud import Requirements
from outlast.clouds.gcp.types import matching_kinds, read_type

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
