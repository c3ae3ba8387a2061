"""The drill on scripts of frameworks, each resuming and not: a few rows of `benchmarks/drill.py`, which has all."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARK = Path(__file__).resolve().parents[3] / "benchmarks" / "drill.py"
NAMES = ["hf_trainer", "lightning_trainer", "xgboost_train", "torchvision_classification"]


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("drill_benchmark", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("resuming", [True, False], ids=["resumes", "starts over"])
@pytest.mark.parametrize("name", NAMES)
def test_the_verdict_on_a_framework_is_right(benchmark: ModuleType, name: str, resuming: bool) -> None:
    row = benchmark.ROWS[name]
    if subprocess.run([sys.executable, "-c", f"import {row.needs}"], capture_output=True, check=False).returncode:
        pytest.skip(f"{row.needs} is not installed: make frameworks")
    seen, text = benchmark.drilled(name, row, resuming=resuming, python=sys.executable, extra=["--preemptions", "1"])
    assert seen.right, text
