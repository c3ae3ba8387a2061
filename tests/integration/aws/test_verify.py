"""`outlast verify` against the emulated AWS: it passes, fails on each planted misconfiguration, leaves nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.clouds.aws.cloud import AwsCloud
from outlast.clouds.aws.setup import AwsSetup
from tests.integration.aws.home import at_home
from tests.support.aws import REGION, Bridge
from tests.support.home import Home


@pytest.fixture
def home(bridge: Bridge, cloud: AwsCloud, tmp_path: Path) -> Iterator[Home]:
    with at_home(tmp_path, bridge, cloud) as own:
        for step in AwsSetup(cloud.client).steps():
            step.apply()
        yield own


def outcome(home: Home, report: Path, *argv: str) -> tuple[int, str, dict[str, dict[str, Any]]]:
    """Run a verification to its end; return the exit code, all output, and the steps."""
    process = home.start("verify", "--cloud", "aws", "--region", REGION, "--json", str(report), *argv)
    output, _ = process.communicate(timeout=900)
    steps = json.loads(report.read_text())["steps"] if report.exists() else []
    return process.returncode, output, {one["step"]: one for one in steps}


@pytest.mark.full
def test_it_passes_and_leaves_nothing(home: Home, cloud: AwsCloud, bridge: Bridge, tmp_path: Path) -> None:
    bridge.grace(5.0)
    code, output, found = outcome(home, tmp_path / "report.json", "--yes")
    assert {name for name, one in found.items() if one["state"] != "ok"} == {"ssh"}, output
    assert code == 0, output
    assert len(found) == 15
    assert found["identity"]["request"]
    assert cloud.machines() == []


@pytest.mark.parametrize(
    ("conditions", "gpu", "step", "sentence", "fix"),
    [
        ({"default_vpc": False}, "", "network", "no default VPC", "setup aws --network"),
        ({"gpu_quota": 0}, "T4", "prices and quotas", "spot machines with a GPU", "Service Quotas"),
    ],
)
def test_a_planted_misconfiguration_fails_its_step(
    home: Home, bridge: Bridge, tmp_path: Path, conditions: dict[str, Any], gpu: str, step: str, sentence: str, fix: str
) -> None:
    bridge.conditions(**conditions)
    options = ["--gpu", gpu] if gpu else []
    code, output, found = outcome(home, tmp_path / "report.json", "--dry", *options)
    assert code == 1, output
    assert [name for name, one in found.items() if one["state"] == "FAIL"] == [step], output
    assert sentence in found[step]["text"]
    assert fix in found[step]["fix"]
