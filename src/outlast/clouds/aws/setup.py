"""The set-up of an account: its steps, with least privilege, and checks of rights and quotas."""

from __future__ import annotations

import contextlib
import json
import shlex

from outlast.clouds.aws import ssh_access
from outlast.clouds.aws.client import AwsClient
from outlast.clouds.aws.errors import Doc
from outlast.clouds.aws.secrets import PREFIX
from outlast.clouds.cloud import SetupStep
from outlast.errors import AlreadyExists, BadRequest, Denied, NotFound, OverQuota

MACHINE, SUPERVISOR, FIS = "outlast-machine", "outlast-supervisor", "outlast-fis"
_POLICY = "outlast"
# Amazon's own roles, which spot machines need; they exist in accounts that have used spot before.
_LINKED = ("spot.amazonaws.com", "ec2fleet.amazonaws.com")
_READ = ("ec2:Describe*", "ec2:GetConsoleOutput", "pricing:GetProducts", "sts:GetCallerIdentity")
_CREATE = (
    *("ec2:RunInstances", "ec2:CreateFleet", "ec2:CreateLaunchTemplate", "ec2:CreateTags", "ec2:CreateSecurityGroup"),
)
# Allowed only on resources with our tag.
_DELETE = (
    *("ec2:TerminateInstances", "ec2:StopInstances", "ec2:StartInstances", "ec2:DeleteVolume", "ec2:DeleteFleets"),
)
_DELETE_UNTAGGED = ("ec2:DeleteLaunchTemplate", "ec2:CancelSpotInstanceRequests")


class AwsSetup:
    """The steps that prepare one account."""

    def __init__(self, client: AwsClient, *, bucket: str = "") -> None:
        self.client = client
        self.account = str(client.call("sts", "get_caller_identity")["Account"])
        self.bucket = bucket or f"outlast-{self.account}-{client.region}"

    def steps(self) -> list[SetupStep]:
        """Return the steps, in the order in which they must be applied."""
        links = tuple(f"aws iam create-service-linked-role --aws-service-name {name}" for name in _LINKED)
        return [
            SetupStep(
                what="a bucket for workspaces, closed to the public", commands=self._bucket(), apply=self._create_bucket
            ),
            SetupStep(what="Amazon's own roles for spot machines", commands=links, apply=self._create_links),
            self._role(
                MACHINE, "ec2", "the machines, which may use the bucket and read their secrets", self._machine()
            ),
            self._role(SUPERVISOR, "ec2", "the supervisor machine", self._supervisor()),
            self._role(FIS, "fis", "`outlast preempt`, which may interrupt spot machines", self._fis()),
            SetupStep(
                what="a security group for the machines, which admits no address at first",
                commands=(
                    f"aws ec2 create-security-group --group-name {ssh_access.GROUP} --region {self.client.region}"
                    f" --description '{ssh_access.DESCRIPTION}'",
                ),
                apply=self._create_group,
            ),
        ]

    def _create_group(self) -> None:
        ssh_access.group(self.client)

    # The bucket

    def _location(self) -> Doc:
        if self.client.region == "us-east-1":
            return {}  # S3 rejects its name here
        return {"CreateBucketConfiguration": {"LocationConstraint": self.client.region}}

    def _bucket(self) -> tuple[str, ...]:
        location = f" --create-bucket-configuration LocationConstraint={self.client.region}" if self._location() else ""
        closed = ",".join(f"{name}=true" for name in _CLOSED)
        return (
            f"aws s3api create-bucket --bucket {self.bucket} --region {self.client.region}{location}",
            f"aws s3api put-public-access-block --bucket {self.bucket} --public-access-block-configuration {closed}",
        )

    def _create_bucket(self) -> None:
        taken = f"the bucket name `{self.bucket}` is taken by another account"
        try:
            with contextlib.suppress(AlreadyExists):
                self.client.call("s3", "create_bucket", Bucket=self.bucket, **self._location())
            # Bucket names are global, so another account may own this one.
            self.client.call("s3", "head_bucket", Bucket=self.bucket, ExpectedBucketOwner=self.account)
        except Denied as problem:
            raise Denied(taken, hint="choose another with --bucket") from problem
        closed = dict.fromkeys(_CLOSED, True)
        self.client.call("s3", "put_public_access_block", Bucket=self.bucket, PublicAccessBlockConfiguration=closed)

    # The roles

    def _create_links(self) -> None:
        for name in _LINKED:
            # IAM reports an existing role as invalid input.
            with contextlib.suppress(AlreadyExists, BadRequest):
                self.client.call("iam", "create_service_linked_role", AWSServiceName=name)

    def _objects(self) -> list[Doc]:
        arn = f"arn:aws:s3:::{self.bucket}"
        return [
            _allow(["s3:GetObject", "s3:PutObject", "s3:DeleteObject"], [f"{arn}/*"]),
            _allow(["s3:ListBucket"], [arn]),
        ]

    def _secrets(self, *actions: str) -> Doc:
        arn = f"arn:aws:ssm:{self.client.region}:{self.account}:parameter{PREFIX}*"
        return _allow([f"ssm:{action}" for action in actions], [arn])

    def _machine(self) -> list[Doc]:
        """Return the rights of machines. They include no termination: a run's machine terminates by powering off."""
        return [*self._objects(), self._secrets("GetParameter")]

    def _supervisor(self) -> list[Doc]:
        ours = {"StringLike": {"aws:ResourceTag/outlast-machine": "*"}}
        return [
            *self._objects(),
            self._secrets("GetParameter", "DeleteParameter"),
            _allow(["ssm:GetParameter"], ["arn:aws:ssm:*::parameter/aws/service/*"]),
            _allow([*_READ, *_CREATE, *_DELETE_UNTAGGED], ["*"]),
            {**_allow(list(_DELETE), ["*"]), "Condition": ours},
            _allow(["iam:PassRole"], [f"arn:aws:iam::{self.account}:role/{MACHINE}"]),
        ]

    def _fis(self) -> list[Doc]:
        return [_allow(["ec2:SendSpotInstanceInterruptions", "ec2:DescribeInstances"], ["*"])]

    def _role(self, name: str, service: str, whose: str, statements: list[Doc]) -> SetupStep:
        trust = {**_allow(["sts:AssumeRole"], []), "Principal": {"Service": f"{service}.amazonaws.com"}}
        trust.pop("Resource")
        trusting, allowing = (json.dumps({"Version": "2012-10-17", "Statement": s}) for s in ([trust], statements))
        commands = [
            f"aws iam create-role --role-name {name} --assume-role-policy-document {shlex.quote(trusting)}",
            f"aws iam put-role-policy --role-name {name} --policy-name {_POLICY}"
            f" --policy-document {shlex.quote(allowing)}",
        ]
        if service == "ec2":
            commands += [
                f"aws iam create-instance-profile --instance-profile-name {name}",
                f"aws iam add-role-to-instance-profile --instance-profile-name {name} --role-name {name}",
            ]

        def apply() -> None:
            with contextlib.suppress(AlreadyExists):
                self.client.call("iam", "create_role", RoleName=name, AssumeRolePolicyDocument=trusting)
            # Replace it: the policy of an earlier version may have other rights.
            self.client.call("iam", "put_role_policy", RoleName=name, PolicyName=_POLICY, PolicyDocument=allowing)
            if service == "ec2":
                self._create_profile(name)

        return SetupStep(what=f"a role for {whose}", commands=tuple(commands), apply=apply)

    def _create_profile(self, name: str) -> None:
        with contextlib.suppress(AlreadyExists):
            self.client.call("iam", "create_instance_profile", InstanceProfileName=name)
        # A profile holds one role, which an earlier call may have added.
        with contextlib.suppress(AlreadyExists, OverQuota):
            self.client.call("iam", "add_role_to_instance_profile", InstanceProfileName=name, RoleName=name)


