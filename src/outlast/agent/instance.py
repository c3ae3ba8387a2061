"""The machine's own view of itself: metadata, notice, secrets, deletion. Uses GCE's protocol without a cloud SDK."""

from __future__ import annotations

import base64
import http.client
import os
import time
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from outlast.code.bootstrap import NotAllowedYet

# Google's name for it; the local cloud and tests override it by a variable.
_HOST = "metadata.google.internal"
_FLAVOR = {"Metadata-Flavor": "Google"}
_API_TIMEOUT_S = 30.0
# Ends of the hosts of Artifact Registry and of its predecessor.
_REGISTRIES = ("-docker.pkg.dev", ".gcr.io")
# How long a spot machine has after the notice, unless the attribute `outlast-grace-s` is set.
_GRACE_S = 30.0
_MAINTENANCE = "/computeMetadata/v1/instance/maintenance-event"
# Token for the local cloud's own API. Google's machines have none and use Google's APIs.
_LOCAL_TOKEN = "outlast-self-token"


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """The announcement that the command must stop soon: a preemption, a limit or a move."""

    why: str
    grace_s: float
    # A warning that a notice may follow: nothing ends yet.
    early: bool = False
    # The run has reached a limit: the story has the event, and the cloud keeps the machine.
    limit: bool = False
    # The supervisor moves the run to another machine: the story has the event.
    moves: bool = False
    # Another machine of the run is preempted or lost: the story has the event.
    peer: bool = False

    @property
    def from_story(self) -> bool:
        """Whether it came from the story, and not from the cloud."""
        return self.limit or self.moves or self.peer


class Instance(Protocol):
    """The machine that the agent runs on."""

    def attribute(self, name: str, default: str = "") -> str:
        """Return an attribute of the instance metadata. Raises OSError if the metadata server is unreachable."""

    def wait_for_notice(self, timeout_s: float) -> Notice | None:
        """Block until the notice comes, or until the timeout. Raises OSError; the caller retries.

        An `early` one is returned once, and the notice itself may follow.
        """

    def name(self) -> str:
        """Return its name in the cloud; empty if it has none yet. Raises OSError."""

    def address(self) -> str:
        """Return its address for other machines of this cloud. Raises OSError."""

    def secrets(self, name: str) -> dict[str, str]:
        """Return the values of that secret. Raises OSError."""

    def registry_login(self, host: str) -> tuple[str, str] | None:
        """Return user and password for a container registry of this cloud; None for others. Raises OSError."""

    def delete_self(self) -> None:
        """Delete this machine and its disks through the cloud's API: a stopped machine would still be billed."""


