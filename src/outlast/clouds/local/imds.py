"""Amazon's metadata protocol (IMDSv2), for machines that emulate EC2 instances. Off unless it is given paths."""

from __future__ import annotations

import base64
import datetime
import json
import secrets
import time

from outlast.clouds.local.http_server import MetadataRequest, Reply

_ROOT = "/latest/"
_TOKEN, _TTL = "x-aws-ec2-metadata-token", "x-aws-ec2-metadata-token-ttl-seconds"
_TTL_S_MAX = 21600
_TEXT = "text/plain"
_USER_DATA = "user-data"


class Imds:
    def __init__(self, address: str = "") -> None:
        self._address = address
        self._paths: dict[str, str] | None = None
        self._tokens: dict[str, float] = {}
        self._ends_at = 0.0

    def read(self, text: str) -> None:
        """Read path below `/latest/` → content from JSON; an empty text switches it off. User data is base64."""
        try:
            paths = json.loads(text) if text else None
        except ValueError:
            paths = None  # a user may set this; no attribute may crash a machine
        self._paths = {str(k): str(v) for k, v in paths.items()} if isinstance(paths, dict) else None

    def answers(self, request: MetadataRequest) -> bool:
        return self._paths is not None and request.path.startswith(_ROOT)

    def reply(self, request: MetadataRequest, *, grace_s: float | None) -> Reply:
        """Answer a request. `grace_s` is the time from the preemption notice to the end; None: no notice yet."""
        if "x-forwarded-for" in request.headers:
            return Reply(403)
        path = request.path.removeprefix(_ROOT)
        if path == "api/token":
            return self._token(request)
        now = time.monotonic()
        if self._tokens.get(request.headers.get(_TOKEN, ""), 0.0) < now:
            return Reply(401, content_type=_TEXT)
        if request.method not in ("GET", "HEAD"):
            return Reply(405)
        own = {"meta-data/local-ipv4": self._address} if self._address else {}
        paths = {**own, **(self._paths or {}), **self._notice(grace_s)}
        if path == _USER_DATA and path in paths:
            return Reply(200, base64.b64decode(paths[path]), "application/octet-stream")
        if path in paths:
            return Reply(200, paths[path], _TEXT)
        folder = path.rstrip("/") + "/"
        below = [name.removeprefix(folder) for name in paths if name.startswith(folder)]
        names = sorted({name.partition("/")[0] + ("/" if "/" in name else "") for name in below})
        return Reply(200, "\n".join(names), _TEXT) if names else Reply(404, content_type=_TEXT)

    def _token(self, request: MetadataRequest) -> Reply:
        ttl = request.headers.get(_TTL, "")
        if request.method != "PUT":
            return Reply(405)
        if not ttl.isascii() or not ttl.isdigit() or not 1 <= int(ttl) <= _TTL_S_MAX:
            return Reply(400, content_type=_TEXT)
        now = time.monotonic()
        self._tokens = {known: until for known, until in self._tokens.items() if until > now}
        token = secrets.token_urlsafe(40)
        self._tokens[token] = now + int(ttl)
        return Reply(200, token, _TEXT)

    def _notice(self, grace_s: float | None) -> dict[str, str]:
        if grace_s is None:
            self._ends_at = 0.0
            return {}
        self._ends_at = self._ends_at or time.time() + grace_s
        when = datetime.datetime.fromtimestamp(self._ends_at, datetime.UTC).isoformat(timespec="milliseconds")
        when = when.replace("+00:00", "Z")
        return {
            "meta-data/spot/instance-action": json.dumps({"action": "terminate", "time": when}),
            "meta-data/spot/termination-time": when,
            "meta-data/events/recommendations/rebalance": json.dumps({"noticeTime": when}),
        }
