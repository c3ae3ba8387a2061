"""Checks of `outlast doctor` on a project: APIs, rights of the user and of both service accounts, bucket, quotas."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

from outlast.clouds.checks import Finding, kept_deleted, parts_stay, replicated
from outlast.clouds.gcp.client import GcpClient, last
from outlast.clouds.gcp.errors import Doc, ServiceDisabled
from outlast.clouds.gcp.setup import ACT_AS, APIS, MACHINE, OPTIONAL, SUPERVISOR, ServiceAccount
from outlast.errors import CloudError, Denied, NotFound

_APPLY = "`outlast setup gcp --apply`"
# Permission that a user of outlast needs → its purpose.
PERMISSIONS = {
    "compute.instances.create": "launch machines",
    "compute.instances.delete": "delete machines",
    "compute.instances.list": "list machines",
    "compute.instances.setMetadata": "allow ssh logins",
    "compute.disks.create": "create disks of machines",
    "compute.images.create": "create images",
    "iam.serviceAccounts.actAs": "launch machines with their service account",
    "secretmanager.secrets.create": "store the secrets of runs",
}
_OBJECTS = tuple(f"storage.objects.{verb}" for verb in ("create", "get", "list", "delete"))
# Prices of Cloud Storage, in dollars: a GB stored for a month in a region, and a GB replicated in a multi-region.
_STORED_USD, _REPLICATED_USD = 0.020, 0.020


def missing(client: GcpClient, accounts: Mapping[str, ServiceAccount], *, bucket: str = "") -> list[Finding]:
    """Return the missing APIs, permissions and accounts, each with its fix. Raises a CloudError."""
    found: list[Finding] = []
    query = {"filter": "state:ENABLED", "pageSize": 200, "fields": "services/name,nextPageToken"}
    with contextlib.suppress(Denied, NotFound):  # a user may lack the right to list APIs but may use them
        services = client.call("serviceusage", "GET", f"v1/projects/{client.project}/services", query=query).doc
        on = {str(one["name"]).rpartition("/")[2] for one in services.get("services", [])}
        if off := [name for name in APIS if name not in on and name not in OPTIONAL]:
            found.append((f"these APIs are disabled: {', '.join(off)}", _APPLY))
    body = {"permissions": sorted(PERMISSIONS)}
    # The finding above names an API that is disabled.
    with contextlib.suppress(NotFound, ServiceDisabled):
        path = f"v1/projects/{client.project}:testIamPermissions"
        have = set(client.call("cloudresourcemanager", "POST", path, body=body).doc.get("permissions", []))
        for name in sorted(set(PERMISSIONS) - have):
            found.append(
                (f"permission `{name}` is missing, to {PERMISSIONS[name]}", "request it from an owner of the project")
            )
    for email, account in accounts.items():
        found += _account_findings(client, email, account, bucket)
    return found


# The service accounts. Google tests permissions for the caller only, so their rights are read from the policies.


def _account_findings(client: GcpClient, email: str, account: ServiceAccount, bucket: str) -> list[Finding]:
    try:
        client.call("iam", "GET", f"v1/projects/{client.project}/serviceAccounts/{email}")
        return _missing_rights(client, email, account, bucket)
    except NotFound:
        return [(f"the service account of {account.what}, {email}, does not exist", _APPLY)]
    except CloudError:
        return []  # a user may lack the right to read policies but may launch; the first launch reports a problem


def _missing_rights(client: GcpClient, email: str, account: ServiceAccount, bucket: str) -> list[Finding]:
    path = f"v1/projects/{client.project}:getIamPolicy"
    options = {"options": {"requestedPolicyVersion": 3}}
    roles = _roles(client.call("cloudresourcemanager", "POST", path, body=options).doc, email)
    granted = _permissions(client, roles)
    found = [
        (f"the account of {account.what}, {email}, lacks `{name}` in the policy of the project", _APPLY)
        for name in account.permissions
        if name not in granted
    ]
    if bucket:
        query = {"optionsRequestedPolicyVersion": 3}
        granted |= _permissions(
            client, _roles(client.call("storage", "GET", f"b/{bucket}/iam", query=query).doc, email)
        )
        if lacks := [name for name in _OBJECTS if name not in granted]:
            text = f"the account of {account.what}, {email}, lacks {_quoted(lacks)} in the policy of gs://{bucket}"
            found.append((text, f"`outlast setup gcp --apply --bucket {bucket}`"))
    if account is SUPERVISOR and "iam.serviceAccounts.actAs" not in granted:
        found += _missing_act_as(client, email)
    return found


def _missing_act_as(client: GcpClient, email: str) -> list[Finding]:
    machine = f"{MACHINE.name}@{client.project}.iam.gserviceaccount.com"
    path = f"v1/projects/{client.project}/serviceAccounts/{machine}:getIamPolicy"
    with contextlib.suppress(NotFound):  # an account of the user's choice has another policy
        if ACT_AS not in _roles(client.call("iam", "POST", path).doc, email):
            return [(f"the account {email} may not launch machines with the account {machine}", _APPLY)]
    return []


def _roles(policy: Doc, email: str) -> set[str]:
    member = f"serviceAccount:{email}"
    return {str(one["role"]) for one in policy.get("bindings", []) if member in one.get("members", [])}


def _permissions(client: GcpClient, roles: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for role in sorted(roles):
        with contextlib.suppress(NotFound):
            found |= set(client.call("iam", "GET", f"v1/{role}").doc.get("includedPermissions", []))
    return found


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


# The bucket


def bucket_warnings(client: GcpClient, bucket: str) -> list[Finding]:
    """Return the settings of a bucket that cost money without use, each with its fix. Raises a CloudError."""
    query = {"fields": "name,locationType,location,softDeletePolicy,lifecycle"}
    try:
        return costly(client.call("storage", "GET", f"b/{bucket}", query=query).doc)
    except (NotFound, Denied):
        return []  # the check of the workspace reports it


def costly(bucket: Doc) -> list[Finding]:
    """Return the settings of a bucket that cost money without use, each with its fix."""
    url = f"gs://{bucket['name']}"
    found: list[Finding] = []
    if kept_s := float(bucket.get("softDeletePolicy", {}).get("retentionDurationSeconds", 0)):
        text = kept_deleted(url, kept_s, usd_per_gb_month=_STORED_USD)
        found.append((text, f"gcloud storage buckets update {url} --clear-soft-delete"))
    if str(bucket.get("locationType", "region")) != "region":
        text = replicated(url, f"the multi-region {bucket.get('location')}", usd_per_gb=_REPLICATED_USD)
        found.append((text, "`outlast setup gcp --apply --bucket NAME --location REGION` creates a regional one"))
    rules = bucket.get("lifecycle", {}).get("rule", [])
    if not any(rule.get("action", {}).get("type") == "AbortIncompleteMultipartUpload" for rule in rules):
        text = parts_stay(url, usd_per_gb_month=_STORED_USD)
        found.append((text, "add the lifecycle rule AbortIncompleteMultipartUpload with age 1"))
    return found


# Quotas

# Quota → its subject. Regional quotas are reported only if they are in use: new projects have many at zero.
_METRICS = {
    "CPUS": "processors",
    "PREEMPTIBLE_CPUS": "processors of spot machines",
    "GPUS_ALL_REGIONS": "GPUs, in all regions together",
    "INSTANCES": "machines",
    "IN_USE_ADDRESSES": "machines with a public address",
    "DISKS_TOTAL_GB": "GB of disks",
    "SSD_TOTAL_GB": "GB of SSD disks",
}
_REQUEST = "request more at https://console.cloud.google.com/iam-admin/quotas"
_NEAR = 0.9


def gpu_quota_warnings(client: GcpClient) -> list[Finding]:
    """Return a finding if the project may have no GPU at all. Raises a CloudError."""
    project = client.compute("GET", "", query={"fields": "quotas(metric,limit,usage)"}).doc
    found = _tight([one for one in project.get("quotas", []) if one.get("metric") == "GPUS_ALL_REGIONS"], "the project")
    return [(text, _REQUEST) for text in found]


def quota_warnings(client: GcpClient) -> list[Finding]:
    """Return the quotas that are nearly used up, each with its fix. Sends two requests. Raises a CloudError."""
    try:
        project = client.compute("GET", "", query={"fields": "quotas(metric,limit,usage)"}).doc
    except ServiceDisabled:
        return []  # `missing` reports it
    found = _tight(project.get("quotas", []), "the project")
    fields = "items(name,quotas(metric,limit,usage)),nextPageToken"
    for page in client.pages("regions", query={"fields": fields}):
        for region in page.doc.get("items", []):
            found += _tight(region.get("quotas", []), last(region["name"]))
    return [(text, _REQUEST) for text in found]


def _tight(quotas: list[dict[str, object]], where: str) -> list[str]:
    found = []
    for quota in quotas:
        metric, limit, usage = str(quota.get("metric")), _number(quota.get("limit")), _number(quota.get("usage"))
        none_at_all = limit == 0 and metric == "GPUS_ALL_REGIONS"
        if metric in _METRICS and (none_at_all or (usage > 0 and usage >= limit * _NEAR)):
            found.append(f"quota {metric} ({_METRICS[metric]}) of {where}: {usage:g} of {limit:g} are used")
    return found


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