_CLOSED = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")


def _allow(actions: list[str], resources: list[str]) -> Doc:
    return {"Effect": "Allow", "Action": actions, "Resource": resources}


# Operation that a user of outlast needs, its purpose, and parameters for a dry run.
_DRY_RUNS: tuple[tuple[str, str, Doc], ...] = (
    ("describe_instances", "list machines", {}),
    ("describe_spot_price_history", "read the prices of spot machines", {}),
    (
        "create_launch_template",
        "launch spot machines",
        {"LaunchTemplateName": "outlast-asks", "LaunchTemplateData": {}},
    ),
    ("run_instances", "launch machines", {"MinCount": 1, "MaxCount": 1, "InstanceType": "t3.micro"}),
)
# Quotas in CPUs: Amazon's code, and its subject.
_QUOTAS = (
    ("L-34B43A08", "spot machines without a GPU"),
    ("L-1216C47A", "on-demand machines without a GPU"),
    ("L-3819A6DF", "spot machines with a GPU (G and VT)"),
    ("L-7212CCBC", "spot machines with A100 or H100 (P4, P5)"),
)


def missing(client: AwsClient, profiles: dict[str, str]) -> list[tuple[str, str]]:
    """Return the missing rights and instance profiles, each with its fix. Raises a CloudError."""
    client.call("sts", "get_caller_identity")
    found: list[tuple[str, str]] = []
    for operation, what, parameters in _DRY_RUNS:
        try:
            client.ec2(operation, **parameters, DryRun=True)
        except Denied:
            action = "".join(word.capitalize() for word in operation.split("_"))
            fix = "request it from an administrator of the account"
            found.append((f"permission `ec2:{action}` is missing, to {what}", fix))
        except (BadRequest, NotFound):
            pass  # the right exists: the dry run succeeded, or only its parameters are invalid
    for name, whose in profiles.items():
        try:
            client.call("iam", "get_instance_profile", InstanceProfileName=name)
        except NotFound:
            found.append((f"the instance profile of {whose}, `{name}`, does not exist", "`outlast setup aws --apply`"))
        except Denied:
            pass  # the first launch reports it
    return found


def quota_warnings(client: AwsClient) -> list[tuple[str, str]]:
    """Return the quotas that allow no machine, each with its fix."""
    found = []
    for code, what in _QUOTAS:
        try:
            answer = client.call("service-quotas", "get_service_quota", ServiceCode="ec2", QuotaCode=code)
        except (Denied, NotFound, BadRequest):
            continue  # a user may lack the right to read quotas but may launch
        limit = float(answer["Quota"]["Value"])
        if limit < 2:
            text = f"the quota for {what} in {client.region} is {limit:g} CPUs ({code})"
            found.append((text, "request more at Service Quotas"))
    return found
