"""What a project needs before outlast runs in it: said, checked, and made. Gives the least rights that do."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Mapping

import msgspec

from outlast.clouds.gcp.client import GcpClient
from outlast.clouds.gcp.errors import AlreadyExists, Doc, Stale
from outlast.errors import CloudError, Denied, NotFound

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
# Prices, volumes, databases: who does without them need not have them on.
OPTIONAL = APIS[-3:]
_BUCKET_ROLE = "roles/storage.objectUser"
_ACT_AS = "roles/iam.serviceAccountUser"


class ServiceAccount(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who is no person: a name, and a role of its own that allows no more than it does."""

    name: str
    what: str
    role: str
    allows: str
    permissions: tuple[str, ...]


MACHINE = ServiceAccount(
    name="outlast-machine",
    what="the machines",
    role="outlastMachine",
    # A machine deletes itself, and with it its disk, when nobody else does.
    allows="a machine to delete itself, and nothing else",
    permissions=("compute.instances.delete", "compute.disks.delete"),
)
SUPERVISOR = ServiceAccount(
    name="outlast-supervisor",
    what="the machine that supervises",
    role="outlastSupervisor",
    allows="to make, see and end machines, and to forget the secrets of runs that are over",
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
# What whoever runs `outlast` needs, and what for.
PERMISSIONS = {
    "compute.instances.create": "launch machines",
    "compute.instances.delete": "delete machines",
    "compute.instances.list": "see machines",
    "compute.instances.setMetadata": "let people log in",
    "compute.disks.create": "give machines a disk",
    "compute.images.create": "make images",
    "iam.serviceAccounts.actAs": "launch machines as their own account",
    "secretmanager.secrets.create": "keep the secrets of runs",
}
_TRIES = 5


class SetupStep(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a project needs: in words, as a command of gcloud, and how it is made."""

    what: str
    command: str
    make: Callable[[], None]


class GcpSetup:
    def __init__(self, client: GcpClient, *, bucket: str = "", location: str = "us", only: str = "") -> None:
        """`only`: how the names end of the machines that a machine may delete; without it, any of the project."""
        self.client = client
        self.only = only
        self.bucket = bucket or f"{client.project}-outlast"
        self.location = location

    def email(self, account: ServiceAccount) -> str:
        return f"{account.name}@{self.client.project}.iam.gserviceaccount.com"

    def parts(self) -> list[SetupStep]:
        """In the order in which they must be made."""
        project = self.client.project
        machine, supervisor = self.email(MACHINE), f"serviceAccount:{self.email(SUPERVISOR)}"
        return [
            SetupStep(
                what="the APIs that outlast speaks to",
                command=f"gcloud services enable {' '.join(APIS)} --project={project}",
                make=self._enable,
            ),
            SetupStep(
                what="a bucket for workspaces, closed to the public",
                command=f"gcloud storage buckets create gs://{self.bucket} --location={self.location}"
                f" --uniform-bucket-level-access --public-access-prevention --project={project}",
                make=self._make_bucket,
            ),
            *self._parts_of(MACHINE),
            *self._parts_of(SUPERVISOR),
            SetupStep(
                what="that the one that supervises may make machines that are the other, and nobody else",
                command=f"gcloud iam service-accounts add-iam-policy-binding {machine} --member={supervisor}"
                f" --role={_ACT_AS} --project={project}",
                make=self._bind_account,
            ),
        ]

    def _parts_of(self, account: ServiceAccount) -> list[SetupStep]:
        project, member = self.client.project, f"--member=serviceAccount:{self.email(account)}"
        return [
            SetupStep(
                what=f"an account for {account.what}",
                command=f"gcloud iam service-accounts create {account.name} --project={project}",
                make=lambda: self._make_account(account),
            ),
            SetupStep(
                what=f"a role that allows {account.allows}",
                command=f"gcloud iam roles create {account.role} --permissions={','.join(account.permissions)}"
                f" --project={project}",
                make=lambda: self._make_role(account),
            ),
            SetupStep(
                what="that role for the account",
                command=f"gcloud projects add-iam-policy-binding {project} {member}"
                f" --role=projects/{project}/roles/{account.role} --condition={self._condition_words(account)}",
                make=lambda: self._bind_role(account),
            ),
            SetupStep(
                what="the objects of the bucket for the account",
                command=f"gcloud storage buckets add-iam-policy-binding gs://{self.bucket} {member}"
                f" --role={_BUCKET_ROLE}",
                make=lambda: self._bind_bucket(account),
            ),
        ]

    def _enable(self) -> None:
        path = f"v1/projects/{self.client.project}/services:batchEnable"
        self.client.call("serviceusage", "POST", path, body={"serviceIds": list(APIS)})

    def _make_bucket(self) -> None:
        rules = {"uniformBucketLevelAccess": {"enabled": True}, "publicAccessPrevention": "enforced"}
        body = {"name": self.bucket, "location": self.location.upper(), "iamConfiguration": rules}
        with contextlib.suppress(AlreadyExists, Stale):
            self.client.call("storage", "POST", "b", query={"project": self.client.project}, body=body)
        # A bucket of that name may be somebody else's: names are the whole world's.
        try:
            self.client.call("storage", "GET", f"b/{self.bucket}", query={"fields": "name"})
        except Denied as problem:
            why = f"the bucket name `{self.bucket}` is taken by somebody else"
            raise Denied(why, hint="choose another with --bucket") from problem

    def _make_account(self, account: ServiceAccount) -> None:
        body = {"accountId": account.name, "serviceAccount": {"displayName": f"outlast: {account.what}"}}
        with contextlib.suppress(AlreadyExists):
            self.client.call("iam", "POST", f"v1/projects/{self.client.project}/serviceAccounts", body=body)

    def _make_role(self, account: ServiceAccount) -> None:
        """The role, with just these permissions: one of an earlier outlast may lack some, or have too many."""
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
            # Version 3 has conditions; without it those that others have set would come back without them.
            asked = {"options": {"requestedPolicyVersion": 3}}
            return self.client.call("cloudresourcemanager", "POST", f"{path}:getIamPolicy", body=asked).doc

        def put(policy: Doc) -> None:
            told = {"policy": {**policy, "version": 3}}
            self.client.call("cloudresourcemanager", "POST", f"{path}:setIamPolicy", body=told)

        role = f"projects/{self.client.project}/roles/{account.role}"
        self._bind(get, put, account, role, condition=self._condition(account))

    def _condition(self, account: ServiceAccount) -> Doc:
        """A machine cannot be told from its neighbours by its account. Those of other workspaces can, by their names:
        they end with the workspace, and so do their disks'."""
        if not self.only or account is not MACHINE:
            return {}
        return {"title": f"outlast{self.only}", "expression": f'resource.name.endsWith("{self.only}")'}

    def _condition_words(self, account: ServiceAccount) -> str:
        return shlex.quote(",".join(f"{key}={text}" for key, text in self._condition(account).items()) or "None")

    def _bind_bucket(self, account: ServiceAccount) -> None:
        path = f"b/{self.bucket}/iam"

        def get() -> Doc:
            return self.client.call("storage", "GET", path, query={"optionsRequestedPolicyVersion": 3}).doc

        def put(policy: Doc) -> None:
            self.client.call("storage", "PUT", path, body=policy)

        self._bind(get, put, account, _BUCKET_ROLE)

    def _bind_account(self) -> None:
        """Whoever supervises acts as the machines when it makes them, and as nobody else."""
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
        """Add the account to a policy, from the beginning when somebody else changed it meanwhile."""
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
    """What is missing, each with how to get it. Raises a CloudError when not even that can be found out."""
    found: list[tuple[str, str]] = []
    apply = "`outlast setup gcp --apply`"
    query = {"filter": "state:ENABLED", "pageSize": 200, "fields": "services/name,nextPageToken"}
    with contextlib.suppress(Denied, NotFound):  # whoever may not list them may still use them
        services = client.call("serviceusage", "GET", f"v1/projects/{client.project}/services", query=query).doc
        on = {str(one["name"]).rpartition("/")[2] for one in services.get("services", [])}
        if off := [name for name in APIS if name not in on and name not in OPTIONAL]:
            found.append((f"these APIs are off: {', '.join(off)}", apply))
    body = {"permissions": sorted(PERMISSIONS)}
    with contextlib.suppress(NotFound):
        path = f"v1/projects/{client.project}:testIamPermissions"
        have = set(client.call("cloudresourcemanager", "POST", path, body=body).doc.get("permissions", []))
        for name in sorted(set(PERMISSIONS) - have):
            found.append(
                (f"you lack `{name}`, to {PERMISSIONS[name]}", "ask an owner of the project for a role with it")
            )
    for email, whose in accounts.items():
        try:
            client.call("iam", "GET", f"v1/projects/{client.project}/serviceAccounts/{email}")
        except NotFound:
            found.append((f"the account of {whose}, {email}, does not exist", apply))
        except CloudError:
            pass  # seen when the first machine is launched as it
    return found
