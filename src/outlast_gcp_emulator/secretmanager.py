"""Secret Manager, as far as secrets of runs and `gcloud secrets` go. Values are in files that only this user reads."""

from __future__ import annotations

import base64
import os
import re
import threading
import time
from typing import Any

from outlast.clouds.local.files import read_json, write_json
from outlast_gcp_emulator.compute.context import Context
from outlast_gcp_emulator.compute.refs import timestamp
from outlast_gcp_emulator.errors import ApiError, invalid, not_found
from outlast_gcp_emulator.http_types import HttpAnswer, HttpRequest, json_answer
from outlast_gcp_emulator.router import Router

Doc = dict[str, Any]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,255}")
_ACCESSOR = "roles/secretmanager.secretAccessor"
_ENABLED, _DESTROYED = "ENABLED", "DESTROYED"


class SecretRoutes:
    """`<project>/<secret>.json`: the secret, its policy and its versions."""

    def __init__(self, folder: str, context: Context) -> None:
        self._folder = folder
        self._context = context
        self._lock = threading.Lock()

    def add_to(self, router: Router) -> None:
        here = "/secretmanager/v1/projects/{project}/secrets"
        one = f"{here}/{{secret}}"
        # Those with a verb first: a name takes all that is left of its segment.
        router.add("GET", f"{one}/versions/{{version}}:access", self._access)
        router.add("POST", f"{one}/versions/{{version}}:destroy", self._destroy)
        router.add("POST", f"{one}:addVersion", self._add_version)
        router.add("POST", f"{one}:setIamPolicy", self._set_policy)
        router.add("GET", f"{one}:getIamPolicy", self._get_policy)
        router.add("GET", f"{one}/versions", self._versions)
        router.add("GET", here, self._list)
        router.add("POST", here, self._create)
        router.add("GET", one, self._get)
        router.add("DELETE", one, self._delete)

    # Secrets

    def _path(self, request: HttpRequest, secret: str) -> str:
        project = request.parts["project"]
        if not _NAME.fullmatch(secret) or not _NAME.fullmatch(project):
            raise invalid(f"`{secret}` cannot name a secret of `{project}`: letters, digits, `-` and `_`")
        return f"{self._folder}/{project}/{secret}.json"

    def _find(self, request: HttpRequest) -> tuple[str, Doc]:
        path = self._path(request, request.parts["secret"])
        if (kept := read_json(path)) is None:
            told = f"Secret [projects/{request.parts['project']}/secrets/{request.parts['secret']}] not found."
            raise not_found(told)
        return path, kept

    def _create(self, request: HttpRequest) -> HttpAnswer:
        body, name = request.json(), request.query.get("secretId", "")
        path, project = self._path(request, name), request.parts["project"]
        secret = {
            "name": f"projects/{project}/secrets/{name}",
            "replication": body.get("replication") or {"automatic": {}},
            "createTime": timestamp(time.time()),
            **({"labels": body["labels"]} if body.get("labels") else {}),
        }
        with self._lock:
            if os.path.exists(path):
                raise ApiError(409, "alreadyExists", f"Secret [{secret['name']}] already exists.")
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            write_json(path, {"secret": secret, "policy": [], "versions": []}, permissions=0o600)
        return json_answer(secret)

    def _get(self, request: HttpRequest) -> HttpAnswer:
        return json_answer(self._find(request)[1]["secret"])

    def _list(self, request: HttpRequest) -> HttpAnswer:
        folder = f"{self._folder}/{request.parts['project']}"
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        kept = [read_json(f"{folder}/{name}") for name in names if name.endswith(".json")]
        found = [one["secret"] for one in kept if one is not None]
        return json_answer({"secrets": found, "totalSize": len(found)} if found else {})

    def _delete(self, request: HttpRequest) -> HttpAnswer:
        with self._lock:
            os.unlink(self._find(request)[0])
        return json_answer({})

    # Versions

    def _add_version(self, request: HttpRequest) -> HttpAnswer:
        data = str(request.json().get("payload", {}).get("data", ""))
        try:
            base64.b64decode(data, validate=True)
        except ValueError as problem:
            raise invalid("payload.data is no base64") from problem
        with self._lock:
            path, kept = self._find(request)
            name = f"{kept['secret']['name']}/versions/{len(kept['versions']) + 1}"
            version = {"name": name, "createTime": timestamp(time.time()), "state": _ENABLED, "_data": data}
            write_json(path, {**kept, "versions": [*kept["versions"], version]}, permissions=0o600)
        return json_answer(_shown(version))

    def _versions(self, request: HttpRequest) -> HttpAnswer:
        versions = self._find(request)[1]["versions"]
        wanted = request.query.get("filter", "").removeprefix("state:").removeprefix("state=")
        found = [_shown(one) for one in reversed(versions) if wanted in ("", one["state"])]
        return json_answer({"versions": found, "totalSize": len(found)} if found else {})

    def _version(self, request: HttpRequest, kept: Doc) -> Doc:
        wanted = request.parts["version"]
        for one in reversed(kept["versions"]):
            enabled = one["state"] == _ENABLED
            if (wanted == "latest" and enabled) or one["name"].rpartition("/")[2] == wanted:
                found: Doc = one
                return found
        raise not_found(f"Secret Version [{kept['secret']['name']}/versions/{wanted}] not found.")

    def _access(self, request: HttpRequest) -> HttpAnswer:
        _, kept = self._find(request)
        self._check_reader(request, kept)
        version = self._version(request, kept)
        if version["state"] != _ENABLED:
            raise ApiError(400, "failedPrecondition", f"Secret Version [{version['name']}] is in DESTROYED state.")
        return json_answer({"name": version["name"], "payload": {"data": version["_data"]}})

    def _destroy(self, request: HttpRequest) -> HttpAnswer:
        with self._lock:
            path, kept = self._find(request)
            ended = {**self._version(request, kept), "state": _DESTROYED, "destroyTime": timestamp(time.time())}
            ended.pop("_data", None)
            versions = [ended if one["name"] == ended["name"] else one for one in kept["versions"]]
            write_json(path, {**kept, "versions": versions}, permissions=0o600)
        return json_answer(_shown(ended))

    # Who may read

    def _get_policy(self, request: HttpRequest) -> HttpAnswer:
        return json_answer({"version": 1, "bindings": self._find(request)[1]["policy"]})

    def _set_policy(self, request: HttpRequest) -> HttpAnswer:
        bindings = request.json().get("policy", {}).get("bindings", [])
        with self._lock:
            path, kept = self._find(request)
            write_json(path, {**kept, "policy": bindings}, permissions=0o600)
        return json_answer({"version": 1, "bindings": bindings})

    def _check_reader(self, request: HttpRequest, kept: Doc) -> None:
        """A machine needs the scope, and its account the role; whoever else asks is the owner of this computer."""
        machine = request.caller.machine
        if not machine:
            return
        for _, doc in self._context.store.each("instances"):
            if doc.get("_machine") != machine:
                continue
            for account in doc.get("serviceAccounts", []):
                scoped = any(scope.endswith("/auth/cloud-platform") for scope in account["scopes"])
                if not scoped:
                    raise ApiError(403, "forbidden", "Request had insufficient authentication scopes.")
                member = f"serviceAccount:{account['email']}"
                if any(one.get("role") == _ACCESSOR and member in one.get("members", []) for one in kept["policy"]):
                    return
        told = f"Permission 'secretmanager.versions.access' denied for resource '{kept['secret']['name']}'."
        raise ApiError(403, "forbidden", told)


def _shown(version: Doc) -> Doc:
    return {name: value for name, value in version.items() if not name.startswith("_")}
