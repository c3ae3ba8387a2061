"""Permissions and predefined roles that the emulator knows: those that outlast, gcloud and Google's guides use."""

from __future__ import annotations

_COMPUTE = {
    "instances": (
        "create delete get list start stop setLabels setMetadata setServiceAccount setTags getSerialPortOutput"
    ),
    "disks": "create delete get list setLabels resize use",
    "images": "create delete get getFromFamily list setLabels useReadOnly",
    "subnetworks": "get list use useExternalIp",
    "projects": "get",
    **dict.fromkeys(("zones", "regions", "machineTypes", "acceleratorTypes", "networks"), "get list"),
    **{f"{scope}Operations": "get list" for scope in ("zone", "region", "global")},
}
_OTHERS = {
    "secretmanager.secrets": "create delete get list",
    "secretmanager.versions": "access add list destroy",
    "iam.serviceAccounts": "actAs get list",
    "storage.objects": "create delete get list update",
    "storage.buckets": "create get list update",
}


def _named(kinds: dict[str, str], start: str = "") -> set[str]:
    return {f"{start}{kind}.{verb}" for kind, verbs in kinds.items() for verb in verbs.split()}


# Newer permissions, such as `compute.advice.capacity`, are missing here, as in custom roles of some projects.
PERMISSIONS = _named(_COMPUTE, "compute.") | _named(_OTHERS)

PREDEFINED = {
    "storage.objectUser": {name for name in PERMISSIONS if name.startswith("storage.objects.")},
    "iam.serviceAccountUser": {"iam.serviceAccounts.actAs", "iam.serviceAccounts.get", "iam.serviceAccounts.list"},
    "secretmanager.secretAccessor": {"secretmanager.versions.access"},
    "compute.admin": {name for name in PERMISSIONS if name.startswith("compute.")},
}
