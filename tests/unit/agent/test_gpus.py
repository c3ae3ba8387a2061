"""The GPUs of a machine are counted by the real program's output format."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.agent.permanent import GpuMissing, check_gpus


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "nvidia-smi"


def install(driver: Path, body: str) -> None:
    driver.write_text(f"#!/bin/sh\n{body}\n")
    driver.chmod(0o755)


def test_an_image_without_a_driver_is_named(driver: Path) -> None:
    with pytest.raises(GpuMissing, match="no NVIDIA driver, and the run needs 1 GPU"):
        check_gpus(1)


def test_all_gpus_must_be_listed(driver: Path) -> None:
    install(driver, 'echo "GPU 0: Tesla T4 (UUID: GPU-1)"')
    check_gpus(1)
    with pytest.raises(GpuMissing, match="the driver lists 1 GPU, and the run needs 2"):
        check_gpus(2)


def test_a_driver_that_fails_is_quoted(driver: Path) -> None:
    install(driver, 'echo "NVIDIA-SMI has failed because it could not communicate with the driver" >&2; exit 9')
    with pytest.raises(GpuMissing, match="could not communicate with the driver"):
        check_gpus(1)
