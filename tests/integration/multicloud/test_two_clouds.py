"""One run on two clouds: it continues on the other one, and both reach its workspace."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.clouds.aws.cloud import AwsCloud
from outlast.clouds.gcp.cloud import GcpCloud
from outlast.workspace import open_workspace
from outlast_gcp_emulator.environment import PROJECT
from tests.integration.aws.home import left
from tests.support.aws import Bridge
from tests.support.gcp import Rehearsal
from tests.support.home import UNHURRIED, Home
from tests.support.waiting import eventually

ZONES = ("us-central1-a", "us-central1-b")
SECRET = "hunter2-very-secret"
S3_KEY = {"OUTLAST_S3_KEY_ID": "AKIDOFTHEBUCKET", "OUTLAST_S3_KEY_SECRET": "key-of-the-bucket-alone"}


@pytest.fixture
def home(rehearsal: Rehearsal, gcp: GcpCloud, bridge: Bridge, cloud: AwsCloud, tmp_path: Path) -> Iterator[Home]:
    own = Home(tmp_path)
    own.environment |= {**rehearsal.variables, **bridge.variables}
    own.write("count.py", UNHURRIED)
    yield own
    bridge.rules()
    own.clean()
    for there in (gcp, cloud):
        for machine in there.machines():
            there.delete(machine.name)


def open_in(home: Home, url: str) -> None:
    home.environment["OUTLAST_WORKSPACE"] = url
    home.workspace = open_workspace(url)


def run_argv(clouds: str) -> list[str]:
    argv = ["run", "--cloud", clouds, "--cpus", "2", "--name", "count", "--checkpoint", "ckpt", "--secret", "KEY"]
    return [*argv, *(word for zone in ZONES for word in ("--zone", zone))]


def ended_right(home: Home, output: str, gcp: GcpCloud, cloud: AwsCloud, rehearsal: Rehearsal) -> None:
    assert "count 40" in output
    resumed = [int(line.split()[-1]) for line in home.log().splitlines() if line.startswith("resumed at")]
    assert resumed[0] == 0
    assert resumed[-1] > 0
    assert gcp.machines() == []
    assert not list((Path(rehearsal.endpoint.root) / "secrets").rglob("*.json"))
    assert left(cloud.client) == {}
    bucket = home.workspace.bucket
    kept = b"\n".join(bucket.get(entry.key) for entry in bucket.list("") if not entry.key.startswith("wheels/"))
    for word in (SECRET, S3_KEY["OUTLAST_S3_KEY_SECRET"], "PRIVATE KEY"):
        assert word not in output
        assert word.encode() not in kept


@pytest.mark.full
def test_a_run_moves_from_gcp_to_aws_at_a_stockout_and_leaves_nothing(
    home: Home, gcp: GcpCloud, cloud: AwsCloud, bridge: Bridge, rehearsal: Rehearsal
) -> None:
    bucket = f"box-{secrets.token_hex(4)}"
    gcp.client.call("storage", "POST", "b", query={"project": PROJECT}, body={"name": bucket})
    open_in(home, f"gs://{bucket}/ws")
    argv = [*run_argv("gcp,aws"), "--", "python3", "count.py", "40", "0.25"]
    refused = home.outlast(*argv, KEY=SECRET)
    assert refused.returncode != 0
    assert "OUTLAST_GS_KEY_FILE" in refused.stderr
    home.environment["OUTLAST_GS_KEY_FILE"] = f"{rehearsal.endpoint.root}/key.json"
    runner = home.start(*argv, KEY=SECRET)
    story = home.workspace.story("count-1")
    eventually(lambda: bool(story.refresh().checkpoints), within_s=120, what="a checkpoint on Google Cloud")
    assert [one.cloud for one in story.state.attempts] == ["gcp"], story.state.attempts
    for zone in ZONES:
        rehearsal.local.set_zone(zone, capacity=0)
    assert home.outlast("preempt", "count-1").returncode == 0
    eventually(lambda: story.refresh().attempts[-1].cloud == "aws", within_s=90, what="an attempt on EC2")
    machine = story.state.attempts[-1].machine
    eventually(lambda: any(one.name == machine for one in cloud.machines()), within_s=60, what="its machine")
    visible = json.dumps([cloud.home.instances.find(machine), dict(cloud.metadata(machine))], default=str)
    assert SECRET not in visible
    assert "PRIVATE KEY" not in visible
    output, _ = runner.communicate(timeout=600)
    assert runner.returncode == 0, output
    last = story.refresh().attempts[-1]
    assert (last.cloud, last.outcome) == ("aws", "finished")
    ended_right(home, output, gcp, cloud, rehearsal)
    shown = home.outlast("show", "count-1").stdout
    # The bucket of Google was created without a place: it is spread over the US.
    assert re.search(r"^data transfer   \$0\.\d+ from and to US \(list prices of ", shown, re.MULTILINE), shown
    assert home.ps()[0]["egress_usd"] > 0


@pytest.mark.soak
def test_machines_of_google_use_a_workspace_in_s3_with_their_key(
    home: Home, gcp: GcpCloud, cloud: AwsCloud, bridge: Bridge, rehearsal: Rehearsal
) -> None:
    bucket = f"box-{secrets.token_hex(4)}"
    cloud.client.call("s3", "create_bucket", Bucket=bucket)
    open_in(home, f"s3://{bucket}/ws")
    bridge.grace(6.0)
    home.environment |= S3_KEY
    runner = home.start(*run_argv("aws,gcp"), "--", "python3", "count.py", "40", "0.25", KEY=SECRET)
    story = home.workspace.story("count-1")
    eventually(lambda: bool(story.refresh().checkpoints), within_s=120, what="a checkpoint on EC2")
    bridge.rules({"action": "CreateFleet", "code": "InsufficientInstanceCapacity"})
    assert home.outlast("preempt", "count-1").returncode == 0
    output, _ = runner.communicate(timeout=600)
    assert runner.returncode == 0, output
    attempts = story.refresh().attempts
    assert (attempts[0].cloud, attempts[-1].cloud, attempts[-1].outcome) == ("aws", "gcp", "finished")
    ended_right(home, output, gcp, cloud, rehearsal)
