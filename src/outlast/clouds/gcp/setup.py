"""What a project needs before outlast runs in it: said, checked, and made. Gives the least rights that do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec

from outlast.clouds.gcp.client import Client
from outlast.clouds.gcp.errors import AlreadyExists, Doc, Stale
from outlast.errors import CloudError, Denied, NotFound

APIS = (
    "compute.googleapis.com",
    "storage.googleapis.com",
    "secretmanager.googleapis.com",
    "iam.googleapis.com",
    "cloudresourcemanager.googleapis.com",
    "cloudbilling.googleapis.com",
)
ACCOUNT = "outlast-machine"
ROLE = "outlastMachine"
# A machine deletes itself, and with it its disk, when nobody else does.
ROLE_PERMISSIONS = ("compute.instances.delete", "compute.disks.delete")
_BUCKET_ROLE = "roles/storage.objectUser"
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


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a project needs: in words, as a command of gcloud, and how it is made."""

    what: str
    command: str
    make: Callable[[], None]


class Setup:
    def __init__(self, client: Client, *, bucket: str = "", location: str = "us") -> None:
        self.client = client
        self.bucket = bucket or f"{client.project}-outlast"
        self.location = location

    @property
    def account(self) -> str:
        return f"{ACCOUNT}@{self.client.project}.iam.gserviceaccount.com"

    def parts(self) -> list[Part]:
        """In the order in which they must be made."""
        project = self.client.project
        permissions = ",".join(ROLE_PERMISSIONS)
        member = f"--member=serviceAccount:{self.account}"
        return [
            Part(
                what="the APIs that outlast speaks to",
                command=f"gcloud services enable {' '.join(APIS)} --project={project}",
                make=self._enable,
            ),
            Part(
                what="a bucket for workspaces, closed to the public",
                command=f"gcloud storage buckets create gs://{self.bucket} --location={self.location}"
                f" --uniform-bucket-level-access --public-access-prevention --project={project}",
                make=self._make_bucket,
            ),
            Part(
                what="an account for the machines",
                command=f"gcloud iam service-accounts create {ACCOUNT} --project={project}",
                make=self._make_account,
            ),
            Part(
                what="a role that allows a machine to delete itself, and nothing else",
                command=f"gcloud iam roles create {ROLE} --permissions={permissions} --project={project}",
                make=self._make_role,
            ),
            Part(
                what="that role for the account",
                command=f"gcloud projects add-iam-policy-binding {project} {member}"
                f" --role=projects/{project}/roles/{ROLE}",
                make=self._bind_role,
            ),
            Part(
                what="the objects of the bucket for the account",
                command=f"gcloud storage buckets add-iam-policy-binding gs://{self.bucket} {member}"
                f" --role={_BUCKET_ROLE}",
                make=self._bind_bucket,
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

    def _make_account(self) -> None:
        body = {"accountId": ACCOUNT, "serviceAccount": {"displayName": "machines of outlast"}}
        with contextlib.suppress(AlreadyExists):
            self.client.call("iam", "POST", f"v1/projects/{self.client.project}/serviceAccounts", body=body)

    def _make_role(self) -> None:
        role = {"title": "outlast machine", "includedPermissions": list(ROLE_PERMISSIONS), "stage": "GA"}
        with contextlib.suppress(AlreadyExists):
            path = f"v1/projects/{self.client.project}/roles"
            self.client.call("iam", "POST", path, body={"roleId": ROLE, "role": role})

    def _bind_role(self) -> None:
        path = f"v1/projects/{self.client.project}"

        def get() -> Doc:
            return self.client.call("cloudresourcemanager", "POST", f"{path}:getIamPolicy", body={}).doc

        def put(policy: Doc) -> None:
            self.client.call("cloudresourcemanager", "POST", f"{path}:setIamPolicy", body={"policy": policy})

        self._bind(get, put, f"projects/{self.client.project}/roles/{ROLE}")

    def _bind_bucket(self) -> None:
        def get() -> Doc:
            return self.client.call("storage", "GET", f"b/{self.bucket}/iam").doc

        def put(policy: Doc) -> None:
            self.client.call("storage", "PUT", f"b/{self.bucket}/iam", body=policy)

        self._bind(get, put, _BUCKET_ROLE)

    def _bind(self, get: Callable[[], Doc], put: Callable[[Doc], None], role: str) -> None:
        """Add the account to a policy, from the beginning when somebody else changed it meanwhile."""
        member = f"serviceAccount:{self.account}"
        for left in range(_TRIES, 0, -1):
            policy = get()
            bindings = [dict(one) for one in policy.get("bindings", [])]
            if any(one.get("role") == role and member in one.get("members", []) for one in bindings):
                return
            try:
                put({**policy, "bindings": [*bindings, {"role": role, "members": [member]}]})
                return
            except Stale:
                if left == 1:
                    raise


def missing(client: Client, account: str) -> list[tuple[str, str]]:
    """What is missing, each with how to get it. Raises a CloudError when not even that can be found out."""
    found: list[tuple[str, str]] = []
    apply = "`outlast setup gcp --apply`"
    query = {"filter": "state:ENABLED", "pageSize": 200, "fields": "services/name,nextPageToken"}
    with contextlib.suppress(Denied, NotFound):  # whoever may not list them may still use them
        services = client.call("serviceusage", "GET", f"v1/projects/{client.project}/services", query=query).doc
        on = {str(one["name"]).rpartition("/")[2] for one in services.get("services", [])}
        if off := [name for name in APIS if name not in on and name != "cloudbilling.googleapis.com"]:
            found.append((f"these APIs are off: {', '.join(off)}", apply))
    body = {"permissions": sorted(PERMISSIONS)}
    with contextlib.suppress(NotFound):
        path = f"v1/projects/{client.project}:testIamPermissions"
        have = set(client.call("cloudresourcemanager", "POST", path, body=body).doc.get("permissions", []))
        for name in sorted(set(PERMISSIONS) - have):
            found.append(
                (f"you lack `{name}`, to {PERMISSIONS[name]}", "ask an owner of the project for a role with it")
            )
    try:
        client.call("iam", "GET", f"v1/projects/{client.project}/serviceAccounts/{account}")
    except NotFound:
        found.append((f"the account of the machines, {account}, does not exist", apply))
    except CloudError:
        pass  # seen when the first machine is launched as it
    return found
