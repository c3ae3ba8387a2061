"""Checks of `outlast doctor` on an account: rights of the user and of both roles, bucket, disk key, quotas."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from outlast.clouds.aws.client import AwsClient
from outlast.clouds.aws.errors import Doc
from outlast.clouds.aws.setup import MACHINE, POLICY, SUPERVISOR, AwsSetup, lifecycle_rules
from outlast.clouds.checks import Finding, kept_forever, parts_stay
from outlast.errors import BadRequest, CloudError, Denied, NotFound

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
    ("L-7212CCBC", "spot machines with A100 (P4) and older (P3, P2)"),
    ("L-C4BD4855", "spot machines with H100 or newer (P5)"),
)
# The price of a GB in S3 for a month, in dollars.
_STORED_USD = 0.023
# The operations of a key that EC2 needs for an encrypted disk.
_KEY_OPERATIONS = (
    *("Decrypt", "Encrypt", "GenerateDataKey", "GenerateDataKeyWithoutPlaintext", "CreateGrant", "DescribeKey"),
    *("ReEncryptFrom", "ReEncryptTo"),
)


def missing(client: AwsClient, profiles: Mapping[str, str], *, bucket: str = "") -> list[Finding]:
    """Return the missing rights and instance profiles, each with its fix. Raises a CloudError.

    `profiles` are the names of the instance profiles of machines and supervisors, each with its description.
    """
    setup = AwsSetup(client, bucket=bucket)
    found: list[Finding] = []
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
        with contextlib.suppress(Denied):  # a user may lack the right to read roles; the first launch reports them
            found += _profile_findings(setup, name, whose)
    return found


def _profile_findings(setup: AwsSetup, name: str, whose: str) -> list[Finding]:
    """Check that an instance profile exists and that its role has the rights that `outlast setup aws` grants."""
    fix = "`outlast setup aws --apply`"
    try:
        profile = setup.client.call("iam", "get_instance_profile", InstanceProfileName=name)["InstanceProfile"]
    except NotFound:
        return [(f"the instance profile of {whose}, `{name}`, does not exist", fix)]
    if not profile["Roles"]:
        return [(f"the instance profile of {whose}, `{name}`, has no role", fix)]
    role = str(profile["Roles"][0]["RoleName"])
    if role not in (MACHINE, SUPERVISOR):
        return []  # a role of the user's choice may have its rights from any policy
    needed = _actions(setup.machine_rights() if role == MACHINE else setup.supervisor_rights())
    try:
        policy = setup.client.call("iam", "get_role_policy", RoleName=role, PolicyName=POLICY)["PolicyDocument"]
    except NotFound:
        policy = {"Statement": []}
    lacks = sorted(needed - _actions(policy["Statement"]))
    text = f"the role of {whose}, `{role}`, lacks {', '.join(f'`{name}`' for name in lacks)}"
    return [(text, fix)] if lacks else []


def _actions(statements: list[Doc]) -> set[str]:
    """Return every pair of an action and a resource that statements allow."""
    return {f"{action} on {resource}" for one in statements for action in one["Action"] for resource in one["Resource"]}


# The bucket and the disks


def bucket_warnings(client: AwsClient, bucket: str) -> list[Finding]:
    """Return the settings of a bucket that cost money without use, each with its fix. Raises a CloudError."""
    url, found = f"s3://{bucket}", list[Finding]()
    try:
        rules = lifecycle_rules(client, bucket)
        versioning = client.call("s3", "get_bucket_versioning", Bucket=bucket).get("Status", "")
    except (NotFound, Denied):
        return []  # the check of the workspace reports it
    on = [rule for rule in rules if rule.get("Status") == "Enabled"]
    if versioning == "Enabled" and not any("NoncurrentVersionExpiration" in rule for rule in on):
        text = kept_forever(url, usd_per_gb_month=_STORED_USD)
        found.append((text, "suspend versioning, or add a lifecycle rule that expires noncurrent versions"))
    if not any("AbortIncompleteMultipartUpload" in rule for rule in on):
        text = parts_stay(url, usd_per_gb_month=_STORED_USD)
        found.append((text, "add a lifecycle rule with AbortIncompleteMultipartUpload after 1 day"))
    return found


def disk_key_warnings(client: AwsClient) -> list[Finding]:
    """Return a finding if spot machines cannot use the key that encrypts every new disk. Raises a CloudError."""
    with contextlib.suppress(Denied, NotFound, BadRequest):
        if not client.ec2("get_ebs_encryption_by_default").get("EbsEncryptionByDefault"):
            return []
        key = str(client.ec2("get_ebs_default_kms_key_id").get("KmsKeyId", ""))
        if not key or key.endswith("alias/aws/ebs"):
            return []  # Amazon's own key needs no grant
        account = str(client.call("sts", "get_caller_identity")["Account"])
        role = f"arn:aws:iam::{account}:role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot"
        grants = client.call("kms", "list_grants", KeyId=key).get("Grants", [])
        if any(grant.get("GranteePrincipal") == role for grant in grants):
            return []
        text = f"disks are encrypted with `{key}`, which spot machines may not use: they end at once"
        operations = " ".join(_KEY_OPERATIONS)
        fix = f"aws kms create-grant --key-id {key} --grantee-principal {role} --operations {operations}"
        return [(text, fix)]
    return []


def spot_quota_of(type: str) -> str:
    """Return Amazon's code of the quota for spot machines of an instance type; empty if we do not know it."""
    family = type.partition(".")[0]
    if family.startswith("p5"):
        return "L-C4BD4855"
    if family.startswith(("p2", "p3", "p4")):
        return "L-7212CCBC"
    if family.startswith(("g", "vt")):
        return "L-3819A6DF"
    return "L-34B43A08" if family[:1] in "acdhimrtz" and not family.startswith("inf") else ""


def has_no_spot_quota(client: AwsClient, type: str) -> bool:
    """Return whether the account may have no spot machine of an instance type at all; False if that is unknown."""
    if not (code := spot_quota_of(type)):
        return False
    with contextlib.suppress(CloudError):
        answer = client.call("service-quotas", "get_service_quota", ServiceCode="ec2", QuotaCode=code)
        return float(answer["Quota"]["Value"]) == 0
    return False


def quota_warnings(client: AwsClient) -> list[Finding]:
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
