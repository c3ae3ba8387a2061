"""What an account needs before outlast runs in it: said, checked, and made. Gives the least rights that do."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Callable

import msgspec

from outlast.clouds.aws import ssh_access
from outlast.clouds.aws.client import AwsClient
from outlast.clouds.aws.errors import AlreadyExists, Doc
from outlast.clouds.aws.secrets import PREFIX
from outlast.errors import BadRequest, Denied, NotFound, OverQuota

MACHINE, SUPERVISOR, FIS = "outlast-machine", "outlast-supervisor", "outlast-fis"
_POLICY = "outlast"
# Amazon's own roles, without which it launches no spot machine; whoever has used spot before has them.
_LINKED = ("spot.amazonaws.com", "ec2fleet.amazonaws.com")
_SEES = ("ec2:Describe*", "ec2:GetConsoleOutput", "pricing:GetProducts", "sts:GetCallerIdentity")
_MAKES = (
    *("ec2:RunInstances", "ec2:CreateFleet", "ec2:CreateLaunchTemplate", "ec2:CreateTags", "ec2:CreateSecurityGroup"),
)
# What is deleted, stopped and changed is ours alone: it carries our tag.
_ENDS = (
    *("ec2:TerminateInstances", "ec2:StopInstances", "ec2:StartInstances", "ec2:DeleteVolume", "ec2:DeleteFleets"),
)
_ENDS_UNTAGGED = ("ec2:DeleteLaunchTemplate", "ec2:CancelSpotInstanceRequests")


class SetupStep(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that an account needs: in words, as commands of `aws`, and how it is made."""

    what: str
    commands: tuple[str, ...]
    make: Callable[[], None]


