"""The machine as seen from inside: its metadata, its notice, its own end. Speaks GCE's protocol; no cloud SDK."""

from __future__ import annotations

import http.client
import os
import time
from typing import Protocol

import msgspec

from outlast.agent import google

# Google's own name; the local cloud and tests say where else it is.
_HOST = "metadata.google.internal"
_FLAVOR = {"Metadata-Flavor": "Google"}
# How long a spot machine has after the notice, unless the cloud says otherwise in `outlast-grace-s`.
_GRACE_S = 30.0
# With this attribute the local cloud opens its own doors to a machine. Google's machines have none, and ask its APIs.
_OWN_TOKEN = "outlast-self-token"


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """The warning that this machine will soon be taken away."""

    why: str
    grace_s: float
    # The cloud only thinks so: nothing ends yet, and perhaps nothing will.
    early: bool = False
    # The run has reached a limit: the story says so already, and nobody takes the machine away.
    limit: bool = False
    # The supervisor takes the run to another machine: the story says so already.
    moves: bool = False

    @property
    def told(self) -> bool:
        """Whether it came from the story, and not from the cloud."""
        return self.limit or self.moves


class Instance(Protocol):
    """What the agent needs of the machine it is on."""

    def attribute(self, name: str, default: str = "") -> str:
        """Instance metadata. Raises OSError when the metadata server cannot be reached."""

    def wait_for_notice(self, timeout_s: float) -> Notice | None:
        """Block until the notice comes, or until the timeout. May raise OSError; ask again then. One that is `early`
        comes once, and does not keep the notice itself from coming."""

    def address(self) -> str:
        """Where other machines of this cloud find it. Raises OSError."""

    def secrets(self, name: str) -> dict[str, str]:
        """The values kept under that name, for this machine alone."""

    def delete_self(self) -> None:
        """End this machine and its disks through the cloud's API. A shutdown alone would go on billing."""


class GceInstance:
    """A machine of Google's protocol: Compute Engine itself, or the local cloud."""

    def __init__(self, host: str = "") -> None:
        self.host = host or os.environ.get("GCE_METADATA_HOST", _HOST)
        self._etag = ""

    def attribute(self, name: str, default: str = "") -> str:
        status, body, _ = self._ask("GET", f"/computeMetadata/v1/instance/attributes/{name}", timeout_s=5.0)
        return body.decode() if status == 200 else default

    def wait_for_notice(self, timeout_s: float) -> Notice | None:
        path = f"/computeMetadata/v1/instance/preempted?wait_for_change=true&timeout_sec={max(1, int(timeout_s))}"
        if not self._etag:  # the first look must not wait: the notice may have come before we asked
            path = "/computeMetadata/v1/instance/preempted"
        else:
            path += f"&last_etag={self._etag}"
        status, body, etag = self._ask("GET", path, timeout_s=timeout_s + 10.0)
        self._etag = etag
        if status == 200 and body.strip() == b"TRUE":
            grace = self.attribute("outlast-grace-s")
            return Notice(why="preempted", grace_s=float(grace) if grace else _GRACE_S)
        return None

    def address(self) -> str:
        return self.value("instance/network-interfaces/0/ip")

    def secrets(self, name: str) -> dict[str, str]:
        if not (token := self.attribute(_OWN_TOKEN)):
            return google.read_secret(self._token(), project=self.value("project/project-id"), name=name)
        status, body, _ = self._private("GET", f"/outlast/v1/secrets/{name}", token)
        if status != 200:
            raise OSError(f"the cloud has no secrets for this run ({status})")
        return msgspec.json.decode(body, type=dict[str, str])

    def delete_self(self) -> None:
        if token := self.attribute(_OWN_TOKEN):
            self._private("POST", "/outlast/v1/self/delete", token)
            return
        project, name = self.value("project/project-id"), self.value("instance/name")
        zone = self.value("instance/zone").rpartition("/")[2]
        google.delete_instance(self._token(), project=project, zone=zone, name=name)

    def value(self, path: str) -> str:
        """Anything else that the metadata server tells of this machine and its project. Raises OSError."""
        status, body, _ = self._ask("GET", f"/computeMetadata/v1/{path}", timeout_s=5.0)
        if status != 200:
            raise OSError(f"metadata server: {path}: the answer is {status}")
        return body.decode().strip()

    def _token(self) -> str:
        """Of the account that this machine is, from the metadata server, which only the machine itself reaches."""
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


def patiently(instance: Instance, name: str, *, timeout_s: float = 30.0) -> str:
    """An attribute at boot, when the network may not be up yet."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return instance.attribute(name)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
