"""The answers of a machine's metadata server: GCE's protocol, and two paths that require the machine's token.

POST /outlast/v1/self/delete      delete the machine and its disk
GET  /outlast/v1/secrets/<name>   the secrets that `outlast-secrets` or `outlast-store-key` names, as JSON
"""

from __future__ import annotations

import base64
import hmac
import html
import json
import os
import time
from collections.abc import Callable
from typing import Any

from outlast.clouds.local import guest_attributes, metadata, secrets
from outlast.clouds.local.folder import Folder
from outlast.clouds.local.http_server import MetadataRequest, Reply
from outlast.clouds.local.imds import Imds
from outlast.clouds.local.zones import GRACE_S

ATTRIBUTE_TOKEN = "outlast-self-token"
# The name of a run's own secrets, and of the key with which its machines reach the workspace.
ATTRIBUTES_SECRETS = ("outlast-secrets", "outlast-store-key")
ATTRIBUTE_GRACE = "outlast-grace-s"
# JSON that is merged over the metadata tree. Hidden from the machine.
ATTRIBUTE_OVERLAY = "outlast-overlay"
# JSON of the paths below `/latest/` that the server answers by Amazon's protocol. Hidden from the machine.
ATTRIBUTE_IMDS = "outlast-imds"

_PREFIXES = ("/computeMetadata/v1/", "/computeMetadata/v1beta1/", "/0.1/meta-data/")
_OPEN = {"/": "0.1/\ncomputeMetadata/\n", "/computeMetadata/": "v1/\nv1beta1/\n"}
_PRIVATE = "/outlast/v1/"
_GUEST = "instance/guest-attributes/"
_ATTRIBUTE_GUEST = "enable-guest-attributes"
# How long a request without `timeout_sec` may wait for a change.
_WAIT_S_MAX = 24 * 3600.0


_NOT_FOUND = """<!DOCTYPE html>
<html lang=en>
  <meta charset=utf-8>
  <meta name=viewport content="initial-scale=1, minimum-scale=1, width=device-width">
  <title>Error 404 (Not Found)!!1</title>
  <p><b>404.</b> <ins>That’s an error.</ins>
  <p>The requested URL <code>{path}</code> was not found on this server.  <ins>That’s all we know.</ins>
"""


