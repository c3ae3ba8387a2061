"""Service accounts, roles, policies and enabled APIs of projects, for project set-up.

Roles and policies restrict no request; an API that is not enabled refuses requests if the conditions say so.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
from contextlib import AbstractContextManager

from outlast_gcp_emulator.compute.images import PUBLIC
from outlast_gcp_emulator.compute.refs import fingerprint, stable_number
from outlast_gcp_emulator.conditions import Surroundings
from outlast_gcp_emulator.environment import PROJECT
from outlast_gcp_emulator.errors import ApiError, invalid, not_found
from outlast_gcp_emulator.http_types import HttpRequest, HttpResponse, json_response
from outlast_gcp_emulator.json_records import Doc, JsonRecords
from outlast_gcp_emulator.permissions import PERMISSIONS, PREDEFINED
from outlast_gcp_emulator.router import Router
from outlast_gcp_emulator.tokens import service_account_key

_DONE = {"name": "operations/noop.DONE_OPERATION", "done": True}
# The APIs of this server, and those that a new project has.
_ALL = (
    *("cloudresourcemanager", "compute", "file", "iam", "oslogin", "secretmanager", "serviceusage"),
    *("sourcerepo", "sqladmin", "storage"),
)
_ALWAYS_ON = ["serviceusage.googleapis.com", "storage.googleapis.com"]
_MUST_BE_ON = ("compute", "iam", "cloudresourcemanager", "secretmanager", "file", "sqladmin")
_ACCOUNT = re.compile(r"serviceAccount:([^@]+@([^@]+)\.iam\.gserviceaccount\.com)")
_TYPES = "type.googleapis.com/google.api.serviceusage.v1."
_PROJECT = re.compile(r"[a-z][-a-z0-9:.]{0,61}[a-z0-9]")


class Identity:
    """Accounts, roles, policy and enabled APIs of each project, in `<project>.json`."""

    def __init__(self, folder: str, surroundings: Surroundings) -> None:
        self._records = JsonRecords(folder)
        self._surroundings = surroundings
        # Operations that enable APIs: the project and the APIs, by name.
        self._enabling: dict[str, tuple[str, list[str]]] = {}

    def add_to(self, router: Router) -> None:
        services = "/serviceusage/v1/projects/{project}/services"
        router.add("POST", f"{services}:batchEnable", self._enable)
        router.add("GET", services, self._services)
        router.add("POST", f"{services}/{{name}}:enable", self._enable)
        router.add("POST", f"{services}/{{name}}:disable", self._disable)
        router.add("GET", f"{services}/{{name}}", self._service)
        router.add("GET", "/serviceusage/v1/operations/{operation}", self._operation)
        iam = "/iam/v1/projects/{project}"
        account = f"{iam}/serviceAccounts/{{name}}"
        router.add_methods(f"{iam}/serviceAccounts", POST=self._create_account, GET=self._accounts)
        router.add_methods(f"{account}/keys", POST=self._create_key, GET=lambda request: json_response({"keys": []}))
        router.add_methods(account, GET=lambda request: self._get(request, "accounts"), DELETE=self._delete_account)
        router.add("POST", f"{account}:getIamPolicy", lambda request: json_response(self._account_policy(request)))
        router.add("POST", f"{account}:setIamPolicy", self._set_account_policy)
        router.add("POST", f"{iam}/roles", self._create_role)
        role = f"{iam}/roles/{{name}}"
        router.add_methods(role, PATCH=self._change_role, GET=lambda request: self._get(request, "roles"))
        router.add("GET", "/iam/v1/roles/{name}", self._predefined_role)
        router.add("POST", "/iam/v1/permissions:queryTestablePermissions", self._testable)
        policy = "/cloudresourcemanager/v1/projects/{project}"
        router.add("GET", "/cloudresourcemanager/v1/projects", self._projects)
        router.add("GET", policy, lambda request: json_response(_project(request.parts["project"])))
        router.add("POST", f"{policy}:getIamPolicy", self._get_policy)
        router.add("POST", f"{policy}:setIamPolicy", self._set_policy)
        router.add("POST", f"{policy}:testIamPermissions", self._test_permissions)

    def _name(self, request: HttpRequest) -> str:
        project, account = request.parts["project"], request.parts.get("name", "")
        if project == "-":
            # The address of an account contains its project.
            project = account.partition("@")[2].partition(".")[0]
        if not _PROJECT.fullmatch(project):
            raise invalid(f"invalid project name '{project}'")
        return project

    def _read(self, request: HttpRequest) -> Doc:
        return self._project(self._name(request))

    def _project(self, project: str) -> Doc:
        every = self._surroundings.now.api_delay is None
        services = [f"{name}.googleapis.com" for name in _ALL] if every else list(_ALWAYS_ON)
        new: Doc = {"accounts": {}, "roles": {}, "bindings": [], "services": services, "account_bindings": {}}
        return self._records.get(project) or new

    def _changing(self, request: HttpRequest) -> AbstractContextManager[Doc]:
        return self._records.changing(self._name(request), lambda: self._read(request))

    # Conditions

    def check_api(self, request: HttpRequest) -> None:
        """Raise ApiError if the API of a request is not enabled in its project, or was enabled a moment ago."""
        api = request.path.split("/")[1]
        if self._surroundings.now.api_delay is None or api not in _MUST_BE_ON or "project" not in request.parts:
            return
        project, service = self._name(request), f"{api}.googleapis.com"
        if project in PUBLIC:
            return  # images of Google's own projects are read on behalf of another project
        if service in self._project(project)["services"] and not self._surroundings.is_late(("api", project, service)):
            return
        number = stable_number(project)
        text = (
            f"{service} has not been used in project {number} before or it is disabled. Enable it by visiting"
            f" https://console.developers.google.com/apis/api/{service}/overview?project={number} then retry. If you"
            " enabled this API recently, wait a few minutes for the action to propagate to our systems and retry."
        )
        metadata = {"service": service, "consumer": f"projects/{number}"}
        raise ApiError(403, "accessNotConfigured", text, info=("SERVICE_DISABLED", metadata))

    def check_members(self, bindings: list[Doc]) -> None:
        """Raise ApiError if a policy contains a service account that does not exist, or exists since a moment ago."""
        if not self._surroundings.now.account_delay:
            return
        for member in sorted({member for binding in bindings for member in binding.get("members", [])}):
            if (found := _ACCOUNT.fullmatch(member)) is None:
                continue
            known = found[1] in self._project(found[2])["accounts"]
            if not known or self._surroundings.is_late(("account", found[1])):
                raise invalid(f"Service account {found[1]} does not exist.")

    # Accounts and roles

    def _get(self, request: HttpRequest, kind: str) -> HttpResponse:
        found = self._read(request)[kind].get(request.parts["name"])
        if found is None:
            raise not_found(f"Unknown {kind[:-1]} {request.parts['name']}")
        return json_response(found)

    def _add(self, request: HttpRequest, kind: str, key: str, doc: Doc) -> HttpResponse:
        with self._changing(request) as record:
            if key in record[kind]:
                raise ApiError(409, "alreadyExists", f"{kind[:-1]} {key} already exists")
            record[kind][key] = doc
        return json_response(doc)

    def _create_account(self, request: HttpRequest) -> HttpResponse:
        body, project = request.json(), request.parts["project"]
        email = f"{body.get('accountId', '')}@{project}.iam.gserviceaccount.com"
        doc = {
            "name": f"projects/{project}/serviceAccounts/{email}",
            "projectId": project,
            "uniqueId": str(stable_number(email)),
            "email": email,
            "displayName": str(body.get("serviceAccount", {}).get("displayName", "")),
        }
        made = self._add(request, "accounts", email, doc)
        self._surroundings.delay(("account", email), self._surroundings.now.account_delay)
        return made

    def _accounts(self, request: HttpRequest) -> HttpResponse:
        return json_response({"accounts": list(self._read(request)["accounts"].values())})

    def _delete_account(self, request: HttpRequest) -> HttpResponse:
        self._get(request, "accounts")
        with self._changing(request) as record:
            record["accounts"].pop(request.parts["name"], None)
        return json_response({})

    def _create_key(self, request: HttpRequest) -> HttpResponse:
        """Return a new key file for Google's clients, whose tokens come from this server."""
        self._get(request, "accounts")
        email, number = request.parts["name"], secrets.token_hex(20)
        project = email.partition("@")[2].partition(".")[0]
        key = {**service_account_key(request.access_url, project), "client_email": email, "private_key_id": number}
        doc = {
            "name": f"projects/{project}/serviceAccounts/{email}/keys/{number}",
            "privateKeyType": "TYPE_GOOGLE_CREDENTIALS_FILE",
            "privateKeyData": base64.b64encode(json.dumps(key).encode()).decode(),
            "keyAlgorithm": "KEY_ALG_RSA_2048",
            "keyOrigin": "GOOGLE_PROVIDED",
            "keyType": "USER_MANAGED",
        }
        return json_response(doc)

    def _predefined_role(self, request: HttpRequest) -> HttpResponse:
        name = request.parts["name"]
        if name not in PREDEFINED:
            raise not_found(f"The role named roles/{name} was not found.")
        return json_response({"name": f"roles/{name}", "includedPermissions": sorted(PREDEFINED[name]), "stage": "GA"})

    def _testable(self, request: HttpRequest) -> HttpResponse:
        body, names = request.json(), sorted(PERMISSIONS)
        start, count = int(body.get("pageToken") or 0), int(body.get("pageSize") or 100)
        page: Doc = {"permissions": [{"name": name, "stage": "GA"} for name in names[start : start + count]]}
        if start + count < len(names):
            page["nextPageToken"] = str(start + count)
        return json_response(page)

    def _create_role(self, request: HttpRequest) -> HttpResponse:
        _check_permissions(request.json().get("role", {}))
        body, name = request.json(), str(request.json().get("roleId", ""))
        doc = {**body.get("role", {}), "name": f"projects/{request.parts['project']}/roles/{name}"}
        return self._add(request, "roles", name, doc)

    def _change_role(self, request: HttpRequest) -> HttpResponse:
        self._get(request, "roles")
        _check_permissions(request.json())
        with self._changing(request) as record:
            role: Doc = record["roles"][request.parts["name"]]
            role |= request.json()
        return json_response(role)

    def _account_policy(self, request: HttpRequest) -> Doc:
        record, name = self._read(request), request.parts["name"]
        if name not in record["accounts"]:
            raise not_found(f"Unknown account {name}")
        return _policy(record["account_bindings"].get(name, []))

    def _set_account_policy(self, request: HttpRequest) -> HttpResponse:
        policy = request.json().get("policy", {})
        self.check_members(policy.get("bindings", []))
        with self._changing(request) as record:
            _check_etag(policy, self._account_policy(request))
            record["account_bindings"][request.parts["name"]] = policy.get("bindings", [])
        return json_response(self._account_policy(request))

    def _get_policy(self, request: HttpRequest) -> HttpResponse:
        return json_response(_policy(self._read(request)["bindings"]))

    def _set_policy(self, request: HttpRequest) -> HttpResponse:
        policy = request.json().get("policy", {})
        self.check_members(policy.get("bindings", []))
        with self._changing(request) as record:
            _check_etag(policy, _policy(record["bindings"]))
            record["bindings"] = policy.get("bindings", [])
        return json_response(_policy(record["bindings"]))

    def _test_permissions(self, request: HttpRequest) -> HttpResponse:
        # The caller owns this computer.
        return json_response({"permissions": request.json().get("permissions", [])})

    def _enable(self, request: HttpRequest) -> HttpResponse:
        names = [request.parts["name"]] if "name" in request.parts else request.json().get("serviceIds", [])
        project, conditions = self._name(request), self._surroundings.now
        if not conditions.enable_polls or set(names) <= set(self._read(request)["services"]):
            self._turn_on(project, names)
            return json_response(_DONE)
        name = f"operations/acf.p2-{stable_number(project)}-{secrets.token_hex(16)}"
        self._enabling[name] = (project, names)
        self._surroundings.delay(name, conditions.enable_polls)
        return json_response({"name": name})

    def _turn_on(self, project: str, names: list[str]) -> None:
        with self._records.changing(project, lambda: self._project(project)) as record:
            new = sorted(set(names) - set(record["services"]))
            record["services"] = sorted({*record["services"], *new})
        for name in new:
            self._surroundings.delay(("api", project, name), self._surroundings.now.api_delay)

    def _operation(self, request: HttpRequest) -> HttpResponse:
        """Return an operation that enables APIs. It is done when it was requested often enough."""
        name = f"operations/{request.parts['operation']}"
        if name not in self._enabling:
            raise not_found(f"Operation {name} was not found")
        if self._surroundings.is_late(name):
            return json_response({"name": name})
        project, names = self._enabling[name]
        self._turn_on(project, names)
        services = [_service(project, one, "ENABLED") for one in names]
        response = {"@type": f"{_TYPES}BatchEnableServicesResponse", "services": services}
        return json_response({"name": name, "done": True, "response": response})

    def _disable(self, request: HttpRequest) -> HttpResponse:
        with self._changing(request) as record:
            record["services"] = [name for name in record["services"] if name != request.parts["name"]]
        return json_response(_DONE)

    def _service(self, request: HttpRequest) -> HttpResponse:
        name = request.parts["name"]
        state = "ENABLED" if name in self._read(request)["services"] else "DISABLED"
        return json_response(_service(request.parts["project"], name, state))

    def _projects(self, request: HttpRequest) -> HttpResponse:
        names = sorted({PROJECT, *self._records.names()})
        return json_response({"projects": [_project(name) for name in names]})

    def _services(self, request: HttpRequest) -> HttpResponse:
        on = self._read(request)["services"]
        return json_response({"services": [_service(request.parts["project"], name, "ENABLED") for name in on]})


def _policy(bindings: list[Doc]) -> Doc:
    return {"version": 1, "bindings": bindings, "etag": fingerprint(bindings)}


def _check_etag(policy: Doc, current: Doc) -> None:
    if policy.get("etag", current["etag"]) != current["etag"]:
        raise ApiError(409, "aborted", "There were concurrent policy changes.")


def _check_permissions(role: Doc) -> None:
    for name in role.get("includedPermissions", []):
        if name not in PERMISSIONS:
            raise invalid(f"Permission {name} is not valid.")


def _service(project: str, name: str, state: str) -> Doc:
    parent = f"projects/{stable_number(project)}"
    return {"name": f"{parent}/services/{name}", "parent": parent, "state": state, "config": {"name": name}}


def _project(name: str) -> Doc:
    return {
        "projectId": name,
        "name": name,
        "projectNumber": str(stable_number(name)),
        "lifecycleState": "ACTIVE",
        "createTime": "2026-11-01T00:00:00.000Z",
    }
