"""Filestore, for `gcloud filestore instances`: shares are folders of this computer, without an NFS server.

The status message of an instance states this, with the path of its folder, because a mount would hang.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from typing import Any

from outlast.clouds.local.files import read_json, write_json
from outlast_gcp_emulator.errors import ApiError, invalid, not_found
from outlast_gcp_emulator.http_types import HttpRequest, HttpResponse, json_response
from outlast_gcp_emulator.router import Router

Doc = dict[str, Any]

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_SHARE = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,62}")
_OPERATION = "type.googleapis.com/google.cloud.common.OperationMetadata"
_INSTANCE = "type.googleapis.com/google.cloud.filestore.v1.Instance"


class Filestore:
    """Instances in a folder: `<project>/<location>/<name>/instance.json`, and a folder beside it for each share."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def add_to(self, router: Router) -> None:
        location = "/file/{version}/projects/{project}/locations/{location}"
        instance = f"{location}/instances/{{name}}"
        router.add_methods(f"{location}/instances", GET=self._list, POST=self._create)
        router.add_methods(instance, GET=self._get, PATCH=self._patch, DELETE=self._delete)
        router.add("GET", f"{location}/operations/{{name}}", self._operation)

    def _path(self, project: str, location: str, name: str) -> str:
        for part in (project, location, name):
            if not _NAME.fullmatch(part):
                raise invalid(f"invalid name `{part}`: expected lower-case letters, digits and `-`")
        return f"{self._folder}/{project}/{location}/{name}"

    def _find(self, request: HttpRequest) -> Doc:
        parts = request.parts
        doc = read_json(f"{self._path(parts['project'], parts['location'], parts['name'])}/instance.json")
        if doc is None:
            raise not_found(f"Resource '{_resource(parts['project'], parts['location'], parts['name'])}' was not found")
        return doc

    def _get(self, request: HttpRequest) -> HttpResponse:
        return json_response(self._find(request))

    def _list(self, request: HttpRequest) -> HttpResponse:
        project, location = request.parts["project"], request.parts["location"]
        found = []
        for place in _names(f"{self._folder}/{project}") if location == "-" else [location]:
            for name in _names(f"{self._folder}/{project}/{place}"):
                if (doc := read_json(f"{self._folder}/{project}/{place}/{name}/instance.json")) is not None:
                    found.append(doc)
        return json_response({"instances": found})

    def _create(self, request: HttpRequest) -> HttpResponse:
        project, location = request.parts["project"], request.parts["location"]
        name = request.query.get("instanceId", "")
        path, body = self._path(project, location, name), request.json()
        shares = body.get("fileShares") or []
        if len(shares) != 1 or not _SHARE.fullmatch(str(shares[0].get("name", ""))):
            raise invalid("instance.fileShares: exactly one share with a name is required")
        folder = f"{path}/{shares[0]['name']}"
        try:
            os.makedirs(folder)
        except FileExistsError as problem:
            message = f"Resource '{_resource(project, location, name)}' already exists"
            raise ApiError(409, "alreadyExists", message) from problem
        doc: Doc = {
            **{key: body[key] for key in ("description", "tier", "labels") if key in body},
            "name": _resource(project, location, name),
            "state": "READY",
            "statusMessage": f"not served by NFS on this computer; the share is the folder {folder}",
            "createTime": _now(),
            "fileShares": [{"name": shares[0]["name"], "capacityGb": str(shares[0].get("capacityGb", 1024))}],
            "networks": [
                {"network": "default", **network, "ipAddresses": ["127.0.0.1"]}
                for network in body.get("networks") or [{}]
            ],
        }
        write_json(f"{path}/instance.json", doc)
        return json_response(_done(doc["name"], "create", {"@type": _INSTANCE, **doc}))

    def _patch(self, request: HttpRequest) -> HttpResponse:
        """Enlarge the share, or change labels and description. Raises ApiError for other fields in the mask."""
        doc, parts = self._find(request), request.parts
        body, mask = request.json(), {word.strip() for word in request.query.get("updateMask", "").split(",")}
        if not mask or mask - {"fileShares", "file_shares", "labels", "description"}:
            raise invalid(f"updateMask: {sorted(mask)} cannot be changed")
        changed: Doc = dict(doc)
        changed |= {key: body[key] for key in ("labels", "description") if key in mask and key in body}
        if mask & {"fileShares", "file_shares"}:
            before, share = doc["fileShares"][0], (body.get("fileShares") or [{}])[0]
            size = str(share.get("capacityGb", ""))
            if share.get("name") != before["name"] or not size.isdigit() or int(size) < int(before["capacityGb"]):
                raise invalid("instance.fileShares: a share keeps its name and cannot shrink")
            changed["fileShares"] = [{**before, "capacityGb": size}]
        write_json(f"{self._path(parts['project'], parts['location'], parts['name'])}/instance.json", changed)
        return json_response(_done(doc["name"], "update", {"@type": _INSTANCE, **changed}))

    def _delete(self, request: HttpRequest) -> HttpResponse:
        doc, parts = self._find(request), request.parts
        shutil.rmtree(self._path(parts["project"], parts["location"], parts["name"]))
        return json_response(_done(doc["name"], "delete", {"@type": "type.googleapis.com/google.protobuf.Empty"}))

    def _operation(self, request: HttpRequest) -> HttpResponse:
        """Return an operation, which was done in its first response. Its name contains the verb and the target."""
        parts = request.parts
        verb, _, rest = parts["name"].removeprefix("operation-").partition("-")
        target = _resource(parts["project"], parts["location"], rest.rpartition("-")[0])
        return json_response(_done(target, verb, {"@type": "type.googleapis.com/google.protobuf.Empty"}))


def _resource(project: str, location: str, name: str) -> str:
    return f"projects/{project}/locations/{location}/instances/{name}"


def _names(folder: str) -> list[str]:
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _done(target: str, verb: str, response: Doc) -> Doc:
    place, _, name = target.rpartition("/instances/")
    return {
        "name": f"{place}/operations/operation-{verb}-{name}-{time.time_ns()}",
        "metadata": {"@type": _OPERATION, "target": target, "verb": verb, "createTime": _now(), "apiVersion": "v1"},
        "done": True,
        "response": response,
    }
