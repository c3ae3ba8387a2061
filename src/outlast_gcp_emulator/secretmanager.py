"""Secret Manager, for secrets of runs and `gcloud secrets`. Values are in files that only this user may read."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from outlast_gcp_emulator.compute.context import Context
from outlast_gcp_emulator.compute.refs import timestamp
from outlast_gcp_emulator.conditions import LOCATIONS
from outlast_gcp_emulator.errors import ApiError, invalid, not_found
from outlast_gcp_emulator.http_types import HttpRequest, HttpResponse, json_response
from outlast_gcp_emulator.json_records import Doc, JsonRecords
from outlast_gcp_emulator.router import Router

_NAME = re.compile(r"[A-Za-z0-9_-]{1,255}")
_ACCESSOR = "roles/secretmanager.secretAccessor"
_ENABLED, _DESTROYED = "ENABLED", "DESTROYED"


class SecretRoutes:
    """Secrets with their policy and versions, in `<project>/<secret>.json`."""

    def __init__(self, folder: str, context: Context, check_members: Callable[[list[Doc]], None]) -> None:
        self._records = JsonRecords(folder)
        self._context = context
        self._surroundings = context.surroundings
        self._check_members = check_members

    def add_to(self, router: Router) -> None:
        secrets = "/secretmanager/v1/projects/{project}/secrets"
        secret = f"{secrets}/{{secret}}"
        # Paths with a verb first: a name matches the rest of its segment.
        router.add("GET", f"{secret}/versions/{{version}}:access", self._access)
        router.add("POST", f"{secret}/versions/{{version}}:destroy", self._destroy)
        router.add("POST", f"{secret}:addVersion", self._add_version)
        router.add("POST", f"{secret}:setIamPolicy", self._set_policy)
        router.add("GET", f"{secret}:getIamPolicy", self._get_policy)
        router.add("GET", f"{secret}/versions", self._versions)
        router.add_methods(secrets, GET=self._list, POST=self._create)
        router.add_methods(secret, GET=self._get, DELETE=self._delete)

    # Secrets

    def _name(self, request: HttpRequest, secret: str) -> str:
        project = request.parts["project"]
        if not _NAME.fullmatch(secret) or not _NAME.fullmatch(project):
            raise invalid(f"invalid secret `{project}/{secret}`: expected letters, digits, `-` and `_`")
        return f"{project}/{secret}"

    def _find(self, request: HttpRequest) -> Doc:
        record = self._records.get(self._name(request, request.parts["secret"]))
        if record is None:
            name = f"projects/{request.parts['project']}/secrets/{request.parts['secret']}"
            raise not_found(f"Secret [{name}] not found.")
        return record

    def _changing(self, request: HttpRequest) -> AbstractContextManager[Doc]:
        name = self._name(request, request.parts["secret"])
        return self._records.changing(name, lambda: self._find(request))

    def _create(self, request: HttpRequest) -> HttpResponse:
        body, secret_id = request.json(), request.query.get("secretId", "")
        name = self._name(request, secret_id)
        if LOCATIONS in self._surroundings.now.constraints and "userManaged" not in body.get("replication", {}):
            text = f"Constraint constraints/{LOCATIONS} violated for [projects/{request.parts['project']}]"
            raise ApiError(400, "failedPrecondition", f"{text} attempting to create a secret in [global].")
        secret = {
            "name": f"projects/{request.parts['project']}/secrets/{secret_id}",
            "replication": body.get("replication") or {"automatic": {}},
            "createTime": timestamp(time.time()),
            **({"labels": body["labels"]} if body.get("labels") else {}),
        }
        with self._records.lock:
            if self._records.get(name) is not None:
                raise ApiError(409, "alreadyExists", f"Secret [{secret['name']}] already exists.")
            self._records.put(name, {"secret": secret, "policy": [], "versions": []})
        return json_response(secret)

    def _get(self, request: HttpRequest) -> HttpResponse:
        return json_response(self._find(request)["secret"])

    def _list(self, request: HttpRequest) -> HttpResponse:
        found = [record["secret"] for record in self._records.all(request.parts["project"])]
        return json_response({"secrets": found, "totalSize": len(found)} if found else {})

    def _delete(self, request: HttpRequest) -> HttpResponse:
        with self._records.lock:
            self._find(request)
            self._records.delete(self._name(request, request.parts["secret"]))
        return json_response({})

    # Versions

    def _add_version(self, request: HttpRequest) -> HttpResponse:
        data = str(request.json().get("payload", {}).get("data", ""))
        try:
            base64.b64decode(data, validate=True)
        except ValueError as problem:
            raise invalid("payload.data is not base64") from problem
        with self._changing(request) as record:
            name = f"{record['secret']['name']}/versions/{len(record['versions']) + 1}"
            version = {"name": name, "createTime": timestamp(time.time()), "state": _ENABLED, "_data": data}
            record["versions"].append(version)
        return json_response(_shown(version))

    def _versions(self, request: HttpRequest) -> HttpResponse:
        versions = self._find(request)["versions"]
        wanted = request.query.get("filter", "").removeprefix("state:").removeprefix("state=")
        found = [_shown(version) for version in reversed(versions) if wanted in ("", version["state"])]
        return json_response({"versions": found, "totalSize": len(found)} if found else {})

    def _version(self, request: HttpRequest, record: Doc) -> Doc:
        wanted = request.parts["version"]
        versions: list[Doc] = record["versions"]
        for version in reversed(versions):
            enabled = version["state"] == _ENABLED
            if (wanted == "latest" and enabled) or version["name"].rpartition("/")[2] == wanted:
                return version
        raise not_found(f"Secret Version [{record['secret']['name']}/versions/{wanted}] not found.")

    def _access(self, request: HttpRequest) -> HttpResponse:
        record = self._find(request)
        self._check_reader(request, record)
        version = self._version(request, record)
        if version["state"] != _ENABLED:
            raise ApiError(400, "failedPrecondition", f"Secret Version [{version['name']}] is in DESTROYED state.")
        return json_response({"name": version["name"], "payload": {"data": version["_data"]}})

    def _destroy(self, request: HttpRequest) -> HttpResponse:
        with self._changing(request) as record:
            version = self._version(request, record)
            version |= {"state": _DESTROYED, "destroyTime": timestamp(time.time())}
            version.pop("_data", None)
        return json_response(_shown(version))

    # Access

    def _get_policy(self, request: HttpRequest) -> HttpResponse:
        return json_response({"version": 1, "bindings": self._find(request)["policy"]})

    def _set_policy(self, request: HttpRequest) -> HttpResponse:
        bindings = request.json().get("policy", {}).get("bindings", [])
        self._check_members(bindings)
        with self._changing(request) as record:
            record["policy"] = bindings
        self._surroundings.delay(("grant", record["secret"]["name"]), self._surroundings.now.grant_delay)
        return json_response({"version": 1, "bindings": bindings})

    def _check_reader(self, request: HttpRequest, record: Doc) -> None:
        """Check that a machine has the scope, and its account the role. The owner of the endpoint may read all."""
        machine = request.caller.machine
        if not machine:
            return
        name = record["secret"]["name"]
        message = f"Permission 'secretmanager.versions.access' denied for resource '{name}' (or it may not exist)."
        self._surroundings.check_grant(name, message=message)
        for _, doc in self._context.store.each("instances"):
            if doc.get("_machine") != machine:
                continue
            for account in doc.get("serviceAccounts", []):
                scoped = any(scope.endswith("/auth/cloud-platform") for scope in account["scopes"])
                if not scoped:
                    raise ApiError(403, "forbidden", "Request had insufficient authentication scopes.")
                member = f"serviceAccount:{account['email']}"
                bindings = [binding for binding in record["policy"] if binding.get("role") == _ACCESSOR]
                if any(member in binding.get("members", []) for binding in bindings):
                    return
        raise ApiError(403, "forbidden", message)


def _shown(version: Doc) -> Doc:
    return {name: value for name, value in version.items() if not name.startswith("_")}
