"""A supervisor machine on EC2: the laptop submits and sleeps, the machine supervises and is deleted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.clouds.aws.cloud import AwsCloud
from outlast.clouds.aws.region import SUPERVISOR
from outlast.records.machines import MachineRecords, supervisor_name
from outlast.store.lease import Lease
from tests.integration.aws.home import AwsHome, left
from tests.support.aws import Bridge
from tests.support.home import UNHURRIED, kill_9, processes_mentioning
from tests.support.waiting import eventually


@pytest.fixture
def home(bridge: Bridge, cloud: AwsCloud, tmp_path: Path) -> Iterator[AwsHome]:
    bridge.grace(6.0)
    own = AwsHome(tmp_path, bridge)
    done = own.outlast("setup", "aws", "--apply")
    assert done.returncode == 0, done.stderr
    # The roles from setup: one for machines of runs, one for the supervisor machine.
    own.environment.pop("OUTLAST_AWS_INSTANCE_PROFILE")
    yield own
    own.clean()
    for machine in cloud.machines():
        cloud.delete(machine.name)


def holder(home: AwsHome) -> str:
    found = Lease(home.workspace.bucket, "supervisor", who="", ttl_s=6.0).holder()
    return found.who if found else ""


@pytest.mark.soak
def test_a_supervisor_machine_is_restarted_and_deleted_after_the_last_run(
    home: AwsHome, cloud: AwsCloud, bridge: Bridge
) -> None:
    name = supervisor_name(home.workspace)
    up = home.outlast("supervise", "--on", "aws", "--until-idle", timeout_s=150)
    assert up.returncode == 0, up.stderr
    assert up.stdout.startswith(f"{name} on aws (t3.micro in us-east-1")
    doc = cloud.home.instances.find(name)
    assert str(doc["IamInstanceProfile"]["Arn"]).endswith(f"/{SUPERVISOR}")
    assert "InstanceLifecycle" not in doc
    # Killed: the boot script starts the next.
    (process,) = processes_mentioning(f"aws/{name}")
    kill_9(process)
    eventually(lambda: "restarting it" in cloud.serial(name), within_s=60, what="the boot script noticing")
    eventually(lambda: holder(home).startswith(name), within_s=90, what="the next supervisor")
    argv = ["submit", "--cloud", "aws", "--type", "c6i.large", "--name", "count", "--checkpoint", "ckpt"]
    home.write("count.py", UNHURRIED)
    submitted = home.outlast(*argv, "--", "python3", "count.py", "20", "0.25")
    assert submitted.returncode == 0, submitted.stderr
    story = home.workspace.story("count-1")
    eventually(lambda: bool(story.refresh().checkpoints), within_s=120, what="a checkpoint")
    # On a busy computer the laptop may have supervised for a moment; the machine takes over again.
    eventually(lambda: holder(home).startswith(f"{name} on aws"), within_s=60, what="the machine supervising")
    assert home.outlast("preempt", "count-1").returncode == 0
    eventually(lambda: story.refresh().ending == "finished", within_s=150, what="the run's end")
    assert len(story.state.attempts) == 2
    eventually(lambda: cloud.machines() == [], within_s=90, what="every machine being gone")
    assert MachineRecords(home.workspace).find(name) is None
    assert left(cloud.client) == {}


@pytest.mark.full
def test_it_is_switched_off_and_nothing_is_left(home: AwsHome, cloud: AwsCloud) -> None:
    assert home.outlast("supervise", "--on", "aws", "--no-wait", timeout_s=150).returncode == 0
    off = home.outlast("supervise", "--off", timeout_s=90)
    assert off.returncode == 0, off.stderr
    assert left(cloud.client) == {}
