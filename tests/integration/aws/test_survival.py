"""A run through Amazon's APIs that is launched by a fleet, warned, interrupted, and finished elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.clouds.aws.cloud import AwsCloud
from outlast.workspace import Workspace
from tests.integration.aws.home import RUN, AwsHome, at_home, left
from tests.support.aws import Bridge
from tests.support.home import UNHURRIED
from tests.support.waiting import eventually

SECRET = "hunter2-very-secret"


@pytest.fixture
def home(bridge: Bridge, cloud: AwsCloud, tmp_path: Path) -> Iterator[AwsHome]:
    bridge.grace(6.0)
    with at_home(tmp_path, bridge, cloud) as own:
        yield own


def saved(workspace: Workspace, attempt: int) -> bool:
    return any(one.attempt == attempt for one in workspace.story("count-1").refresh().checkpoints)


def everywhere(home: AwsHome) -> bytes:
    """Return the content of all objects of the workspace."""
    bucket = home.workspace.bucket
    return b"\n".join(bucket.get(entry.key) for entry in bucket.list("") if not entry.key.startswith("wheels/"))


def test_a_run_survives_an_interruption_and_leaves_nothing_behind(
    home: AwsHome, cloud: AwsCloud, bridge: Bridge
) -> None:
    home.write("count.py", UNHURRIED)
    runner = home.start(*RUN, "--secret", "KEY", "--", "python3", "count.py", "20", "0.25", KEY=SECRET)
    eventually(lambda: saved(home.workspace, 1), within_s=90, what="a checkpoint of the first machine")
    (machine,) = cloud.machines()
    assert (machine.spot, machine.status, machine.type) == (True, "running", "c6i.large")
    doc = cloud.home.instances.find(machine.name)
    assert doc["MetadataOptions"]["HttpTokens"] == "required"
    assert SECRET not in json.dumps([doc, dict(cloud.metadata(machine.name))], default=str)
    bridge.send("rebalance", {"instance": doc["InstanceId"]})
    story = home.workspace.story("count-1")
    eventually(lambda: story.refresh().attempts[0].warned_at > 0, within_s=30, what="the early warning")
    assert story.state.attempts[0].phase == "started"
    assert home.outlast("preempt", "count-1").returncode == 0
    output, _ = runner.communicate(timeout=600)
    assert runner.returncode == 0, output
    state = story.refresh()
    first, second = state.attempts
    assert (first.outcome, first.preempted, second.outcome) == ("preempted", True, "finished")
    assert 0.0 < first.grace_s <= 6.0
    assert first.zone != second.zone
    assert second.resumed_step or second.resumed_from
    resumed = [int(line.split()[-1]) for line in home.log().splitlines() if line.startswith("resumed at")]
    assert resumed[0] == 0
    assert resumed[-1] > 0
    assert "warning: EC2 recommends to move off this machine: it may be preempted soon" in output
    assert "count 20" in output
    assert SECRET not in output
    assert SECRET.encode() not in everywhere(home)
    assert cloud.machines() == []
    assert left(cloud.client) == {}
    calls = bridge.send("calls", {})
    assert "CreateFleet" in calls
