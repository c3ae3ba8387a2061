"""Accounts, roles, policies and switched-on APIs of a project, as far as setting one up goes. They refuse nobody."""

from __future__ import annotations

import os
import threading
from typing import Any

from outlast.clouds.local.files import read_json, write_json
from outlast.clouds.local.serve.compute.links import fingerprint, stable_number
from outlast.clouds.local.serve.message import Answer, Request, json_answer
from outlast.clouds.local.serve.refusal import Refused, not_found
from outlast.clouds.local.serve.router import Router

Doc = dict[str, Any]


class Identity:
    """`<project>.json`: accounts, roles, the policy, the APIs that are on."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = threading.Lock()

    def add_to(self, router: Router) -> None:
        services = "/serviceusage/v1/projects/{project}/services"
        router.add("POST", f"{services}:batchEnable", self._enable)
        router.add("GET", services, self._services)
        iam = "/iam/v1/projects/{project}"
        router.add("POST", f"{iam}/serviceAccounts", self._create_account)
        router.add("GET", f"{iam}/serviceAccounts/{{name}}", lambda request: self._get(request, "accounts"))
        account = f"{iam}/serviceAccounts/{{name}}"
        router.add("POST", f"{account}:getIamPolicy", lambda request: json_answer(self._account_policy(request)))
        router.add("POST", f"{account}:setIamPolicy", self._set_account_policy)
        router.add("POST", f"{iam}/roles", self._create_role)
        router.add("PATCH", f"{iam}/roles/{{name}}", self._change_role)
        router.add("GET", f"{iam}/roles/{{name}}", lambda request: self._get(request, "roles"))
        policy = "/cloudresourcemanager/v1/projects/{project}"
        router.add("POST", f"{policy}:getIamPolicy", self._get_policy)
        router.add("POST", f"{policy}:setIamPolicy", self._set_policy)
        router.add("POST", f"{policy}:testIamPermissions", self._test_permissions)

    def _read(self, request: Request) -> Doc:
        kept = read_json(f"{self._folder}/{request.parts['project']}.json")
        return kept or {"accounts": {}, "roles": {}, "bindings": [], "services": []}

    def _write(self, request: Request, kept: Doc) -> None:
        os.makedirs(self._folder, exist_ok=True)
        write_json(f"{self._folder}/{request.parts['project']}.json", kept)

    def _get(self, request: Request, kind: str) -> Answer:
        found = self._read(request)[kind].get(request.parts["name"])
        if found is None:
            raise not_found(f"Unknown {kind[:-1]} {request.parts['name']}")
        return json_answer(found)

    def _add(self, request: Request, kind: str, key: str, doc: Doc) -> Answer:
        with self._lock:
            kept = self._read(request)
            if key in kept[kind]:
                raise Refused(409, "alreadyExists", f"{kind[:-1]} {key} already exists")
            self._write(request, {**kept, kind: {**kept[kind], key: doc}})
        return json_answer(doc)

    def _create_account(self, request: Request) -> Answer:
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

    def _create_role(self, request: Request) -> Answer:
        body, name = request.json(), str(request.json().get("roleId", ""))
        doc = {**body.get("role", {}), "name": f"projects/{request.parts['project']}/roles/{name}"}
        return self._add(request, "roles", name, doc)

    def _change_role(self, request: Request) -> Answer:
        with self._lock:
            kept, name = self._read(request), request.parts["name"]
            if name not in kept["roles"]:
                raise not_found(f"Unknown role {name}")
            doc = {**kept["roles"][name], **request.json()}
            self._write(request, {**kept, "roles": {**kept["roles"], name: doc}})
        return json_answer(doc)

    def _account_policy(self, request: Request) -> Doc:
        kept, name = self._read(request), request.parts["name"]
        if name not in kept["accounts"]:
            raise not_found(f"Unknown account {name}")
        bindings = kept.get("account_bindings", {}).get(name, [])
        return self._policy({"bindings": bindings})

    def _set_account_policy(self, request: Request) -> Answer:
        policy = request.json().get("policy", {})
        with self._lock:
            now = self._account_policy(request)
            if policy.get("etag", now["etag"]) != now["etag"]:
                raise Refused(409, "aborted", "There were concurrent policy changes.")
            kept = self._read(request)
            bound = {**kept.get("account_bindings", {}), request.parts["name"]: policy.get("bindings", [])}
            self._write(request, {**kept, "account_bindings": bound})
            return json_answer(self._account_policy(request))

    def _policy(self, kept: Doc) -> Doc:
        return {"version": 1, "bindings": kept["bindings"], "etag": fingerprint(kept["bindings"])}

    def _get_policy(self, request: Request) -> Answer:
        return json_answer(self._policy(self._read(request)))

    def _set_policy(self, request: Request) -> Answer:
        policy = request.json().get("policy", {})
        with self._lock:
            kept = self._read(request)
            if policy.get("etag", self._policy(kept)["etag"]) != self._policy(kept)["etag"]:
                raise Refused(409, "aborted", "There were concurrent policy changes.")
            kept = {**kept, "bindings": policy.get("bindings", [])}
            self._write(request, kept)
        return json_answer(self._policy(kept))

    def _test_permissions(self, request: Request) -> Answer:
        # Whoever asks is the owner of this computer.
        return json_answer({"permissions": request.json().get("permissions", [])})

    def _enable(self, request: Request) -> Answer:
        with self._lock:
            kept = self._read(request)
            on = sorted({*kept["services"], *request.json().get("serviceIds", [])})
            self._write(request, {**kept, "services": on})
        return json_answer({"name": "operations/noop.DONE_OPERATION", "done": True})

    def _services(self, request: Request) -> Answer:
        project = f"projects/{stable_number(request.parts['project'])}"
        on = self._read(request)["services"]
        return json_answer({"services": [{"name": f"{project}/services/{name}", "state": "ENABLED"} for name in on]})