class MetadataServer:
    """The metadata server of one machine, without its HTTP connections."""

    def __init__(self, folder: Folder, address: str, delete_machine: Callable[[], None]) -> None:
        self._folder = folder
        self._address = address
        self._delete_machine = delete_machine
        self._imds = Imds(address)
        self._read()
        self._seen: tuple[int, int] | None = None
        self._grace_s = GRACE_S
        self.preempted = False

    @property
    def granted_s(self) -> float:
        """The time from the notice to the end in a zone without a setting. An emulator may grant more."""
        return float(self._overlay.get("instance", {}).get("outlast", {}).get("grace_s", GRACE_S))

    @property
    def announces(self) -> bool:
        """Return whether a preemption is announced before the system of the machine shuts down."""
        return bool(self._overlay.get("instance", {}).get("outlast", {}).get("announces", False))

    def refresh(self, *, grace_s: float | None = None) -> bool:
        """Read the attributes again if they changed; return whether they did."""
        if grace_s is not None:
            self._grace_s = grace_s
        try:
            status = os.stat(self._folder.metadata_path)
        except FileNotFoundError:
            return False
        if self._seen == (status.st_mtime_ns, status.st_ino):
            return False
        self._seen = (status.st_mtime_ns, status.st_ino)
        self._read()
        return True

    def _read(self) -> None:
        self._attributes = self._folder.attributes()
        try:
            over = json.loads(self._attributes.pop(ATTRIBUTE_OVERLAY, "{}"))
        except ValueError:
            over = None  # a user may set this; no attribute may crash a machine
        self._overlay: dict[str, Any] = over if isinstance(over, dict) else {}
        self._imds.read(self._attributes.pop(ATTRIBUTE_IMDS, ""))

    def reply(self, request: MetadataRequest) -> Reply:
        if self._imds.answers(request):
            return self._imds.reply(request, grace_s=self._grace_s if self.preempted else None)
        if request.path in _OPEN:
            return Reply(200, _OPEN[request.path], "application/text", metadata.etag(_OPEN[request.path]))
        if request.headers.get("metadata-flavor", "").lower() != "google" or "x-forwarded-for" in request.headers:
            return Reply(403, "Missing or wrong header: Metadata-Flavor: Google is required, X-Forwarded-For refused\n")
        if request.path.startswith(_PRIVATE):
            return self._private(request)
        for prefix in _PREFIXES:
            if request.path.startswith(prefix):
                return self._public(request, request.path.removeprefix(prefix))
            if request.path == prefix.rstrip("/"):
                return _redirect(request)
        return _not_found(request)

    def _public(self, request: MetadataRequest, path: str) -> Reply:
        values = self._tree()
        if path.startswith(_GUEST) and not _guest_attributes_enabled(values):
            return Reply(403, "Guest attributes endpoint access is disabled.\n")
        if path.startswith(_GUEST) and request.method in ("PUT", "DELETE"):
            return self._write(request, path.removeprefix(_GUEST))
        if request.method not in ("GET", "HEAD"):
            return Reply(405)
        if path.startswith("instance/service-accounts/") and path.endswith("/token"):
            return self._token(request, values, path)
        if path.startswith("instance/service-accounts/") and path.endswith("/identity"):
            return self._identity(request, values, path)
        try:
            value = metadata.find(values, path)
        except metadata.NoValue:
            return _not_found(request)
        if metadata.is_directory(value) and path and not path.endswith("/"):
            return _redirect(request)
        if not metadata.is_directory(value) and path.endswith("/"):
            return _not_found(request)
        body, content_type = _render(value, request)
        etag = metadata.etag(body)
        return Reply(200, body, content_type, etag, wait_s=_wait_s(request, etag))

    def _write(self, request: MetadataRequest, path: str) -> Reply:
        value = request.body.decode("utf-8", "replace") if request.method == "PUT" else None
        try:
            guest_attributes.write(self._folder, path, value)
        except guest_attributes.WriteRefused as refusal:
            return Reply(refusal.status, f"{refusal}\n")
        return Reply(200)

    def _tree(self) -> dict[str, Any]:
        # GCE's grace time is fixed. Ours is a setting, so the machine reads it here.
        attributes = {ATTRIBUTE_GRACE: f"{self._grace_s:g}", **self._attributes}
        facts = self._folder.facts() or {}
        guest = guest_attributes.read(self._folder)
        values = metadata.tree(facts, attributes, guest=guest, address=self._address, preempted=self.preempted)
        values = metadata.overlay(values, self._overlay)
        if self._grace_s != self.granted_s:  # the zone's setting shortens it
            values["instance"]["attributes"] |= {ATTRIBUTE_GRACE: f"{self._grace_s:g}"}
        return values

    def _token(self, request: MetadataRequest, values: dict[str, Any], path: str) -> Reply:
        if path.split("/")[2:-1] not in [[account] for account in values["instance"]["service-accounts"]]:
            return _not_found(request)
        # An emulator in front of this cloud sets a token that it accepts. Without one, no server checks it.
        known = values["instance"].get("outlast", {}).get("token", "")
        token = {"access_token": known or f"local-{self._folder.name}", "expires_in": 3599, "token_type": "Bearer"}
        body = json.dumps(token)
        return Reply(200, body, "application/json", metadata.etag(body))

    def _identity(self, request: MetadataRequest, values: dict[str, Any], path: str) -> Reply:
        """Return an unsigned identity token of the machine, for testing a user's service."""
        account = values["instance"]["service-accounts"].get("/".join(path.split("/")[2:-1]))
        if account is None:
            return _not_found(request)
        audience = request.query.get("audience", "")
        if not audience:
            return Reply(400, "non-empty audience parameter required\n")
        now, who = int(time.time()), {"email": account["email"], "email_verified": True, "sub": account["email"]}
        claims = {"iss": "https://accounts.google.com", "aud": audience, "iat": now, "exp": now + 3600, **who}
        parts = [{"alg": "RS256", "kid": "outlast-local", "typ": "JWT"}, claims, {}]
        texts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
        body = ".".join(texts)
        return Reply(200, body, "text/html", metadata.etag(body))

    def _private(self, request: MetadataRequest) -> Reply:
        known = self._attributes.get(ATTRIBUTE_TOKEN, "")
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not known or not hmac.compare_digest(given.encode(), known.encode()):
            return Reply(403, "wrong or missing header: Authorization: Bearer <attribute outlast-self-token>\n")
        what = request.path.removeprefix(_PRIVATE)
        if what == "self/delete":
            if request.method != "POST":
                return Reply(405)
            self._delete_machine()
            return Reply(200, "{}", "application/json")
        if what.startswith("secrets/") and request.method == "GET":
            return self._secrets(what.removeprefix("secrets/"))
        return Reply(404)

    def _secrets(self, name: str) -> Reply:
        # The attribute may have been set a moment ago.
        self.refresh()
        if name not in [self._attributes.get(attribute) for attribute in ATTRIBUTES_SECRETS]:
            return Reply(403, "this machine may not read these secrets\n")
        values = secrets.read(self._folder.root, name)
        return Reply(404) if values is None else Reply(200, json.dumps(values), "application/json")


def _guest_attributes_enabled(values: dict[str, Any]) -> bool:
    """Return whether an attribute of the machine or the project lets its programs write guest attributes."""
    owners = (values["instance"], values["project"])
    return any(str(owner["attributes"].get(_ATTRIBUTE_GUEST, "")).upper() == "TRUE" for owner in owners)


def _render(value: Any, request: MetadataRequest) -> tuple[str, str]:
    recursive = request.query.get("recursive", "").lower() == "true"
    wanted = request.query.get("alt", "")
    if metadata.is_directory(value) and not recursive:
        return metadata.as_listing(value), "application/text"
    if wanted == "json" or (recursive and metadata.is_directory(value) and wanted != "text"):
        # A request below the attributes has left the part of the tree whose names become camelCase.
        named_by_users = any(name in metadata.NAMED_BY_USERS for name in request.path.split("/"))
        return metadata.as_json(value, named_by_users=named_by_users), "application/json"
    if metadata.is_directory(value):
        return metadata.as_text_tree(value), "application/text"
    return metadata.as_text(value), "application/text"


def _wait_s(request: MetadataRequest, etag: str) -> float | None:
    """Return how long to hold the answer back; None if the client's etag is not the current one."""
    if request.query.get("wait_for_change", "").lower() != "true":
        return None
    if request.query.get("last_etag", etag) != etag:
        return None
    try:
        wait_s = float(request.query.get("timeout_sec", _WAIT_S_MAX))
    except ValueError:
        return None
    return min(wait_s, _WAIT_S_MAX) if wait_s > 0 else None


def _not_found(request: MetadataRequest) -> Reply:
    """Return Google's page: a script that ignores the status, such as `$(curl -s …)`, gets this text."""
    return Reply(404, _NOT_FOUND.format(path=html.escape(request.target.partition("?")[0])), "text/html; charset=UTF-8")


def _redirect(request: MetadataRequest) -> Reply:
    path, question, query = request.target.partition("?")
    host = request.headers.get("host", "")
    location = f"{path}/{question}{query}"
    return Reply(301, location=f"http://{host}{location}" if host else location)