class GceInstance:
    """A machine with Google's metadata protocol: Compute Engine, or the local cloud."""

    def __init__(self, host: str = "") -> None:
        self.host = host or os.environ.get("GCE_METADATA_HOST", _HOST)
        self._etag = ""
        self._warned = False

    def attribute(self, name: str, default: str = "") -> str:
        status, body, _ = self._ask("GET", f"/computeMetadata/v1/instance/attributes/{name}", timeout_s=5.0)
        return body.decode() if status == 200 else default

    def wait_for_notice(self, timeout_s: float) -> Notice | None:
        path = f"/computeMetadata/v1/instance/preempted?wait_for_change=true&timeout_sec={max(1, int(timeout_s))}"
        if not self._etag:  # the first request must not wait: the notice may have come before it
            path = "/computeMetadata/v1/instance/preempted"
        else:
            path += f"&last_etag={self._etag}"
        status, body, etag = self._ask("GET", path, timeout_s=timeout_s + 10.0)
        self._etag = etag
        if status == 200 and body.strip() == b"TRUE":
            grace = self.attribute("outlast-grace-s")
            return Notice(why="preempted", grace_s=float(grace) if grace else _GRACE_S)
        return None if self._warned else self._maintenance()

    def _maintenance(self) -> Notice | None:
        """Return a warning if Google plans to stop this machine. With a GPU it announces that an hour before."""
        status, body, _ = self._ask("GET", _MAINTENANCE, timeout_s=5.0)
        if status != 200 or not body.startswith(b"TERMINATE"):
            return None
        self._warned = True
        return Notice(why="Google plans to stop this machine for maintenance", grace_s=0.0, early=True)

    def name(self) -> str:
        return self.value("instance/name")

    def address(self) -> str:
        return self.value("instance/network-interfaces/0/ip")

    def secrets(self, name: str) -> dict[str, str]:
        if not (token := self.attribute(_LOCAL_TOKEN)):
            return _read_secret(self._token(), project=self.value("project/project-id"), name=name)
        status, body, _ = self._private("GET", f"/outlast/v1/secrets/{name}", token)
        if status != 200:
            raise OSError(f"the cloud returned {status} for the secrets of this run")
        return msgspec.json.decode(body, type=dict[str, str])

    def registry_login(self, host: str) -> tuple[str, str] | None:
        if not f".{host}".endswith(_REGISTRIES) or self.attribute(_LOCAL_TOKEN):
            return None
        return "oauth2accesstoken", self._token()

    def delete_self(self) -> None:
        if token := self.attribute(_LOCAL_TOKEN):
            self._private("POST", "/outlast/v1/self/delete", token)
            return
        project, name = self.value("project/project-id"), self.value("instance/name")
        zone = self.value("instance/zone").rpartition("/")[2]
        _delete_instance(self._token(), project=project, zone=zone, name=name)

    def value(self, path: str) -> str:
        """Return another value of the metadata server. Raises OSError."""
        status, body, _ = self._ask("GET", f"/computeMetadata/v1/{path}", timeout_s=5.0)
        if status != 200:
            raise OSError(f"metadata server: GET {path} returned {status}")
        return body.decode().strip()

    def _token(self) -> str:
        """Return an access token of this machine's service account."""
        answer = msgspec.json.decode(self.value("instance/service-accounts/default/token"))
        return str(answer["access_token"])

    def _private(self, method: str, path: str, token: str) -> tuple[int, bytes, str]:
        return self._ask(method, path, timeout_s=10.0, headers={"Authorization": f"Bearer {token}"})

    def _ask(
        self, method: str, path: str, *, timeout_s: float, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes, str]:
        connection = http.client.HTTPConnection(self.host, timeout=timeout_s)
        try:
            connection.request(method, path, headers={**_FLAVOR, **(headers or {})})
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.headers.get("ETag", "")
        except http.client.HTTPException as problem:
            raise OSError(f"metadata server: {problem!r}") from problem
        finally:
            connection.close()


def attribute_with_retries(instance: Instance, name: str, *, timeout_s: float = 30.0) -> str:
    """Read an attribute at boot, with retries: the network may not be up yet."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return instance.attribute(name)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


# Google's APIs, with the token of the machine's service account


def _api_url(service: str, path: str) -> str:
    """Return the URL of a service; gcloud's variables override it."""
    given = os.environ.get(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{service.upper()}", "")
    return given.rstrip("/") or f"https://{service}.googleapis.com{path}"


def _delete_instance(token: str, *, project: str, zone: str, name: str) -> None:
    """Delete the machine and its disks, if it still exists. Raises OSError."""
    base = _api_url("compute", "/compute/v1")
    status, body = _request("DELETE", f"{base}/projects/{project}/zones/{zone}/instances/{name}", token)
    if status >= 300 and status != 404:
        raise OSError(f"Compute Engine returned {status}: {_message(body)}")


def _read_secret(token: str, *, project: str, name: str) -> dict[str, str]:
    """Return the newest version of a secret. Raises OSError."""
    base = _api_url("secretmanager", "")
    status, body = _request("GET", f"{base}/v1/projects/{project}/secrets/{name}/versions/latest:access", token)
    if status != 200:
        kind = NotAllowedYet if status in (401, 403) else OSError
        raise kind(f"Secret Manager returned {status}: {_message(body)}")
    data = base64.b64decode(msgspec.json.decode(body)["payload"]["data"])
    return msgspec.json.decode(data, type=dict[str, str])


def _request(method: str, url: str, token: str) -> tuple[int, bytes]:
    split = urlsplit(url)
    kind = http.client.HTTPSConnection if split.scheme == "https" else http.client.HTTPConnection
    connection = kind(split.netloc, timeout=_API_TIMEOUT_S)
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