class AwsSetup:
    def __init__(self, client: AwsClient, *, bucket: str = "") -> None:
        self.client = client
        self.account = str(client.call("sts", "get_caller_identity")["Account"])
        self.bucket = bucket or f"outlast-{self.account}-{client.region}"

    def parts(self) -> list[SetupStep]:
        """In the order in which they must be made."""
        links = tuple(f"aws iam create-service-linked-role --aws-service-name {name}" for name in _LINKED)
        return [
            SetupStep(
                what="a bucket for workspaces, closed to the public", commands=self._bucket(), make=self._make_bucket
            ),
            SetupStep(what="Amazon's own roles for spot machines", commands=links, make=self._make_links),
            self._role(
                MACHINE, "ec2", "the machines, which may use the bucket and read their secrets", self._machine()
            ),
            self._role(SUPERVISOR, "ec2", "the machine that supervises", self._supervisor()),
            self._role(FIS, "fis", "`outlast preempt`, which may interrupt spot machines", self._fis()),
            SetupStep(
                what="a security group for the machines, which admits nobody",
                commands=(
                    f"aws ec2 create-security-group --group-name {ssh_access.GROUP} --region {self.client.region}"
                    " --description 'machines of outlast: ssh from whoever was admitted'",
                ),
                make=lambda: void(ssh_access.group(self.client)),
            ),
        ]

    # The bucket

    def _place(self) -> Doc:
        if self.client.region == "us-east-1":
            return {}  # which S3 does not let anybody name
        return {"CreateBucketConfiguration": {"LocationConstraint": self.client.region}}

    def _bucket(self) -> tuple[str, ...]:
        place = f" --create-bucket-configuration LocationConstraint={self.client.region}" if self._place() else ""
        closed = ",".join(f"{name}=true" for name in _CLOSED)
        return (
            f"aws s3api create-bucket --bucket {self.bucket} --region {self.client.region}{place}",
            f"aws s3api put-public-access-block --bucket {self.bucket} --public-access-block-configuration {closed}",
        )

    def _make_bucket(self) -> None:
        taken = f"the bucket name `{self.bucket}` is taken by somebody else"
        try:
            with contextlib.suppress(AlreadyExists):
                self.client.call("s3", "create_bucket", Bucket=self.bucket, **self._place())
            # A bucket of that name may be somebody else's: names are the whole world's.
            self.client.call("s3", "head_bucket", Bucket=self.bucket, ExpectedBucketOwner=self.account)
        except Denied as problem:
            raise Denied(taken, hint="choose another with --bucket") from problem
        closed = dict.fromkeys(_CLOSED, True)
        self.client.call("s3", "put_public_access_block", Bucket=self.bucket, PublicAccessBlockConfiguration=closed)

    # The roles

    def _make_links(self) -> None:
        for name in _LINKED:
            # It is there already: IAM calls that invalid input.
            with contextlib.suppress(AlreadyExists, BadRequest):
                self.client.call("iam", "create_service_linked_role", AWSServiceName=name)

    def _objects(self) -> list[Doc]:
        place = f"arn:aws:s3:::{self.bucket}"
        return [
            _allow(["s3:GetObject", "s3:PutObject", "s3:DeleteObject"], [f"{place}/*"]),
            _allow(["s3:ListBucket"], [place]),
        ]

    def _secrets(self, *actions: str) -> Doc:
        place = f"arn:aws:ssm:{self.client.region}:{self.account}:parameter{PREFIX}*"
        return _allow([f"ssm:{action}" for action in actions], [place])

    def _machine(self) -> list[Doc]:
        """No right to end anything: a machine of a run is terminated when it switches itself off."""
        return [*self._objects(), self._secrets("GetParameter")]

    def _supervisor(self) -> list[Doc]:
        ours = {"StringLike": {"aws:ResourceTag/outlast-machine": "*"}}
        return [
            *self._objects(),
            self._secrets("GetParameter", "DeleteParameter"),
            _allow(["ssm:GetParameter"], ["arn:aws:ssm:*::parameter/aws/service/*"]),
            _allow([*_SEES, *_MAKES, *_ENDS_UNTAGGED], ["*"]),
            {**_allow(list(_ENDS), ["*"]), "Condition": ours},
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

        def make() -> None:
            with contextlib.suppress(AlreadyExists):
                self.client.call("iam", "create_role", RoleName=name, AssumeRolePolicyDocument=trusting)
            # Anew: that of an earlier outlast may lack a right, or have one too many.
            self.client.call("iam", "put_role_policy", RoleName=name, PolicyName=_POLICY, PolicyDocument=allowing)
            if service == "ec2":
                self._make_profile(name)

        return SetupStep(what=f"a role for {whose}", commands=tuple(commands), make=make)

    def _make_profile(self, name: str) -> None:
        with contextlib.suppress(AlreadyExists):
            self.client.call("iam", "create_instance_profile", InstanceProfileName=name)
        # A profile has one role, and has it already.
        with contextlib.suppress(AlreadyExists, OverQuota):
            self.client.call("iam", "add_role_to_instance_profile", InstanceProfileName=name, RoleName=name)


_CLOSED = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")


def _allow(actions: list[str], resources: list[str]) -> Doc:
    return {"Effect": "Allow", "Action": actions, "Resource": resources}


def void(_: object) -> None:
    """For what is made for its effect."""


# What whoever runs `outlast` needs, asked without doing it.
_ASKED: tuple[tuple[str, str, Doc], ...] = (
    ("describe_instances", "see machines", {}),
    ("describe_spot_price_history", "see what spot machines cost", {}),
    (
        "create_launch_template",
        "launch spot machines",
        {"LaunchTemplateName": "outlast-asks", "LaunchTemplateData": {}},
    ),
    ("run_instances", "launch machines", {"MinCount": 1, "MaxCount": 1, "InstanceType": "t3.micro"}),
)
# Quotas in processors: Amazon's code, what it is for.
_QUOTAS = (
    ("L-34B43A08", "spot machines without a GPU"),
    ("L-1216C47A", "on-demand machines without a GPU"),
    ("L-3819A6DF", "spot machines with a GPU (G and VT)"),
    ("L-7212CCBC", "spot machines with A100 or H100 (P4, P5)"),
)


def missing(client: AwsClient, profiles: dict[str, str]) -> list[tuple[str, str]]:
    """What is missing, each with how to get it. Raises a CloudError when not even that can be found out."""
    client.call("sts", "get_caller_identity")
    found: list[tuple[str, str]] = []
    for operation, what, parameters in _ASKED:
        try:
            client.ec2(operation, **parameters, DryRun=True)
        except Denied:
            action = "".join(word.capitalize() for word in operation.split("_"))
            found.append((f"you lack `ec2:{action}`, to {what}", "ask whoever administers the account for it"))
        except (BadRequest, NotFound):
            pass  # it would have worked, or only the parameters of the question are wrong
    for name, whose in profiles.items():
        try:
            client.call("iam", "get_instance_profile", InstanceProfileName=name)
        except NotFound:
            found.append((f"the instance profile of {whose}, `{name}`, does not exist", "`outlast setup aws --apply`"))
        except Denied:
            pass  # seen when the first machine is launched with it
    return found


def tight(client: AwsClient) -> list[tuple[str, str]]:
    """Quotas that let no machine through, in plain words."""
    found = []
    for code, what in _QUOTAS:
        try:
            answer = client.call("service-quotas", "get_service_quota", ServiceCode="ec2", QuotaCode=code)
        except (Denied, NotFound, BadRequest):
            continue  # whoever may not ask may still launch
        limit = float(answer["Quota"]["Value"])
        if limit < 2:
            place = f"in {client.region}"
            found.append(
                (f"the quota for {what} {place} is {limit:g} processors ({code})", "ask for more: Service Quotas")
            )
    return found
