"""`outlast verify` against the emulated Google Cloud: it passes, fails on planted misconfigurations, leaves nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from outlast.clouds.gcp.cloud import GcpCloud
from outlast_gcp_emulator.conditions import EXTERNAL_ADDRESS, REAL
from tests.integration.gcp.home import at_home
from tests.support.gcp import Rehearsal
from tests.support.home import Home
from tests.support.waiting import eventually

REGION = "us-central1"
# The launch follows, the preemption of a run, and a run without a supervisor.
STEPS_BEFORE_A_KILL = ["prices and quotas", "run", "secrets"]


@pytest.fixture
def home(rehearsal: Rehearsal, gcp: GcpCloud, tmp_path: Path) -> Iterator[Home]:
    with at_home(tmp_path, rehearsal, gcp) as own:
        yield own


def outcome(home: Home, *argv: str) -> tuple[int, str]:
    """Run a verification to its end; return the exit code and all output."""
    process = home.start("verify", "--cloud", "gcp", *argv)
    output, _ = process.communicate(timeout=900)
    return process.returncode, output


def steps(path: Path) -> dict[str, tuple[str, str, str]]:
    report = json.loads(path.read_text())
    return {one["step"]: (one["state"], one["text"], one["fix"]) for one in report["steps"]}


@pytest.mark.full
def test_it_passes_and_leaves_nothing(home: Home, gcp: GcpCloud, tmp_path: Path, rehearsal: Rehearsal) -> None:
    for zone in rehearsal.local.zone_settings():
        rehearsal.local.set_zone(zone, grace_s=5.0)
    report, recorded = tmp_path / "report.json", tmp_path / "recorded"
    argv = ["--yes", "--region", REGION, "--json", str(report), "--record", str(recorded)]
    code, output = outcome(home, *argv)
    assert code == 0, output
    found = steps(report)
    assert len(found) == 15
    assert {name for name, one in found.items() if one[0] != "ok"} == {"ssh"}, output
    assert gcp.machines() == []
    assert "resumed at step" in found["preemption"][1]
    lines = (recorded / "answers.jsonl").read_text()
    assert '"service": "compute"' in lines
    assert gcp.client.project not in lines
    assert "nothing to delete" in home.outlast("verify", "--cloud", "gcp", "--clean", "all").stderr


@pytest.mark.parametrize(
    ("changes", "gpu", "step", "sentence", "fix"),
    [
        ({"default_network": False}, "", "network", "has no network `default`", "setup gcp --network"),
        ({}, "T4", "prices and quotas", "GPUS_ALL_REGIONS", "quotas"),
    ],
)
def test_a_planted_misconfiguration_fails_its_step(
    home: Home,
    rehearsal: Rehearsal,
    tmp_path: Path,
    changes: dict[str, bool],
    gpu: str,
    step: str,
    sentence: str,
    fix: str,
) -> None:
    rehearsal.endpoint.surroundings.now = replace(REAL, **changes)  # type: ignore[arg-type]
    report = tmp_path / "report.json"
    options = ["--gpu", gpu] if gpu else []
    answer = home.outlast("verify", "--cloud", "gcp", "--dry", "--region", REGION, "--json", str(report), *options)
    assert answer.returncode == 1, answer.stdout + answer.stderr
    found = steps(report)
    assert [name for name, one in found.items() if one[0] == "FAIL"] == [step], answer.stdout
    assert sentence in found[step][1]
    assert fix in found[step][2]


@pytest.mark.full
def test_a_policy_of_the_organisation_fails_the_launch_with_the_setting(
    home: Home, rehearsal: Rehearsal, gcp: GcpCloud, tmp_path: Path
) -> None:
    rehearsal.endpoint.surroundings.now = replace(REAL, constraints=frozenset({EXTERNAL_ADDRESS}))
    report = tmp_path / "report.json"
    code, output = outcome(home, "--yes", "--region", REGION, "--json", str(report))
    assert code == 1, output
    found = steps(report)
    assert found["launch"][0] == "FAIL", output
    assert "vmExternalIpAccess" in found["launch"][1] + found["launch"][2]
    assert "external_address = false" in found["launch"][2] + found["boot failure"][2]
    assert found["clean-up"][0] == "ok"
    assert gcp.machines() == []


@pytest.mark.full
@pytest.mark.parametrize("after", STEPS_BEFORE_A_KILL)
def test_after_kill_9_clean_leaves_nothing(home: Home, gcp: GcpCloud, rehearsal: Rehearsal, after: str) -> None:
    for zone in rehearsal.local.zone_settings():
        rehearsal.local.set_zone(zone, grace_s=5.0)
    running = home.start("verify", "--cloud", "gcp", "--yes", "--region", REGION)
    assert running.stdout is not None
    seen: list[str] = []
    # With the line of a step, the next one begins.
    while not re.match(rf"ok +{after} ", "".join(seen[-1:])):
        seen.append(running.stdout.readline())
        assert seen[-1], "".join(seen)
    if after == "prices and quotas":
        eventually(lambda: gcp.machines() != [], within_s=120, what="a machine of the verification")
    running.kill()
    running.wait(timeout=60)
    answer = home.outlast("verify", "--cloud", "gcp", "--clean", "all")
    assert answer.returncode == 0, answer.stderr
    assert "two listings are empty" in answer.stdout
    assert gcp.machines() == []
