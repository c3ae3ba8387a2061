"""Conditions of the real AWS that `moto` does not have: answers that lag behind, refusals, security groups.

Every delay is a number of requests; the hour for which terminated instances are listed passes by a clock that a test
sets forward.
"""

from __future__ import annotations

import re
import time
from typing import Any
from xml.etree import ElementTree

import msgspec

from outlast.testing.motofaults import FaultAnswer, empty_fleet, refusal
from outlast_gcp_emulator.delays import Delays

_LAUNCHES = ("RunInstances", "CreateFleet")
_GPU_TYPE = re.compile(r"(g|gr|p|trn|inf)\d")
_GPU_QUOTAS = ("L-3819A6DF", "L-7212CCBC", "L-C4BD4855")
_MACHINE_KEY = "Credential=ASIATESTING/"
_NO_VPC = ("VPCIdNotSpecified", "No default VPC for this user")


class MotoConditions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The default is moto as it is."""

    # Lists of instances by filters that lack a new instance, and requests with its id that do not find it.
    list_delay: int = 0
    find_delay: int = 0
    # Lists of security groups by filters that lack a new one.
    group_delay: int = 0
    # Launches that do not know a new instance profile, and fleets that do not know a new launch template.
    profile_delay: int = 0
    template_delay: int = 0
    # Requests of machines for a new bucket that are refused, because their rights have no effect yet.
    grant_delay: int = 0
    # Processors of machines with GPUs; None: no limit.
    gpu_quota: int | None = None
    default_vpc: bool = True
    # Instances for which EC2 has room; None: no limit. A fleet without a minimum gets a part of what it requests.
    room: int | None = None
    # Machines that have addresses (mode `root`) reach each other only if their group admits itself.
    groups: bool = False
    # Requests that show a terminated instance as `shutting-down`.
    ending_delay: int = 0
    # How long terminated instances are listed, and how long they keep their tags; None: forever.
    terminated_s: float | None = None
    tagged_s: float | None = None
    # The regions that the account has enabled; empty: all that moto has.
    regions: tuple[str, ...] = ()


# A new account, on the day on which it is set up.
REAL = MotoConditions(
    list_delay=2,
    find_delay=1,
    group_delay=1,
    profile_delay=1,
    template_delay=1,
    grant_delay=2,
    gpu_quota=0,
    groups=True,
    ending_delay=2,
    terminated_s=3600.0,
    tagged_s=300.0,
    regions=("us-east-1", "us-east-2", "eu-west-1"),
)


class MotoSurroundings(Delays):
    """The current conditions, the delays that are not over, and a clock that only tests set forward."""

    def __init__(self) -> None:
        super().__init__()
        self.now = MotoConditions()
        self._ahead_s = 0.0

    def advance(self, seconds: float) -> None:
        self._ahead_s += seconds

    def clock(self) -> float:
        return time.time() + self._ahead_s

    # Requests

    def refuses(self, action: str, params: dict[str, str], profile: str, *, region: str) -> FaultAnswer | None:
        """Return the answer to a request that EC2 refuses under these conditions; else None."""
        if self.now.regions and region not in self.now.regions:
            text = "AWS was not able to validate the provided access credentials"  # EC2's answer in a disabled region
            return refusal("AuthFailure", text, status=401)
        if action == "DescribeInstances":
            for id in _ids(params):
                if self.is_late(("find", id)):
                    return refusal("InvalidInstanceID.NotFound", f"The instance ID '{id}' does not exist")
        if action == "CreateSecurityGroup" and not self.now.default_vpc and "VpcId" not in params:
            return refusal(*_NO_VPC)
        if action == "CreateFleet":
            for key, name in params.items():
                if key.endswith("LaunchTemplateName") and self.is_late(("template", name)):
                    text = f"The specified launch template, with template name {name}, does not exist."
                    return refusal("InvalidLaunchTemplateName.NotFoundException", text)
        if action in _LAUNCHES and (why := self._refuses_launch(action, params, profile)) is not None:
            return empty_fleet(*why) if action == "CreateFleet" else refusal(*why)
        return None

    def _refuses_launch(self, action: str, params: dict[str, str], profile: str) -> tuple[str, str] | None:
        if params.get("DryRun") == "true":
            return None
        if not self.now.default_vpc:
            return _NO_VPC
        if profile and self.is_late(("profile", profile)):
            text = f"Value ({profile}) for parameter iamInstanceProfile.name is invalid."
            return "InvalidParameterValue", f"{text} Invalid IAM Instance Profile name"
        types = [value for key, value in params.items() if key.rpartition(".")[2] == "InstanceType"]
        if self.now.gpu_quota == 0 and any(_GPU_TYPE.match(type) for type in types):
            if action == "CreateFleet":
                return "MaxSpotInstanceCountExceeded", "Max spot instance count exceeded"
            text = (
                "You have requested more vCPU capacity than your current vCPU limit of 0 allows for the instance bucket"
                " that the specified instance type belongs to. Please visit"
                " http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit."
            )
            return "VcpuLimitExceeded", text
        return None

    def quota(self, code: str, usual: float) -> float:
        """Return the value of a service quota."""
        return usual if self.now.gpu_quota is None or code not in _GPU_QUOTAS else float(self.now.gpu_quota)

    def refuses_object(self, scope: str, method: str, path: str) -> FaultAnswer | None:
        """Return the answer to a request of a machine for a bucket to which it has no effective rights; else None."""
        bucket, _, key = path.lstrip("/").partition("/")
        if method == "PUT" and not key:
            self.delay(("grant", bucket), self.now.grant_delay)
        if _MACHINE_KEY not in scope or not self.is_late(("grant", bucket)):
            return None
        text = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
        return FaultAnswer(403, text.encode(), (("Content-Type", "application/xml"),))

    # Answers

    def created(self, action: str, params: dict[str, str], answer: FaultAnswer, instances: list[str]) -> None:
        """Begin the delays of new resources, and of instances that end."""
        for id in instances:
            self.delay(("list", id), self.now.list_delay)
            self.delay(("find", id), self.now.find_delay)
        if action == "TerminateInstances" and answer.status < 300:
            for id in _ids(params):
                self.delay(("ending", id), self.now.ending_delay)
        if action == "CreateLaunchTemplate" and answer.status < 300:
            self.delay(("template", params["LaunchTemplateName"]), self.now.template_delay)
        if action == "CreateSecurityGroup" and answer.status < 300:
            found = ElementTree.fromstring(answer.body).findtext("{*}groupId")
            self.delay(("group", found), self.now.group_delay)

    def without_late(self, action: str, params: dict[str, str], answer: FaultAnswer) -> FaultAnswer:
        """Return a list without the resources, and the ends of instances, that it does not show yet."""
        if answer.status >= 300:
            return answer
        if action == "DescribeInstances":
            answer = self._still_ending(answer)
        if _ids(params):
            return answer
        if action == "DescribeInstances":
            return self._filtered(answer, "reservationSet/item/instancesSet", "instanceId", "list")
        if action == "DescribeRegions" and self.now.regions:
            return self._enabled(answer)
        if action == "DescribeVpcs" and not self.now.default_vpc:
            return _without_default_vpc(answer)
        if action == "DescribeSecurityGroups":
            return self._filtered(answer, "securityGroupInfo", "groupId", "group")
        return answer

    def _still_ending(self, answer: FaultAnswer) -> FaultAnswer:
        root = ElementTree.fromstring(answer.body)
        ElementTree.register_namespace("", root.tag.partition("}")[0].lstrip("{"))
        changed = False
        for item in root.findall("{*}reservationSet/{*}item/{*}instancesSet/{*}item"):
            name, code = item.find("{*}instanceState/{*}name"), item.find("{*}instanceState/{*}code")
            if name is None or code is None or name.text != "terminated":
                continue
            if self.is_late(("ending", item.findtext("{*}instanceId"))):
                name.text, code.text, changed = "shutting-down", "32", True
        return _with_body(answer, root) if changed else answer

    def _enabled(self, answer: FaultAnswer) -> FaultAnswer:
        root = ElementTree.fromstring(answer.body)
        ElementTree.register_namespace("", root.tag.partition("}")[0].lstrip("{"))
        for items in root.findall("{*}regionInfo"):
            for item in [one for one in items if one.findtext("{*}regionName") not in self.now.regions]:
                items.remove(item)
        return _with_body(answer, root)

    def _filtered(self, answer: FaultAnswer, path: str, field: str, kind: str) -> FaultAnswer:
        root = ElementTree.fromstring(answer.body)
        ElementTree.register_namespace("", root.tag.partition("}")[0].lstrip("{"))
        removed = False
        for items in root.findall("/".join(f"{{*}}{name}" for name in path.split("/"))):
            for item in list(items):
                if self.is_late((kind, item.findtext(f"{{*}}{field}"))):
                    items.remove(item)
                    removed = True
        return _with_body(answer, root) if removed else answer


def _with_body(answer: FaultAnswer, root: ElementTree.Element) -> FaultAnswer:
    body = ElementTree.tostring(root)
    kept = [(name, value) for name, value in answer.headers if name.lower() != "content-length"]
    return answer._replace(body=body, headers=(*kept, ("Content-Length", str(len(body)))))


def _without_default_vpc(answer: FaultAnswer) -> FaultAnswer:
    root = ElementTree.fromstring(answer.body)
    ElementTree.register_namespace("", root.tag.partition("}")[0].lstrip("{"))
    for items in root.findall("{*}vpcSet"):
        for item in [one for one in items if one.findtext("{*}isDefault") == "true"]:
            items.remove(item)
    return answer._replace(body=ElementTree.tostring(root))


def _ids(params: dict[str, str]) -> list[str]:
    return [value for key, value in params.items() if key.startswith(("InstanceId", "GroupId"))]


def admits_itself(group: Any) -> bool:
    """Return whether a security group of `moto` has a rule for its own members."""
    return any(rule.source_group.get("GroupId") == group.id for rule in group.ingress_rules)
