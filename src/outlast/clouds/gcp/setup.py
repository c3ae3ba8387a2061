"""The set-up of a project: its steps, with least privilege."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable

import msgspec

from outlast.clouds.cloud import SetupStep
from outlast.clouds.gcp.client import GcpClient
from outlast.clouds.gcp.errors import Doc, ServiceDisabled, Stale, from_response
from outlast.errors import AlreadyExists, BadRequest, CloudError, CloudUnreachable, Denied

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
# A cheap request of each API that no step of the set-up uses.
_PROBES = {
    "compute": "projects/{project}",
    "secretmanager": "v1/projects/{project}/secrets",
    "file": "v1/projects/{project}/locations/-/instances",
    "sqladmin": "v1/projects/{project}/instances",
}
# Needed for prices, volumes and databases only.
OPTIONAL = APIS[-3:]
_BUCKET_ROLE = "roles/storage.objectUser"
ACT_AS = "roles/iam.serviceAccountUser"
# APIs and accounts take up to three minutes to take effect; mostly some seconds.
_LATE_TRIES = 40
_PAUSE_S_MIN = 0.25


class ServiceAccount(msgspec.Struct, frozen=True, kw_only=True):
    """A service account with a custom role that has only the permissions it uses."""

    name: str
    what: str
    role: str
    allows: str
    permissions: tuple[str, ...]
    # Permissions without which less is reported. Google may not allow them in custom roles.
    optional: tuple[str, ...] = ()


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
        "compute.zoneOperations.get",
        "compute.projects.get",
        "secretmanager.secrets.delete",
    ),
    optional=(
        "compute.advice.capacity",
        "compute.instances.getSerialPortOutput",
        *(f"compute.{scope}Operations.list" for scope in ("zone", "region", "global")),
    ),
)
_TRIES = 5


def default_bucket(client: GcpClient) -> str:
    return f"{client.project}-outlast"


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
        self.bucket = bucket or default_bucket(client)
        self.location = location

    def email(self, account: ServiceAccount) -> str:
        return f"{account.name}@{self.client.project}.iam.gserviceaccount.com"

    def steps(self) -> list[SetupStep]:
        """Return the steps, in the order in which they must be applied. They wait for effects that come late."""
        return [msgspec.structs.replace(step, apply=lambda step=step: self._apply_late(step)) for step in self._steps()]

    def _apply_late(self, step: SetupStep) -> None:
        """Apply a step, and repeat it until Google knows the resources of the earlier steps."""
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
                self._pause(left)

    def _pause(self, left: int) -> None:
        """Wait before the next try: a moment at first, later `pause_s`."""
        time.sleep(min(self.pause_s, _PAUSE_S_MIN * 2 ** (_LATE_TRIES - left)))

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
                    f" --role={ACT_AS} --project={project}",
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
                    # Separate commands: a project may not support some of them.
                    *(
                        f"gcloud iam roles update {account.role} --add-permissions={name} --project={project}"
                        for name in account.optional
                    ),
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
            self._pause(left)
            operation = self.client.call("serviceusage", "GET", f"v1/{operation['name']}").doc
        if problem := operation.get("error"):
            code = int(problem.get("code", 400))
            raise from_response(403 if code == 7 else 400, {"error": problem}, "enabling the APIs")
        for api, path in _PROBES.items():
            self._await_api(api, path.format(project=self.client.project))

    def _await_api(self, api: str, path: str) -> None:
        """Wait until an API answers: it refuses requests for up to some minutes after it was enabled."""
        for left in range(_LATE_TRIES, -1, -1):
            try:
                self.client.call(api, "GET", path)
            except ServiceDisabled:
                if not left:
                    raise
                if left == _LATE_TRIES:
                    self.report(f"waiting until the API {api} takes effect")
                self._pause(left)
                continue
            except CloudError:
                pass  # it answers
            return

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
        """Create the role, without permissions that Google does not allow in custom roles."""
        names = [*account.permissions, *account.optional]
        try:
            self._put_role(account, names)
        except BadRequest as problem:
            known = self._testable()
            left_out = [name for name in names if name not in known]
            if not left_out or set(left_out) == set(names):
                raise
            self.report(f"left out of role `{account.role}`: {', '.join(left_out)} ({problem.message})")
            self._put_role(account, [name for name in names if name in known])

    def _put_role(self, account: ServiceAccount, permissions: list[str]) -> None:
        """Create the role, or update it: a role from an earlier version may have other permissions."""
        path = f"v1/projects/{self.client.project}/roles"
        role = {"title": f"outlast: {account.what}", "includedPermissions": permissions, "stage": "GA"}
        try:
            self.client.call("iam", "POST", path, body={"roleId": account.role, "role": role})
        except AlreadyExists:
            query = {"updateMask": "includedPermissions"}
            self.client.call("iam", "PATCH", f"{path}/{account.role}", query=query, body=role)

    def _testable(self) -> set[str]:
        """Return the permissions that custom roles of this project may have. About ten requests."""
        body: Doc = {"fullResourceName": f"//cloudresourcemanager.googleapis.com/projects/{self.client.project}"}
        body["pageSize"] = 1000
        found: set[str] = set()
        while True:
            page = self.client.call("iam", "POST", "v1/permissions:queryTestablePermissions", body=body).doc
            for one in page.get("permissions", []):
                if one.get("customRolesSupportLevel") != "NOT_SUPPORTED":
                    found.add(str(one["name"]))
            if not page.get("nextPageToken"):
                return found
            body["pageToken"] = page["nextPageToken"]

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

        self._bind(get, put, SUPERVISOR, ACT_AS)

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
