"""The set-up of an account: its steps, with least privilege."""

from __future__ import annotations

import contextlib
import json
import shlex

from outlast.clouds.aws import security_groups
from outlast.clouds.aws.client import AwsClient
from outlast.clouds.aws.errors import Doc
from outlast.clouds.aws.secrets import PREFIX
from outlast.clouds.cloud import SetupStep
from outlast.errors import AlreadyExists, BadRequest, Denied, NotFound, OverQuota

MACHINE, SUPERVISOR, FIS = "outlast-machine", "outlast-supervisor", "outlast-fis"
POLICY = "outlast"
# Amazon's own roles, which spot machines need; they exist in accounts that have used spot before.
_LINKED = ("spot.amazonaws.com", "ec2fleet.amazonaws.com")
_READ = (
    *("ec2:Describe*", "ec2:GetConsoleOutput", "pricing:GetProducts", "servicequotas:GetServiceQuota"),
    "sts:GetCallerIdentity",
)
_CREATE = (
    *("ec2:RunInstances", "ec2:CreateFleet", "ec2:CreateLaunchTemplate", "ec2:CreateTags", "ec2:CreateSecurityGroup"),
    "ec2:AuthorizeSecurityGroupIngress",
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
                MACHINE, "ec2", "the machines, which may use the bucket and read their secrets", self.machine_rights()
            ),
            self._role(SUPERVISOR, "ec2", "the supervisor machine", self.supervisor_rights()),
            self._role(FIS, "fis", "`outlast preempt`, which may interrupt spot machines", self._fis()),
            SetupStep(
                what="a security group for the machines, which admits no address at first",
                commands=(
                    f"aws ec2 create-security-group --group-name {security_groups.GROUP} --region {self.client.region}"
                    f" --description '{security_groups.DESCRIPTION}'",
                ),
                apply=self._create_group,
            ),
        ]

    def _create_group(self) -> None:
        security_groups.group_of_machines(self.client)

    # The bucket

    def _location(self) -> Doc:
        if self.client.region == "us-east-1":
            return {}  # S3 rejects its name here
        return {"CreateBucketConfiguration": {"LocationConstraint": self.client.region}}

    def _bucket(self) -> tuple[str, ...]:
        location = f" --create-bucket-configuration LocationConstraint={self.client.region}" if self._location() else ""
        closed = ",".join(f"{name}=true" for name in _CLOSED)
        rules = shlex.quote(json.dumps({"Rules": [ABORT_UPLOADS]}))
        return (
            f"aws s3api create-bucket --bucket {self.bucket} --region {self.client.region}{location}",
            f"aws s3api put-bucket-lifecycle-configuration --bucket {self.bucket} --lifecycle-configuration {rules}",
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
        if not lifecycle_rules(self.client, self.bucket):  # the rules of a user stay; `outlast doctor` checks them
            rules = {"Rules": [ABORT_UPLOADS]}
            call = "put_bucket_lifecycle_configuration"
            self.client.call("s3", call, Bucket=self.bucket, LifecycleConfiguration=rules)
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
        # Machines of other regions read them, too.
        arn = f"arn:aws:ssm:*:{self.account}:parameter{PREFIX}*"
        return _allow([f"ssm:{action}" for action in actions], [arn])

    def machine_rights(self) -> list[Doc]:
        """Return the rights of machines. They include no termination: a run's machine terminates by powering off."""
        return [*self._objects(), self._secrets("GetParameter")]

    def supervisor_rights(self) -> list[Doc]:
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
            f"aws iam put-role-policy --role-name {name} --policy-name {POLICY}"
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
            self.client.call("iam", "put_role_policy", RoleName=name, PolicyName=POLICY, PolicyDocument=allowing)
            if service == "ec2":
                self._create_profile(name)

        return SetupStep(what=f"a role for {whose}", commands=tuple(commands), apply=apply)

    def _create_profile(self, name: str) -> None:
        with contextlib.suppress(AlreadyExists):
            self.client.call("iam", "create_instance_profile", InstanceProfileName=name)
        # A profile holds one role, which an earlier call may have added.
        with contextlib.suppress(AlreadyExists, OverQuota):
            self.client.call("iam", "add_role_to_instance_profile", InstanceProfileName=name, RoleName=name)


def lifecycle_rules(client: AwsClient, bucket: str) -> list[Doc]:
    """Return the lifecycle rules of a bucket. Raises a CloudError."""
    try:
        answer = client.call("s3", "get_bucket_lifecycle_configuration", Bucket=bucket)
    except NotFound:
        return []
    return list(answer.get("Rules", []))


# A preempted upload leaves parts that are billed and never listed.
ABORT_UPLOADS: Doc = {
    "ID": "outlast: interrupted uploads",
    "Status": "Enabled",
    "Filter": {"Prefix": ""},
    "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
}
_CLOSED = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")


def _allow(actions: list[str], resources: list[str]) -> Doc:
    return {"Effect": "Allow", "Action": actions, "Resource": resources}
