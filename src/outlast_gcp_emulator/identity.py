"""Service accounts, roles, policies and enabled APIs of projects, for project set-up. They restrict no request."""

from __future__ import annotations

import base64
import json
import re
import secrets
from contextlib import AbstractContextManager

from outlast_gcp_emulator.compute.refs import fingerprint, stable_number
from outlast_gcp_emulator.environment import PROJECT
from outlast_gcp_emulator.errors import ApiError, invalid, not_found
from outlast_gcp_emulator.http_types import HttpRequest, HttpResponse, json_response
from outlast_gcp_emulator.json_records import Doc, JsonRecords
from outlast_gcp_emulator.router import Router
from outlast_gcp_emulator.tokens import service_account_key

_DONE = {"name": "operations/noop.DONE_OPERATION", "done": True}
_PROJECT = re.compile(r"[a-z][-a-z0-9:.]{0,61}[a-z0-9]")


class Identity:
    """Accounts, roles, policy and enabled APIs of each project, in `<project>.json`."""

    def __init__(self, folder: str) -> None:
        self._records = JsonRecords(folder)

    def add_to(self, router: Router) -> None:
        services = "/serviceusage/v1/projects/{project}/services"
        router.add("POST", f"{services}:batchEnable", self._enable)
        router.add("GET", services, self._services)
        router.add("POST", f"{services}/{{name}}:enable", self._enable)
        router.add("POST", f"{services}/{{name}}:disable", self._disable)
        router.add("GET", f"{services}/{{name}}", self._service)
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
        record = self._records.get(self._name(request))
        return record or {"accounts": {}, "roles": {}, "bindings": [], "services": [], "account_bindings": {}}

    def _changing(self, request: HttpRequest) -> AbstractContextManager[Doc]:
        return self._records.changing(self._name(request), lambda: self._read(request))

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
        return self._add(request, "accounts", email, doc)

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

    def _create_role(self, request: HttpRequest) -> HttpResponse:
        body, name = request.json(), str(request.json().get("roleId", ""))
        doc = {**body.get("role", {}), "name": f"projects/{request.parts['project']}/roles/{name}"}
        return self._add(request, "roles", name, doc)

    def _change_role(self, request: HttpRequest) -> HttpResponse:
        self._get(request, "roles")
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
        with self._changing(request) as record:
            _check_etag(policy, self._account_policy(request))
            record["account_bindings"][request.parts["name"]] = policy.get("bindings", [])
        return json_response(self._account_policy(request))

    def _get_policy(self, request: HttpRequest) -> HttpResponse:
        return json_response(_policy(self._read(request)["bindings"]))

    def _set_policy(self, request: HttpRequest) -> HttpResponse:
        policy = request.json().get("policy", {})
        with self._changing(request) as record:
            _check_etag(policy, _policy(record["bindings"]))
            record["bindings"] = policy.get("bindings", [])
        return json_response(_policy(record["bindings"]))

    def _test_permissions(self, request: HttpRequest) -> HttpResponse:
        # The caller owns this computer.
        return json_response({"permissions": request.json().get("permissions", [])})

    def _enable(self, request: HttpRequest) -> HttpResponse:
        with self._changing(request) as record:
            names = [request.parts["name"]] if "name" in request.parts else request.json().get("serviceIds", [])
            record["services"] = sorted({*record["services"], *names})
        return json_response(_DONE)

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
