"""Google's refusals, quoted from its documentation and from reports of other tools, become the right errors."""

from __future__ import annotations

import pytest

from outlast.clouds.gcp.errors import from_operation, from_response
from outlast.errors import BadRequest, CloudError, Denied, NoCapacity, NoQuota, OverQuota, PolicyDenied, Throttled


def response(message: str, reason: str = "") -> dict[str, object]:
    return {"error": {"message": message, "errors": [{"reason": reason}] if reason else []}}


@pytest.mark.parametrize(
    ("status", "message", "reason", "kind", "hint"),
    [
        (
            403,
            "The cloudresourcemanager.googleapis.com API requires a quota project, which is not set by default.",
            "forbidden",
            Denied,
            "set-quota-project",
        ),
        (
            412,
            "Constraint constraints/compute.vmExternalIpAccess violated for project acme.",
            "conditionNotMet",
            PolicyDenied,
            "compute.vmExternalIpAccess",
        ),
        (
            412,
            "Precondition check failed. Constraint constraints/gcp.resourceLocations violated.",
            "conditionNotMet",
            PolicyDenied,
            "gcp.resourceLocations",
        ),
        (
            400,
            "Constraint constraints/gcp.resourceLocations violated for [projects/acme] in [global].",
            "failedPrecondition",
            PolicyDenied,
            "gcp.resourceLocations",
        ),
        (
            412,
            'Operation denied by custom org policies: ["customConstraints/custom.onlyN2D": "Only N2D is allowed."]',
            "conditionNotMet",
            PolicyDenied,
            "`custom.onlyN2D`",
        ),
        (
            400,
            'Operation denied by custom org policy: ["customConstraints/custom.label": "A label is missing."]',
            "failedPrecondition",
            PolicyDenied,
            "`custom.label`",
        ),
        (412, "Multiple constraints were violated. See details.", "conditionNotMet", PolicyDenied, "its policies"),
        (412, "Invalid fingerprint.", "conditionNotMet", Throttled, ""),
        (
            403,
            "Quota 'NVIDIA_T4_GPUS' exceeded.  Limit: 1.0 in region us-east1.",
            "quotaExceeded",
            OverQuota,
            "request more",
        ),
        (403, "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally.", "quotaExceeded", NoQuota, "GPUS_ALL_REGIONS"),
        (403, "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 4.0 globally.", "quotaExceeded", OverQuota, "request more"),
        (400, "Requested disk size cannot be smaller than the image size (50 GB)", "invalid", BadRequest, ""),
    ],
)
def test_a_refused_request(status: int, message: str, reason: str, kind: type[CloudError], hint: str) -> None:
    found = from_response(status, response(message, reason), "creating m")
    assert type(found) is kind or (kind is Throttled and isinstance(found, Throttled))
    assert " ".join(message.split()) in found.message, "Google's own text is quoted"
    assert hint in found.hint


def test_several_constraints_are_named_by_the_details() -> None:
    texts = [f"Constraint constraints/compute.{name} violated for project acme." for name in ("requireShieldedVm", "x")]
    errors = [{"reason": "conditionNotMet", "message": text} for text in texts]
    doc = {"error": {"message": "Multiple constraints were violated. See details.", "errors": errors}}
    found = from_response(412, doc, "creating m")
    assert isinstance(found, PolicyDenied)
    assert all(text in found.message for text in texts)
    assert "`compute.requireShieldedVm`" in found.hint


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", NoCapacity),
        ("UNSUPPORTED_OPERATION", NoCapacity),
        ("insufficientCapacity", NoCapacity),
        ("RESOURCE_OPERATION_RATE_EXCEEDED", Throttled),
        ("RESOURCE_NOT_FOUND", CloudError),
    ],
)
def test_a_failed_operation(code: str, kind: type[CloudError]) -> None:
    found = from_operation({"error": {"errors": [{"code": code, "message": "no"}]}}, "creating m")
    assert isinstance(found, kind)
