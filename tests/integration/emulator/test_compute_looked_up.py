"""What scripts look up or change before they make a machine: quotas for GPUs, the size of a disk. Starts no machine."""

from __future__ import annotations

from pathlib import Path

from tests.integration.emulator.compute import Client, place
from tests.integration.emulator.discovery import Watching


def test_a_patch_resizes_a_disk_and_changes_nothing_else(tmp_path: Path, watching: Watching) -> None:
    with place(tmp_path, watching) as here:
        client = Client(here, "proj1")
        client.do("POST Z/disks", {"name": "one", "sizeGb": "10"})
        client.do("PATCH Z/disks/one?paths=sizeGb", {"name": "one", "sizeGb": "15"})
        assert client.get("Z/disks/one")["sizeGb"] == "15"
        assert client.refused("PATCH Z/disks/one", {"name": "one"})[0] == 400


def test_regions_and_projects_have_gpu_quotas(tmp_path: Path, watching: Watching) -> None:
    with place(tmp_path, watching) as here:
        client = Client(here, "proj1")
        region = {quota["metric"]: quota["limit"] for quota in client.get("regions/us-central1")["quotas"]}
        assert region["PREEMPTIBLE_NVIDIA_T4_GPUS"] > 0
        assert "GPUS_ALL_REGIONS" in [quota["metric"] for quota in client.get("")["quotas"]]
