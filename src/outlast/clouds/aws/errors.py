"""Translates Amazon's error codes into our errors."""

from __future__ import annotations

from typing import Any

from outlast.errors import (
    AlreadyExists,
    BadRequest,
    CloudError,
    CloudUnreachable,
    Denied,
    NoCapacity,
    NoQuota,
    NotFound,
    OverQuota,
    Throttled,
)

Doc = dict[str, Any]

QUOTAS = "https://console.aws.amazon.com/servicequotas/home/services/ec2/quotas"

# `Unsupported`: this zone lacks the type, but another one may have it.
_CAPACITY = {
    *("InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientReservedInstanceCapacity"),
    *("InsufficientCapacity", "UnfulfillableCapacity", "SpotMaxPriceTooLow", "Unsupported"),
    *("InsufficientFreeAddressesInSubnet", "InsufficientVolumeCapacity", "ReservationCapacityExceeded"),
}
_QUOTA = {
    *("MaxSpotInstanceCountExceeded", "VcpuLimitExceeded", "InstanceLimitExceeded", "VolumeLimitExceeded"),
    *("MaxIOPSLimitExceeded", "SecurityGroupLimitExceeded", "ResourceLimitExceeded", "ParameterLimitExceeded"),
    *(
        "MaxSpotFleetRequestCountExceeded",
        "LimitExceeded",
        "FleetLimitExceeded",
        "SnapshotLimitExceeded",
        "AMIQuotaExceeded",
    ),
}
_THROTTLED = {
    *("RequestLimitExceeded", "Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled"),
    *("TooManyRequestsException", "SlowDown", "BandwidthLimitExceeded", "SnapshotCreationPerVolumeRateExceeded"),
    *("EC2ThrottledException", "PriorRequestNotComplete"),
}
_DENIED = {
    *("UnauthorizedOperation", "AccessDenied", "AccessDeniedException", "AuthFailure", "Blocked", "OptInRequired"),
    *("InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch", "ExpiredToken"),
    *(
        "ExpiredTokenException",
        "RequestExpired",
        "403",
        "BucketAlreadyExists",
        "MissingAuthenticationToken",
    ),
}
_PASSING = {"InternalError", "InternalFailure", "Unavailable", "ServiceUnavailable", "ServerInternal", "RequestTimeout"}
_MISSING = {"ParameterNotFound", "NoSuchEntity", "NoSuchBucket", "NoSuchResourceException", "404"}
_MISSING |= {"NoSuchLifecycleConfiguration"}
# Resources that a launch names right after they were created.
_LATE = {"InvalidLaunchTemplateName.NotFoundException", "InvalidLaunchTemplateId.NotFound", "InvalidGroup.NotFound"}
_NO_LINKED_ROLE = "ServiceLinkedRoleCreationNotPermitted"
_TOKEN_SPENT = {"IdempotentInstanceTerminated", "IdempotentParameterMismatch"}


class NoFleets(OverQuota):
    """The account may have no more fleets; a new one may have none at all."""


class UnknownProfile(BadRequest):
    """EC2 does not know the instance profile. A new one is unknown for some seconds."""

    # Whether the idempotency token is used up: a fleet without instances was created, and would be returned again.
    spent_token = False


class UnknownResource(NotFound):
    """EC2 does not know a launch template or security group. A new one is unknown for some seconds."""

    spent_token = False


class TokenSpent(BadRequest):
    """The idempotency token belongs to a terminated machine, or to a different request."""


def from_code(code: str, message: str, *, status: int = 400) -> CloudError:
    """Return our error for a code. Unknown codes are permanent, unless the status is a server error."""
    text = f"{message.rstrip('.')} ({code})"
    if code == "InvalidParameterValue" and "Invalid IAM Instance Profile" in message:
        return UnknownProfile(text, hint="`outlast setup aws --apply` creates the profiles")
    if code in _LATE:
        return UnknownResource(text)
    if code == "MaxFleetCountExceeded":
        return NoFleets(text, hint=f"request more EC2 fleets at {QUOTAS}")
    if code == "PendingVerification":
        return OverQuota(text, hint="Amazon verifies new accounts and regions within hours; the run waits")
    # A fleet reports it in the text of another error.
    if _NO_LINKED_ROLE in code or _NO_LINKED_ROLE in message:
        return Denied(text, hint="`outlast setup aws --apply` creates Amazon's role for spot machines")
    if code == "InvalidFleetConfiguration" and "not supported in your requested Availability Zone" in message:
        return NoCapacity(text, hint="the next zone is tried")
    if code == "VPCIdNotSpecified":
        hint = "the region has no default VPC; create one: `aws ec2 create-default-vpc --region REGION`"
        return BadRequest(text, hint=hint)
    if code == "VcpuLimitExceeded" and "limit of 0 " in message:
        return NoQuota(text, hint=f"request vCPUs at {QUOTAS}, or use another region or cloud")
    for codes, kind, hint in (
        (_CAPACITY, NoCapacity, "the next zone is tried"),
        (_QUOTA, OverQuota, "request more at Service Quotas, or use another region or cloud"),
        (_THROTTLED, Throttled, "try again in a moment"),
        (_DENIED, Denied, "check the credentials and their rights: docs/aws.md lists the required ones"),
        (_PASSING, CloudUnreachable, "try again in a moment"),
    ):
        if code in codes or (kind is Denied and code.startswith("AuthFailure.")):
            return kind(text, hint=hint)
    if code in _TOKEN_SPENT:
        return TokenSpent(text)
    if (
        code.endswith(("NotFound", ".Unknown", "NotFoundException", "NotFoundFault", ".Unavailable"))
        or code in _MISSING
    ):
        return NotFound(text)
    exists = (".Duplicate", "AlreadyExists", "AlreadyExistsException", "AlreadyExistsFault", "TargetConflict")
    if code.endswith(exists) or code == "BucketAlreadyOwnedByYou":
        return AlreadyExists(text)
    return CloudUnreachable(text, hint="try again in a moment") if status >= 500 else BadRequest(text)


def from_fleet_errors(errors: list[Doc]) -> CloudError:
    """Return the error to act on among those of a fleet, whose answer has status 200.

    A stockout must not hide missing rights or throttling.
    """
    found = [from_code(str(one.get("ErrorCode", "")), str(one.get("ErrorMessage", ""))) for one in errors]
    for kind in (Denied, Throttled, NoCapacity, OverQuota):
        for error in found:
            if isinstance(error, kind):
                return error
    return found[0] if found else NoCapacity("EC2 launched no instance and gave no reason")
