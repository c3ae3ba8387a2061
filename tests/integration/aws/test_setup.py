"""`outlast setup aws`, and the checks of `outlast doctor` on an account."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from outlast.clouds.aws.cloud import AwsCloud
from outlast.clouds.aws.setup import FIS, MACHINE, SUPERVISOR, AwsSetup, missing, quota_warnings
from tests.support.aws import Bridge
from tests.support.home import Home


@pytest.fixture
def home(bridge: Bridge, tmp_path: Path) -> Home:
    own = Home(tmp_path)
    own.environment |= bridge.variables
    return own


def actions(cloud: AwsCloud, role: str) -> set[str]:
    answer = cloud.client.call("iam", "get_role_policy", RoleName=role, PolicyName="outlast")
    statements: list[dict[str, Any]] = answer["PolicyDocument"]["Statement"]
    return {action for one in statements for action in one["Action"]}


@pytest.mark.full
def test_setup_prints_commands_or_applies_them_and_may_be_repeated(home: Home, cloud: AwsCloud) -> None:
    printed = home.outlast("setup", "aws")
    assert printed.returncode == 0, printed.stderr
    assert "nothing was changed" in printed.stderr
    commands = [shlex.split(line) for line in printed.stdout.splitlines() if not line.startswith("#")]
    assert len(commands) == 15
    assert {argv[0] for argv in commands} == {"aws"}
    wanted = {MACHINE: "the machines", SUPERVISOR: "the supervisor machine"}
    for _ in range(2):
        done = home.outlast("setup", "aws", "--apply")
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"s3://{AwsSetup(cloud.client).bucket}\n"
    assert missing(cloud.client, wanted) == []
    block = cloud.client.call("s3", "get_public_access_block", Bucket=AwsSetup(cloud.client).bucket)
    assert set(block["PublicAccessBlockConfiguration"].values()) == {True}
    for name in (MACHINE, SUPERVISOR):
        profile = cloud.client.call("iam", "get_instance_profile", InstanceProfileName=name)["InstanceProfile"]
        assert [role["RoleName"] for role in profile["Roles"]] == [name]
    # A run's machine uses the bucket and reads its secrets. It may not terminate anything.
    objects = {"s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket"}
    assert actions(cloud, MACHINE) == objects | {"ssm:GetParameter"}
    assert not any(action.startswith("iam:") for action in actions(cloud, SUPERVISOR) - {"iam:PassRole"})
    assert actions(cloud, FIS) == {"ec2:SendSpotInstanceInterruptions", "ec2:DescribeInstances"}


def test_printed_commands_equal_applied_calls(cloud: AwsCloud, bridge: Bridge) -> None:
    printed = [command for step in AwsSetup(cloud.client).steps() for command in step.commands]
    asked = {command.split()[2].replace("-", "_") for command in printed}
    assert {"create_bucket", "put_role_policy", "add_role_to_instance_profile", "create_security_group"} <= asked
    assert "cloudformation" not in " ".join(printed)


def rows(home: Home, **environment: str) -> list[dict[str, str]]:
    answer = home.outlast("doctor", "--json", **environment)
    return [row for row in json.loads(answer.stdout)["checks"] if row["check"].startswith("aws")]


def test_doctor_lists_what_an_account_lacks(home: Home, cloud: AwsCloud, bridge: Bridge) -> None:
    cloud.client.call("s3", "create_bucket", Bucket="sick-box")
    home.environment["OUTLAST_WORKSPACE"] = "s3://sick-box/ws"
    home.environment["OUTLAST_AWS_INSTANCE_PROFILE"] = "no-such-profile"
    bridge.tell("quota", {"processors": 0})
    bridge.rules({"action": "DescribeSpotPriceHistory", "code": "UnauthorizedOperation", "status": 403})
    answer = rows(home)
    bridge.tell("quota", {"processors": 64})
    assert any(
        "`no-such-profile`, does not exist" in row["says"] and "setup aws --apply" in row["fix"] for row in answer
    )
    assert any("permission `ec2:DescribeSpotPriceHistory` is missing" in row["says"] for row in answer)
    assert any("the quota for spot machines without a GPU in us-east-1 is 0 CPUs" in row["says"] for row in answer)
    assert any("built-in table of 2025-07-01" in row["says"] for row in answer)
    bridge.rules()
    assert quota_warnings(cloud.client) == []


@pytest.mark.full
def test_doctor_reports_missing_credentials(home: Home, cloud: AwsCloud) -> None:
    cloud.client.call("s3", "create_bucket", Bucket="healthy-box")
    home.workspace.remember_cloud("aws")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        home.environment.pop(name)
    (row,) = rows(home, AWS_EC2_METADATA_DISABLED="true")
    assert row["says"] == "no credentials for AWS were found"
    assert "aws configure" in row["fix"]
