"""The real `aws` command lists our resources; deleting them with it does no harm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.clouds.aws.cloud import AwsCloud
from outlast.clouds.cloud import LABEL_RUN
from tests.integration.aws.home import RUN, AwsHome, at_home, left
from tests.support.aws import Bridge
from tests.support.programs import WAITS
from tests.support.waiting import eventually

AWS = "/usr/bin/aws" if os.path.exists("/usr/bin/aws") else shutil.which("aws") or ""
pytestmark = pytest.mark.skipif(not AWS, reason="the `aws` command is not installed: apt install awscli")


@pytest.fixture
def home(bridge: Bridge, cloud: AwsCloud, tmp_path: Path) -> Iterator[AwsHome]:
    with at_home(tmp_path, bridge, cloud) as own:
        yield own


def aws(home: AwsHome, bridge: Bridge, *argv: str) -> Any:
    # Older versions ignore the variable.
    done = subprocess.run(
        [AWS, "--endpoint-url", bridge.url, "--output", "json", *argv],
        env={**home.environment, "AWS_PAGER": "", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "not found" in done.stderr and "command" in done.stderr:
        pytest.skip(f"the `aws` command does not run here: {done.stderr.strip()[:200]}")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout.strip() else {}


@pytest.mark.full
def test_the_aws_command_sees_a_run_and_deletes_its_machine_without_harm(
    home: AwsHome, cloud: AwsCloud, bridge: Bridge
) -> None:
    home.write("wait.py", WAITS)
    runner = home.start(*RUN, "--", "python3", "wait.py")
    story = home.workspace.story("count-1")
    eventually(lambda: bool(story.refresh().checkpoints), within_s=120, what="a checkpoint")
    wanted = f"Name=tag:{LABEL_RUN},Values=count-1"
    alive = "Name=instance-state-name,Values=running"
    seen = aws(home, bridge, "ec2", "describe-instances", "--filters", wanted, alive)
    (doc,) = [one for reservation in seen["Reservations"] for one in reservation["Instances"]]
    assert doc["InstanceLifecycle"] == "spot"
    assert doc["MetadataOptions"]["HttpTokens"] == "required"
    volumes = aws(home, bridge, "ec2", "describe-volumes", "--filters", wanted)["Volumes"]
    assert [volume["Attachments"][0]["InstanceId"] for volume in volumes] == [doc["InstanceId"]]
    bucket = home.workspace.url.removeprefix("s3://").partition("/")[0]
    keys = aws(home, bridge, "s3api", "list-objects-v2", "--bucket", bucket, "--prefix", "ws/runs/count-1/story/")
    assert len(keys["Contents"]) >= 3
    aws(home, bridge, "ec2", "terminate-instances", "--instance-ids", doc["InstanceId"])
    output, _ = runner.communicate(timeout=600)
    assert runner.returncode == 0, output
    state = story.refresh()
    assert [one.outcome for one in state.attempts] == ["lost", "finished"]
    assert state.attempts[1].resumed_from
    assert left(cloud.client) == {}
