"""What Amazon's refusals mean: the one place where its codes become our types."""

from __future__ import annotations

from typing import Any

from outlast.errors import BadRequest, CloudError, CloudUnreachable, Denied, NoCapacity, NotFound, OverQuota, Throttled

Doc = dict[str, Any]

# `Unsupported` is a type that this zone does not have: another zone may.
_CAPACITY = {
    *("InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientReservedInstanceCapacity"),
    *("InsufficientCapacity", "UnfulfillableCapacity", "SpotMaxPriceTooLow", "Unsupported"),
    *("InsufficientFreeAddressesInSubnet", "InsufficientVolumeCapacity"),
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
        "PendingVerification",
    ),
}
_PASSING = {"InternalError", "InternalFailure", "Unavailable", "ServiceUnavailable", "ServerInternal", "RequestTimeout"}
_MISSING = {"ParameterNotFound", "NoSuchEntity", "NoSuchBucket", "NoSuchResourceException", "404"}
_NO_TOKEN_ANY_MORE = {"IdempotentInstanceTerminated", "IdempotentParameterMismatch"}


class TokenSpent(BadRequest):
    """The token stands for a machine that is gone, or for a request that was another."""


class AlreadyExists(BadRequest):
    """Somebody was first."""


def sort(code: str, message: str, *, status: int = 400) -> CloudError:
    """The error of ours that stands for it; what is unknown is permanent, unless the server says it is at fault."""
    text = f"{message.rstrip('.')} ({code})"
    for codes, kind, hint in (
        (_CAPACITY, NoCapacity, "the next zone is tried"),
        (_QUOTA, OverQuota, "ask for more at Service Quotas, or let it run elsewhere"),
        (_THROTTLED, Throttled, "try again in a moment"),
        (_DENIED, Denied, "check the credentials and what they may do: docs/aws.md lists the rights"),
        (_PASSING, CloudUnreachable, "try again in a moment"),
    ):
        if code in codes:
            return kind(text, hint=hint)
    if code in _NO_TOKEN_ANY_MORE:
        return TokenSpent(text)
    if (
        code.endswith(("NotFound", ".Unknown", "NotFoundException", "NotFoundFault", ".Unavailable"))
        or code in _MISSING
    ):
        return NotFound(text)
    there = (".Duplicate", "AlreadyExists", "AlreadyExistsException", "AlreadyExistsFault", "TargetConflict")
    if code.endswith(there) or code == "BucketAlreadyOwnedByYou":
        return AlreadyExists(text)
    return CloudUnreachable(text, hint="try again in a moment") if status >= 500 else BadRequest(text)


def first(errors: list[Doc]) -> CloudError:
    """Of the errors inside an answer that says 200, the one to act on: a wait or a quota hides behind no stockout."""
    sorted_out = [sort(str(one.get("ErrorCode", "")), str(one.get("ErrorMessage", ""))) for one in errors]
    for kind in (Denied, Throttled, NoCapacity, OverQuota):
        for error in sorted_out:
            if isinstance(error, kind):
                return error
    return sorted_out[0] if sorted_out else NoCapacity("the fleet is empty, and no reason was given")
