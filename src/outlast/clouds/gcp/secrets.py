"""Secrets in Secret Manager: one secret per run with all its values, readable by the machines' account only."""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections.abc import Mapping, Sequence

from outlast.clouds.gcp.client import GcpClient
from outlast.clouds.gcp.errors import Stale
from outlast.errors import AlreadyExists, BadRequest, NotFound, PolicyDenied

_NAME = re.compile(r"[A-Za-z0-9_-]{1,255}")
_ROLE = "roles/secretmanager.secretAccessor"
_SERVICE = "secretmanager"
# Organisations that allow some places only refuse automatic replication: one region of each continent is tried.
_REGIONS = ("us-central1", "europe-west1", "asia-southeast1", "australia-southeast1", "southamerica-east1")


def put(client: GcpClient, name: str, values: Mapping[str, str], *, accounts: Sequence[str]) -> None:
    """Write the values as the newest version, and destroy the older versions."""
    path = _path(client, name)
    with contextlib.suppress(AlreadyExists, Stale):
        _create(client, _checked(name))
    if accounts:
        members = [f"serviceAccount:{account}" for account in accounts]
        policy = {"policy": {"bindings": [{"role": _ROLE, "members": members}]}}
        client.call(_SERVICE, "POST", f"{path}:setIamPolicy", body=policy)
    before = client.call(_SERVICE, "GET", f"{path}/versions", query={"filter": "state:ENABLED"}).doc
    data = base64.b64encode(json.dumps(dict(values)).encode()).decode()
    client.call(_SERVICE, "POST", f"{path}:addVersion", body={"payload": {"data": data}})
    for version in before.get("versions", []):
        number = str(version["name"]).rpartition("/")[2]
        with contextlib.suppress(NotFound):
            client.call(_SERVICE, "POST", f"{path}/versions/{number}:destroy", body={})


def _create(client: GcpClient, name: str) -> None:
    """Create a secret without versions, in a place that the organisation allows. Raises PolicyDenied."""

    def create(replication: dict[str, object]) -> None:
        body = {"replication": replication, "labels": {"outlast": "run"}}
        client.call(_SERVICE, "POST", f"v1/projects/{client.project}/secrets", query={"secretId": name}, body=body)

    try:
        create({"automatic": {}})
    except PolicyDenied:
        for region in _REGIONS:
            with contextlib.suppress(PolicyDenied):
                return create({"userManaged": {"replicas": [{"location": region}]}})
        raise


def drop(client: GcpClient, name: str) -> None:
    if _NAME.fullmatch(name):
        with contextlib.suppress(NotFound):
            client.call(_SERVICE, "DELETE", _path(client, name))


def _path(client: GcpClient, name: str) -> str:
    return f"v1/projects/{client.project}/secrets/{name}"


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadRequest(f"invalid secret name `{name}`", hint="use letters, digits, `-` and `_`, at most 255")
    return name


def read(client: GcpClient, name: str) -> dict[str, str]:
    """Return the values of the newest version. Raises NotFound, Denied."""
    doc = client.call(_SERVICE, "GET", f"{_path(client, _checked(name))}/versions/latest:access").doc
    values = json.loads(base64.b64decode(doc["payload"]["data"]))
    return {str(key): str(value) for key, value in values.items()}
