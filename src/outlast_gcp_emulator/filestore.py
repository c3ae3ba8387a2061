"""Filestore, for `gcloud filestore instances`: shares are folders of this computer, without an NFS server.

The status message of an instance states this, with the path of its folder, because a mount would hang.
"""

from __future__ import annotations

import os
import re
import shutil
import time

from outlast_gcp_emulator.errors import ApiError, invalid, not_found
from outlast_gcp_emulator.http_types import HttpRequest, HttpResponse, json_response
from outlast_gcp_emulator.json_records import Doc, JsonRecords
from outlast_gcp_emulator.router import Router

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_SHARE = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,62}")
_OPERATION = "type.googleapis.com/google.cloud.common.OperationMetadata"
_INSTANCE = "type.googleapis.com/google.cloud.filestore.v1.Instance"


class Filestore:
    """Instances in `<project>/<location>/<name>.json`, each with its share in the folder `<name>` beside the file."""

    def __init__(self, folder: str) -> None:
        self._records = JsonRecords(folder)

    def add_to(self, router: Router) -> None:
        location = "/file/{version}/projects/{project}/locations/{location}"
        instance = f"{location}/instances/{{name}}"
        router.add_methods(f"{location}/instances", GET=self._list, POST=self._create)
        router.add_methods(instance, GET=self._get, PATCH=self._patch, DELETE=self._delete)
        router.add("GET", f"{location}/operations/{{name}}", self._operation)

    def _name(self, request: HttpRequest, name: str) -> str:
        parts = (request.parts["project"], request.parts["location"], name)
        for part in parts:
            if not _NAME.fullmatch(part):
                raise invalid(f"invalid name `{part}`: expected lower-case letters, digits and `-`")
        return "/".join(parts)

    def _find(self, request: HttpRequest) -> tuple[str, Doc]:
        name = self._name(request, request.parts["name"])
        doc = self._records.get(name)
        if doc is None:
            raise not_found(f"Resource '{_resource(request, request.parts['name'])}' was not found")
        return name, doc

    def _get(self, request: HttpRequest) -> HttpResponse:
        return json_response(self._find(request)[1])

    def _list(self, request: HttpRequest) -> HttpResponse:
        project, location = request.parts["project"], request.parts["location"]
        locations = self._records.listdir(project) if location == "-" else [location]
        found = [doc for place in locations for doc in self._records.all(f"{project}/{place}")]
        return json_response({"instances": found})

    def _create(self, request: HttpRequest) -> HttpResponse:
        instance, body = request.query.get("instanceId", ""), request.json()
        name, resource = self._name(request, instance), _resource(request, instance)
        shares = body.get("fileShares") or []
        if len(shares) != 1 or not _SHARE.fullmatch(str(shares[0].get("name", ""))):
            raise invalid("instance.fileShares: exactly one share with a name is required")
        folder = f"{self._records.folder}/{name}/{shares[0]['name']}"
        try:
            os.makedirs(folder)
        except FileExistsError as problem:
            raise ApiError(409, "alreadyExists", f"Resource '{resource}' already exists") from problem
        doc: Doc = {
            **{key: body[key] for key in ("description", "tier", "labels") if key in body},
            "name": resource,
            "state": "READY",
            "statusMessage": f"not served by NFS on this computer; the share is the folder {folder}",
            "createTime": _now(),
            "fileShares": [{"name": shares[0]["name"], "capacityGb": str(shares[0].get("capacityGb", 1024))}],
            "networks": [
                {"network": "default", **network, "ipAddresses": ["127.0.0.1"]}
                for network in body.get("networks") or [{}]
            ],
        }
        self._records.put(name, doc)
        return json_response(_done(doc["name"], "create", {"@type": _INSTANCE, **doc}))

    def _patch(self, request: HttpRequest) -> HttpResponse:
        """Enlarge the share, or change labels and description. Raises ApiError for other fields in the mask."""
        name, doc = self._find(request)
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
        self._records.put(name, changed)
        return json_response(_done(doc["name"], "update", {"@type": _INSTANCE, **changed}))

    def _delete(self, request: HttpRequest) -> HttpResponse:
        name, doc = self._find(request)
        self._records.delete(name)
        shutil.rmtree(f"{self._records.folder}/{name}")
        return json_response(_done(doc["name"], "delete", {"@type": "type.googleapis.com/google.protobuf.Empty"}))

    def _operation(self, request: HttpRequest) -> HttpResponse:
        """Return an operation, which was done in its first response. Its name contains the verb and the target."""
        verb, _, rest = request.parts["name"].removeprefix("operation-").partition("-")
        target = _resource(request, rest.rpartition("-")[0])
        return json_response(_done(target, verb, {"@type": "type.googleapis.com/google.protobuf.Empty"}))


def _resource(request: HttpRequest, name: str) -> str:
    return f"projects/{request.parts['project']}/locations/{request.parts['location']}/instances/{name}"


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
