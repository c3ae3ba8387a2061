"""The set-up of a project: its steps, with least privilege, and checks of rights and quotas."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Mapping

import msgspec

from outlast.clouds.cloud import SetupStep
from outlast.clouds.gcp.client import GcpClient, last
from outlast.clouds.gcp.errors import Doc, ServiceDisabled, Stale, from_response
from outlast.errors import AlreadyExists, BadRequest, CloudError, CloudUnreachable, Denied, NotFound

APIS = (
    "compute.googleapis.com",
    "storage.googleapis.com",
    "secretmanager.googleapis.com",
    "iam.googleapis.com",
    "cloudresourcemanager.googleapis.com",
    "cloudbilling.googleapis.com",
    "file.googleapis.com",
    "sqladmin.googleapis.com",
)
# Needed for prices, volumes and databases only.
OPTIONAL = APIS[-3:]
_BUCKET_ROLE = "roles/storage.objectUser"
_ACT_AS = "roles/iam.serviceAccountUser"
# Times a pause of 5 s: APIs and accounts take up to three minutes to take effect.
_LATE_TRIES = 36


class ServiceAccount(msgspec.Struct, frozen=True, kw_only=True):
    """A service account with a custom role that has only the permissions it uses."""

    name: str
    what: str
    role: str
    allows: str
    permissions: tuple[str, ...]


MACHINE = ServiceAccount(
    name="outlast-machine",
    what="the machines",
    role="outlastMachine",
    # A machine deletes itself and its disk if no supervisor does.
    allows="machines to delete themselves, and nothing else",
    permissions=("compute.instances.delete", "compute.disks.delete"),
)
SUPERVISOR = ServiceAccount(
    name="outlast-supervisor",
    what="the supervisor machine",
    role="outlastSupervisor",
    allows="creating, listing and deleting machines, and deleting the secrets of finished runs",
    permissions=(
        *(f"compute.instances.{verb}" for verb in ("create", "delete", "get", "list", "start", "stop")),
        *(f"compute.instances.set{what}" for what in ("Labels", "Metadata", "ServiceAccount", "Tags")),
        *(f"compute.disks.{verb}" for verb in ("create", "delete", "setLabels")),
        *(f"compute.images.{verb}" for verb in ("get", "getFromFamily", "list", "useReadOnly")),
        *(f"compute.subnetworks.{verb}" for verb in ("use", "useExternalIp")),
        *(f"compute.{kind}.list" for kind in ("zones", "machineTypes", "acceleratorTypes")),
        *(f"compute.zoneOperations.{verb}" for verb in ("get", "list")),
        "compute.advice.capacity",
        "compute.projects.get",
        "secretmanager.secrets.delete",
    ),
)
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
_TRIES = 5


class GcpSetup:
    """The steps that prepare one project."""

    def __init__(
        self,
        client: GcpClient,
        *,
        bucket: str = "",
        location: str = "us-central1",
        only: str = "",
        report: Callable[[str], None] = lambda _: None,
        pause_s: float = 5.0,
    ) -> None:
        """Let machines delete only machines whose name ends with `only`; empty: all machines of the project."""
        self.report = report
        self.pause_s = pause_s
        self.client = client
        self.only = only
        self.bucket = bucket or f"{client.project}-outlast"
        self.location = location

    def email(self, account: ServiceAccount) -> str:
        return f"{account.name}@{self.client.project}.iam.gserviceaccount.com"

    def steps(self) -> list[SetupStep]:
        """Return the steps, in the order in which they must be applied. They wait for effects that come late."""
        return [msgspec.structs.replace(step, apply=lambda step=step: self._apply_late(step)) for step in self._steps()]

    def _apply_late(self, step: SetupStep) -> None:
        """Apply a step, again while Google does not know yet what an earlier step has created."""
        for left in range(_LATE_TRIES, -1, -1):
            try:
                step.apply()
                return
            except (ServiceDisabled, BadRequest) as problem:
                late = isinstance(problem, ServiceDisabled) or "does not exist" in problem.message
                if not late or not left:
                    raise
                if left == _LATE_TRIES:
                    self.report(f"waiting until Google knows the new APIs and accounts: {step.what}")
                time.sleep(self.pause_s)

    def _steps(self) -> list[SetupStep]:
        project = self.client.project
        machine, supervisor = self.email(MACHINE), f"serviceAccount:{self.email(SUPERVISOR)}"
        return [
            SetupStep(
                what="the APIs that outlast calls",
                commands=(f"gcloud services enable {' '.join(APIS)} --project={project}",),
                apply=self._enable,
            ),
            SetupStep(
                what="a bucket for workspaces, closed to the public",
                commands=(
                    f"gcloud storage buckets create gs://{self.bucket} --location={self.location}"
                    f" --uniform-bucket-level-access --public-access-prevention --soft-delete-duration=0"
                    f" --project={project}",
                ),
                apply=self._create_bucket,
            ),
            *self._steps_of(MACHINE),
            *self._steps_of(SUPERVISOR),
            SetupStep(
                what="the right of the supervisor's account to launch machines with the machines' account",
                commands=(
                    f"gcloud iam service-accounts add-iam-policy-binding {machine} --member={supervisor}"
                    f" --role={_ACT_AS} --project={project}",
                ),
                apply=self._bind_account,
            ),
        ]

    def _steps_of(self, account: ServiceAccount) -> list[SetupStep]:
        project, member = self.client.project, f"--member=serviceAccount:{self.email(account)}"
        return [
            SetupStep(
                what=f"an account for {account.what}",
                commands=(f"gcloud iam service-accounts create {account.name} --project={project}",),
                apply=lambda: self._create_account(account),
            ),
            SetupStep(
                what=f"a role that allows {account.allows}",
                commands=(
                    f"gcloud iam roles create {account.role} --permissions={','.join(account.permissions)}"
                    f" --project={project}",
                ),
                apply=lambda: self._create_role(account),
            ),
            SetupStep(
                what="that role for the account",
                commands=(
                    f"gcloud projects add-iam-policy-binding {project} {member}"
                    f" --role=projects/{project}/roles/{account.role} --condition={self._condition_argument(account)}",
                ),
                apply=lambda: self._bind_role(account),
            ),
            SetupStep(
                what="the objects of the bucket for the account",
                commands=(
                    f"gcloud storage buckets add-iam-policy-binding gs://{self.bucket} {member} --role={_BUCKET_ROLE}",
                ),
                apply=lambda: self._bind_bucket(account),
            ),
        ]

    def _enable(self) -> None:
        path = f"v1/projects/{self.client.project}/services:batchEnable"
        operation = self.client.call("serviceusage", "POST", path, body={"serviceIds": list(APIS)}).doc
        for left in range(_LATE_TRIES, -1, -1):
            if operation.get("done") or not operation.get("name"):
                break
            if not left:
                raise CloudUnreachable("the APIs were not enabled in time", hint="repeat the command in some minutes")
            time.sleep(self.pause_s)
            operation = self.client.call("serviceusage", "GET", f"v1/{operation['name']}").doc
        if problem := operation.get("error"):
            code = int(problem.get("code", 400))
            raise from_response(403 if code == 7 else 400, {"error": problem}, "enabling the APIs")

    def _create_bucket(self) -> None:
        rules = {"uniformBucketLevelAccess": {"enabled": True}, "publicAccessPrevention": "enforced"}
        body = {
            "name": self.bucket,
            "location": self.location.upper(),
            "iamConfiguration": rules,
            # Every pruned checkpoint would be billed for seven more days.
            "softDeletePolicy": {"retentionDurationSeconds": "0"},
            # A preempted upload leaves parts that are billed and never listed.
            "lifecycle": {"rule": [{"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": 1}}]},
        }
        with contextlib.suppress(AlreadyExists, Stale):
            self.client.call("storage", "POST", "b", query={"project": self.client.project}, body=body)
        # Bucket names are global, so another project may own this one.
        try:
            self.client.call("storage", "GET", f"b/{self.bucket}", query={"fields": "name"})
        except Denied as problem:
            why = f"the bucket name `{self.bucket}` is taken by another owner"
            raise Denied(why, hint="choose another with --bucket") from problem

    def _create_account(self, account: ServiceAccount) -> None:
        body = {"accountId": account.name, "serviceAccount": {"displayName": f"outlast: {account.what}"}}
        with contextlib.suppress(AlreadyExists):
            self.client.call("iam", "POST", f"v1/projects/{self.client.project}/serviceAccounts", body=body)

    def _create_role(self, account: ServiceAccount) -> None:
        """Create the role, or update it: a role from an earlier version may have other permissions."""
        path = f"v1/projects/{self.client.project}/roles"
        role = {"title": f"outlast: {account.what}", "includedPermissions": list(account.permissions), "stage": "GA"}
        try:
            self.client.call("iam", "POST", path, body={"roleId": account.role, "role": role})
        except AlreadyExists:
            query = {"updateMask": "includedPermissions"}
            self.client.call("iam", "PATCH", f"{path}/{account.role}", query=query, body=role)

    def _bind_role(self, account: ServiceAccount) -> None:
        path = f"v1/projects/{self.client.project}"

        def get() -> Doc:
            # Version 3 includes conditions; without it, writing the policy back would drop existing conditions.
            options = {"options": {"requestedPolicyVersion": 3}}
            return self.client.call("cloudresourcemanager", "POST", f"{path}:getIamPolicy", body=options).doc

        def put(policy: Doc) -> None:
            body = {"policy": {**policy, "version": 3}}
            self.client.call("cloudresourcemanager", "POST", f"{path}:setIamPolicy", body=body)

        role = f"projects/{self.client.project}/roles/{account.role}"
        self._bind(get, put, account, role, condition=self._condition(account))

    def _condition(self, account: ServiceAccount) -> Doc:
        """Return a condition on the names of machines and disks, which end with their workspace.

        All machines share one account, so it cannot separate workspaces.
        """
        if not self.only or account is not MACHINE:
            return {}
        return {"title": f"outlast{self.only}", "expression": f'resource.name.endsWith("{self.only}")'}

    def _condition_argument(self, account: ServiceAccount) -> str:
        return shlex.quote(",".join(f"{key}={text}" for key, text in self._condition(account).items()) or "None")

    def _bind_bucket(self, account: ServiceAccount) -> None:
        path = f"b/{self.bucket}/iam"

        def get() -> Doc:
            return self.client.call("storage", "GET", path, query={"optionsRequestedPolicyVersion": 3}).doc

        def put(policy: Doc) -> None:
            self.client.call("storage", "PUT", path, body=policy)

        self._bind(get, put, account, _BUCKET_ROLE)

    def _bind_account(self) -> None:
        """Let the supervisor's account act as the machines' account, and as no other."""
        path = f"v1/projects/{self.client.project}/serviceAccounts/{self.email(MACHINE)}"

        def get() -> Doc:
            return self.client.call("iam", "POST", f"{path}:getIamPolicy").doc

        def put(policy: Doc) -> None:
            self.client.call("iam", "POST", f"{path}:setIamPolicy", body={"policy": policy})

        self._bind(get, put, SUPERVISOR, _ACT_AS)

    def _bind(
        self,
        get: Callable[[], Doc],
        put: Callable[[Doc], None],
        account: ServiceAccount,
        role: str,
        *,
        condition: Doc | None = None,
    ) -> None:
        """Add the account to a policy; start over if another client changed it meanwhile."""
        wanted: Doc = {"role": role, **({"condition": condition} if condition else {})}
        member = f"serviceAccount:{self.email(account)}"
        for left in range(_TRIES, 0, -1):
            policy = get()
            bindings = [dict(one) for one in policy.get("bindings", [])]
            same = [one for one in bindings if (one.get("role"), one.get("condition")) == (role, condition or None)]
            if any(member in one.get("members", []) for one in same):
                return
            try:
                put({**policy, "bindings": [*bindings, {**wanted, "members": [member]}]})
                return
            except Stale:
                if left == 1:
                    raise


def missing(client: GcpClient, accounts: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the missing APIs, permissions and accounts, each with its fix. Raises a CloudError."""
    found: list[tuple[str, str]] = []
    apply = "`outlast setup gcp --apply`"
    query = {"filter": "state:ENABLED", "pageSize": 200, "fields": "services/name,nextPageToken"}
    with contextlib.suppress(Denied, NotFound):  # a user may lack the right to list APIs but may use them
        services = client.call("serviceusage", "GET", f"v1/projects/{client.project}/services", query=query).doc
        on = {str(one["name"]).rpartition("/")[2] for one in services.get("services", [])}
        if off := [name for name in APIS if name not in on and name not in OPTIONAL]:
            found.append((f"these APIs are disabled: {', '.join(off)}", apply))
    body = {"permissions": sorted(PERMISSIONS)}
    with contextlib.suppress(NotFound):
        path = f"v1/projects/{client.project}:testIamPermissions"
        have = set(client.call("cloudresourcemanager", "POST", path, body=body).doc.get("permissions", []))
        for name in sorted(set(PERMISSIONS) - have):
            found.append(
                (f"permission `{name}` is missing, to {PERMISSIONS[name]}", "request it from an owner of the project")
            )
    for email, whose in accounts.items():
        try:
            client.call("iam", "GET", f"v1/projects/{client.project}/serviceAccounts/{email}")
        except NotFound:
            found.append((f"the service account of {whose}, {email}, does not exist", apply))
        except CloudError:
            pass  # the first launch reports it
    return found


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


def quota_warnings(client: GcpClient) -> list[tuple[str, str]]:
    """Return the quotas that are nearly used up, each with its fix. Sends two requests. Raises a CloudError."""
    project = client.compute("GET", "", query={"fields": "quotas(metric,limit,usage)"}).doc
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
