"""Accounts, roles, policies and switched-on APIs of a project, as far as setting one up goes. They refuse nobody."""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import threading
from typing import Any

from outlast.clouds.local.files import read_json, write_json
from outlast_gcp_emulator.compute.refs import fingerprint, stable_number
from outlast_gcp_emulator.environment import PROJECT
from outlast_gcp_emulator.errors import ApiError, invalid, not_found
from outlast_gcp_emulator.http_types import HttpAnswer, HttpRequest, json_answer
from outlast_gcp_emulator.router import Router
from outlast_gcp_emulator.tokens import service_account_key

Doc = dict[str, Any]
_PROJECT = re.compile(r"[a-z][-a-z0-9:.]{0,61}[a-z0-9]")


class Identity:
    """`<project>.json`: accounts, roles, the policy, the APIs that are on."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = threading.Lock()

    def add_to(self, router: Router) -> None:
        services = "/serviceusage/v1/projects/{project}/services"
        router.add("POST", f"{services}:batchEnable", self._enable)
        router.add("GET", services, self._services)
        router.add("POST", f"{services}/{{name}}:enable", self._enable)
        router.add("POST", f"{services}/{{name}}:disable", self._disable)
        router.add("GET", f"{services}/{{name}}", self._service)
        iam = "/iam/v1/projects/{project}"
        router.add("POST", f"{iam}/serviceAccounts", self._create_account)
        router.add("GET", f"{iam}/serviceAccounts", self._accounts)
        router.add("DELETE", f"{iam}/serviceAccounts/{{name}}", self._delete_account)
        router.add("POST", f"{iam}/serviceAccounts/{{name}}/keys", self._create_key)
        router.add("GET", f"{iam}/serviceAccounts/{{name}}/keys", lambda request: json_answer({"keys": []}))
        router.add("GET", f"{iam}/serviceAccounts/{{name}}", lambda request: self._get(request, "accounts"))
        account = f"{iam}/serviceAccounts/{{name}}"
        router.add("POST", f"{account}:getIamPolicy", lambda request: json_answer(self._account_policy(request)))
        router.add("POST", f"{account}:setIamPolicy", self._set_account_policy)
        router.add("POST", f"{iam}/roles", self._create_role)
        router.add("PATCH", f"{iam}/roles/{{name}}", self._change_role)
        router.add("GET", f"{iam}/roles/{{name}}", lambda request: self._get(request, "roles"))
        policy = "/cloudresourcemanager/v1/projects/{project}"
        router.add("GET", "/cloudresourcemanager/v1/projects", self._projects)
        router.add("GET", policy, lambda request: json_answer(_project(request.parts["project"])))
        router.add("POST", f"{policy}:getIamPolicy", self._get_policy)
        router.add("POST", f"{policy}:setIamPolicy", self._set_policy)
        router.add("POST", f"{policy}:testIamPermissions", self._test_permissions)

    def _file(self, request: HttpRequest) -> str:
        project, account = request.parts["project"], request.parts.get("name", "")
        if project == "-":
            # Whose account it is says its address.
            project = account.partition("@")[2].partition(".")[0]
        if not _PROJECT.fullmatch(project):
            raise invalid(f"'{project}' is not the name of a project")
        return f"{self._folder}/{project}.json"

    def _read(self, request: HttpRequest) -> Doc:
        kept = read_json(self._file(request))
        return kept or {"accounts": {}, "roles": {}, "bindings": [], "services": []}

    def _write(self, request: HttpRequest, kept: Doc) -> None:
        os.makedirs(self._folder, exist_ok=True)
        write_json(self._file(request), kept)

    def _get(self, request: HttpRequest, kind: str) -> HttpAnswer:
        found = self._read(request)[kind].get(request.parts["name"])
        if found is None:
            raise not_found(f"Unknown {kind[:-1]} {request.parts['name']}")
        return json_answer(found)

    def _add(self, request: HttpRequest, kind: str, key: str, doc: Doc) -> HttpAnswer:
        with self._lock:
            kept = self._read(request)
            if key in kept[kind]:
                raise ApiError(409, "alreadyExists", f"{kind[:-1]} {key} already exists")
            self._write(request, {**kept, kind: {**kept[kind], key: doc}})
        return json_answer(doc)

    def _create_account(self, request: HttpRequest) -> HttpAnswer:
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

    def _accounts(self, request: HttpRequest) -> HttpAnswer:
        return json_answer({"accounts": list(self._read(request)["accounts"].values())})

    def _delete_account(self, request: HttpRequest) -> HttpAnswer:
        self._get(request, "accounts")
        with self._lock:
            kept = self._read(request)
            kept["accounts"].pop(request.parts["name"], None)
            self._write(request, kept)
        return json_answer({})

    def _create_key(self, request: HttpRequest) -> HttpAnswer:
        """A file as Google's clients read it, whose tokens come from this server."""
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
        return json_answer(doc)

    def _create_role(self, request: HttpRequest) -> HttpAnswer:
        body, name = request.json(), str(request.json().get("roleId", ""))
        doc = {**body.get("role", {}), "name": f"projects/{request.parts['project']}/roles/{name}"}
        return self._add(request, "roles", name, doc)

    def _change_role(self, request: HttpRequest) -> HttpAnswer:
        with self._lock:
            kept, name = self._read(request), request.parts["name"]
            if name not in kept["roles"]:
                raise not_found(f"Unknown role {name}")
            doc = {**kept["roles"][name], **request.json()}
            self._write(request, {**kept, "roles": {**kept["roles"], name: doc}})
        return json_answer(doc)

    def _account_policy(self, request: HttpRequest) -> Doc:
        kept, name = self._read(request), request.parts["name"]
        if name not in kept["accounts"]:
            raise not_found(f"Unknown account {name}")
        bindings = kept.get("account_bindings", {}).get(name, [])
        return self._policy({"bindings": bindings})

    def _set_account_policy(self, request: HttpRequest) -> HttpAnswer:
        policy = request.json().get("policy", {})
        with self._lock:
            now = self._account_policy(request)
            if policy.get("etag", now["etag"]) != now["etag"]:
                raise ApiError(409, "aborted", "There were concurrent policy changes.")
            kept = self._read(request)
            bound = {**kept.get("account_bindings", {}), request.parts["name"]: policy.get("bindings", [])}
            self._write(request, {**kept, "account_bindings": bound})
            return json_answer(self._account_policy(request))

    def _policy(self, kept: Doc) -> Doc:
        return {"version": 1, "bindings": kept["bindings"], "etag": fingerprint(kept["bindings"])}

    def _get_policy(self, request: HttpRequest) -> HttpAnswer:
        return json_answer(self._policy(self._read(request)))

    def _set_policy(self, request: HttpRequest) -> HttpAnswer:
        policy = request.json().get("policy", {})
        with self._lock:
            kept = self._read(request)
            if policy.get("etag", self._policy(kept)["etag"]) != self._policy(kept)["etag"]:
                raise ApiError(409, "aborted", "There were concurrent policy changes.")
            kept = {**kept, "bindings": policy.get("bindings", [])}
            self._write(request, kept)
        return json_answer(self._policy(kept))

    def _test_permissions(self, request: HttpRequest) -> HttpAnswer:
        # Whoever asks is the owner of this computer.
        return json_answer({"permissions": request.json().get("permissions", [])})

    def _enable(self, request: HttpRequest) -> HttpAnswer:
        with self._lock:
            kept = self._read(request)
            wanted = [request.parts["name"]] if "name" in request.parts else request.json().get("serviceIds", [])
            self._write(request, {**kept, "services": sorted({*kept["services"], *wanted})})
        return json_answer({"name": "operations/noop.DONE_OPERATION", "done": True})

    def _disable(self, request: HttpRequest) -> HttpAnswer:
        with self._lock:
            kept = self._read(request)
            left = [name for name in kept["services"] if name != request.parts["name"]]
            self._write(request, {**kept, "services": left})
        return json_answer({"name": "operations/noop.DONE_OPERATION", "done": True})

    def _service(self, request: HttpRequest) -> HttpAnswer:
        name = request.parts["name"]
        state = "ENABLED" if name in self._read(request)["services"] else "DISABLED"
        return json_answer(_service(request.parts["project"], name, state))

    def _projects(self, request: HttpRequest) -> HttpAnswer:
        known = [name.removesuffix(".json") for name in os.listdir(self._folder)] if os.path.isdir(self._folder) else []
        return json_answer({"projects": [_project(name) for name in sorted({PROJECT, *known})]})

    def _services(self, request: HttpRequest) -> HttpAnswer:
        on = self._read(request)["services"]
        return json_answer({"services": [_service(request.parts["project"], name, "ENABLED") for name in on]})


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
