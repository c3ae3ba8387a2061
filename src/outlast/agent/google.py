"""Requests of a machine to Google's APIs about itself, with its service account's token and without a cloud SDK."""

from __future__ import annotations

import base64
import http.client
import os
from urllib.parse import urlsplit

import msgspec

_TIMEOUT_S = 30.0


def address(service: str, path: str) -> str:
    """Return the URL of a service; gcloud's variables override it."""
    given = os.environ.get(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{service.upper()}", "")
    return given.rstrip("/") or f"https://{service}.googleapis.com{path}"


def delete_instance(token: str, *, project: str, zone: str, name: str) -> None:
    """Delete the machine and its disks, if it still exists. Raises OSError."""
    base = address("compute", "/compute/v1")
    status, body = _request("DELETE", f"{base}/projects/{project}/zones/{zone}/instances/{name}", token)
    if status >= 300 and status != 404:
        raise OSError(f"Compute Engine returned {status}: {_message(body)}")


def read_secret(token: str, *, project: str, name: str) -> dict[str, str]:
    """Return the newest version of a secret. Raises OSError."""
    base = address("secretmanager", "")
    status, body = _request("GET", f"{base}/v1/projects/{project}/secrets/{name}/versions/latest:access", token)
    if status != 200:
        raise OSError(f"Secret Manager returned {status}: {_message(body)}")
    data = base64.b64decode(msgspec.json.decode(body)["payload"]["data"])
    return msgspec.json.decode(data, type=dict[str, str])


def _request(method: str, url: str, token: str) -> tuple[int, bytes]:
    split = urlsplit(url)
    kind = http.client.HTTPSConnection if split.scheme == "https" else http.client.HTTPConnection
    connection = kind(split.netloc, timeout=_TIMEOUT_S)
    try:
        connection.request(method, split.path, headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        return response.status, response.read()
    except http.client.HTTPException as problem:
        raise OSError(f"{split.netloc}: {problem!r}") from problem
    finally:
        connection.close()


def _message(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")
