"""`outlast verify` against the emulated AWS: it passes, fails on each planted misconfiguration, leaves nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.clouds.aws.cloud import AwsCloud
from outlast.clouds.aws.setup import AwsSetup
from tests.integration.aws.home import at_home
from tests.support.aws import REGION, Bridge
from tests.support.home import Home
from tests.support.waiting import eventually

# The launch follows, and the preemption of a run.
STEPS_BEFORE_A_KILL = ["prices and quotas", "run"]


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


@pytest.mark.full
@pytest.mark.parametrize("after", STEPS_BEFORE_A_KILL)
def test_after_kill_9_clean_leaves_nothing(home: Home, cloud: AwsCloud, bridge: Bridge, after: str) -> None:
    bridge.grace(5.0)
    running = home.start("verify", "--cloud", "aws", "--region", REGION, "--yes")
    assert running.stdout is not None
    seen: list[str] = []
    # With the line of a step, the next one begins.
    while not re.match(rf"ok +{after} ", "".join(seen[-1:])):
        seen.append(running.stdout.readline())
        assert seen[-1], "".join(seen)
    if after == "prices and quotas":
        eventually(lambda: cloud.machines() != [], within_s=120, what="a machine of the verification")
    running.kill()
    running.wait(timeout=60)
    answer = home.outlast("verify", "--cloud", "aws", "--clean", "all", timeout_s=180)
    assert answer.returncode == 0, answer.stderr
    assert "two listings are empty" in answer.stdout
    assert cloud.machines() == []
