"""`outlast setup aws`, and the checks of `outlast doctor` on an account."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from outlast.clouds.aws.checks import bucket_warnings, disk_key_warnings, missing, quota_warnings
from outlast.clouds.aws.cloud import AwsCloud
from outlast.clouds.aws.setup import FIS, MACHINE, SUPERVISOR, AwsSetup
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
    assert len(commands) == 16
    assert {argv[0] for argv in commands} == {"aws"}
    wanted = {MACHINE: "the machines", SUPERVISOR: "the supervisor machine"}
    for _ in range(2):
        done = home.outlast("setup", "aws", "--apply")
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"s3://{AwsSetup(cloud.client).bucket}\n"
    assert missing(cloud.client, wanted) == []
    assert bucket_warnings(cloud.client, AwsSetup(cloud.client).bucket) == []
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
    bridge.send("quota", {"processors": 0})
    bridge.rules({"action": "DescribeSpotPriceHistory", "code": "UnauthorizedOperation", "status": 403})
    answer = rows(home)
    bridge.send("quota", {"processors": 64})
    assert any(
        "`no-such-profile`, does not exist" in row["says"] and "setup aws --apply" in row["fix"] for row in answer
    )
    assert any("permission `ec2:DescribeSpotPriceHistory` is missing" in row["says"] for row in answer)
    assert any("the quota for spot machines without a GPU in us-east-1 is 0 CPUs" in row["says"] for row in answer)
    assert any("built-in prices of 2026-08-22" in row["says"] for row in answer)
    bridge.rules()
    # New accounts have no quota for GPUs.
    assert ["with" in text for text, _ in quota_warnings(cloud.client)] == [True, True, True]


def test_doctor_checks_an_account_in_sight_and_its_roles(home: Home, cloud: AwsCloud) -> None:
    for step in AwsSetup(cloud.client).steps():
        step.apply()
    wanted = {MACHINE: "the machines", SUPERVISOR: "the supervisor machine"}
    assert missing(cloud.client, wanted) == []
    arn = f"arn:aws:s3:::{AwsSetup(cloud.client).bucket}/*"
    statement = {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": [arn]}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    cloud.client.call("iam", "put_role_policy", RoleName=MACHINE, PolicyName="outlast", PolicyDocument=policy)
    # The workspace is a folder: credentials alone are reason enough.
    answer = rows(home, OUTLAST_AWS_INSTANCE_PROFILE=MACHINE)
    # New accounts have other warnings: they have no quota for GPUs.
    (row,) = [row for row in answer if "the role of the machines, `outlast-machine`, lacks" in row["says"]]
    assert row["state"] == "warning"
    assert f"`s3:PutObject on {arn}`" in row["says"]
    assert f"`s3:GetObject on {arn}`" not in row["says"]
    assert "setup aws --apply" in row["fix"]


def test_doctor_states_the_cost_of_a_buckets_settings(cloud: AwsCloud) -> None:
    cloud.client.call("s3", "create_bucket", Bucket="dear-box")
    versioning = {"Status": "Enabled"}
    cloud.client.call("s3", "put_bucket_versioning", Bucket="dear-box", VersioningConfiguration=versioning)
    kept, parts = (text for text, _ in bucket_warnings(cloud.client, "dear-box"))
    assert "the bill grows by $168 per month at 10 GB of checkpoints per hour" in kept
    assert "parts of interrupted uploads stay, are never listed and cost $0.023 per GB and month" in parts


def test_doctor_names_the_grant_for_a_disk_key_that_spot_machines_may_not_use(cloud: AwsCloud) -> None:
    assert disk_key_warnings(cloud.client) == []
    key = cloud.client.call("kms", "create_key")["KeyMetadata"]["Arn"]
    cloud.client.ec2("enable_ebs_encryption_by_default")
    cloud.client.ec2("modify_ebs_default_kms_key_id", KmsKeyId=key)
    try:
        ((text, fix),) = disk_key_warnings(cloud.client)
        assert f"disks are encrypted with `{key}`" in text
        argv = shlex.split(fix)
        assert argv[:3] == ["aws", "kms", "create-grant"]
        role, operations = argv[argv.index("--grantee-principal") + 1], argv[argv.index("--operations") + 1 :]
        cloud.client.call("kms", "create_grant", KeyId=key, GranteePrincipal=role, Operations=operations)
        assert disk_key_warnings(cloud.client) == []
    finally:
        cloud.client.ec2("disable_ebs_encryption_by_default")


@pytest.mark.full
def test_doctor_reports_missing_credentials(home: Home, cloud: AwsCloud) -> None:
    cloud.client.call("s3", "create_bucket", Bucket="healthy-box")
    home.workspace.remember_cloud("aws")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        home.environment.pop(name)
    (row,) = rows(home, AWS_EC2_METADATA_DISABLED="true")
    assert row["says"] == "no credentials for AWS were found"
    assert "aws configure" in row["fix"]
