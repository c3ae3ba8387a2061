"""A server of `moto` whose instances are machines of the local cloud, with user data and metadata.

    python -m outlast.testing.motobridge ROOT [PORT]

The bridge adds features that moto lacks: client tokens, zones of fleets, refusals, consoles, interruptions. Faults are
injected by `POST /__bridge/rules` (JSON, a list of `motofaults.FaultRule`); `POST /__bridge/conditions` makes it as
hostile as AWS (JSON, a `motoconditions.MotoConditions`). It listens on loopback only.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec

from outlast.testing.motoconditions import MotoConditions
from outlast.testing.motofaults import FaultAnswer, FaultRules, empty_fleet, refusal
from outlast.testing.motolife import Life

Environ = dict[str, Any]
_OVERRIDE = re.compile(r"LaunchTemplateConfigs\.\d+\.Overrides\.\d+\.")
_TOKENED = ("RunInstances", "CreateFleet")
_IMAGES = ("/aws/service/canonical/ubuntu/", "/aws/service/deeplearning/ami/")


class Bridge:
    def __init__(self, moto: Callable[..., Iterable[bytes]], life: Life) -> None:
        self._moto = moto
        self._life = life
        self._rules = FaultRules()
        self._surroundings = life.surroundings
        self._lock = threading.RLock()
        self._storing = threading.Lock()
        self._tokens: dict[str, tuple[str, FaultAnswer, list[str]]] = {}
        self.calls: list[str] = []
        self._quota = 64.0
        self._disk_key = "alias/aws/ebs"

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if environ.get("HTTP_TRANSFER_ENCODING", "").lower() == "chunked" or "/s3/" in _scope(environ):
            return self._s3(environ, start_response)
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(length)
        answer = self._control(path, body) if path.startswith("/__bridge/") else self._answer(environ, body)
        return _respond(answer, start_response)

    def _s3(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        with self._lock:
            rule = self._rules.match(f"S3.{environ['REQUEST_METHOD']}", {})
        if rule is not None:
            length = int(environ.get("CONTENT_LENGTH") or 0)
            environ["wsgi.input"].read(length)
            return _respond(rule.answer_s3(), start_response)
        method, path = environ["REQUEST_METHOD"], str(environ.get("PATH_INFO", ""))
        if (denied := self._surroundings.refuses_object(_scope(environ), method, path)) is not None:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            return _respond(denied, start_response)
        if environ["REQUEST_METHOD"] != "PUT":
            return self._moto(environ, start_response)
        # moto checks for an object and writes it in two steps; S3 does so atomically.
        with self._storing:
            return list(self._moto(environ, start_response))

    def _control(self, path: str, body: bytes) -> FaultAnswer:
        if path == "/__bridge/rules":
            self._rules.replace(json.loads(body))
        elif path == "/__bridge/rebalance":
            self._life.rebalance(json.loads(body)["instance"])
        elif path == "/__bridge/base":
            self._life.boot_from(**json.loads(body))
        elif path == "/__bridge/quota":
            self._quota = float(json.loads(body)["processors"])
        elif path == "/__bridge/conditions":
            self._surroundings.now = msgspec.json.decode(body, type=MotoConditions)
        elif path == "/__bridge/clock":
            self._surroundings.advance(float(json.loads(body)["seconds"]))
        elif path == "/__bridge/calls":
            return FaultAnswer(200, json.dumps(self.calls).encode())
        return FaultAnswer(200, b"{}")

    def _answer(self, environ: Environ, body: bytes) -> FaultAnswer:
        if "/ec2/" not in _scope(environ):
            return self._other(environ, body)
        params = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
        action = params.get("Action", "")
        with self._lock:
            self.calls.append(action)
            digest = hashlib.sha256(body).hexdigest()
            if action == "CreateFleet" and params.get("ClientToken", "") not in self._tokens:
                full = self._rules.full_zones(action, [zone for _, zone in _pools(params)])
                params = _with_pool(params, full)
                body = urlencode(params).encode()
                if not _pools(params):
                    return empty_fleet("InsufficientInstanceCapacity", "no capacity in any pool")
            rule = self._rules.match(action, {**params, "Region": _region(environ)})
            if rule is not None and not rule.after and not rule.vanish:
                return rule.answer(action)
            self._life.sync_from_machines()
            known = set(self._life.instances())
            answer = self._surroundings.refuses(action, params, self._life.profile(params), region=_region(environ))
            answer = answer or self._ec2(environ, body, action, params, digest)
            self._life.sync_to_machines()
            new = [id for id in self._life.instances() if id not in known]
            self._surroundings.created(action, params, answer, new)
            answer = self._surroundings.without_late(action, params, answer)
            if rule is not None and rule.vanish:
                self._life.vanish()
                return answer
            return rule.answer(action) if rule is not None else answer

    def _ec2(self, environ: Environ, body: bytes, action: str, params: dict[str, str], digest: str) -> FaultAnswer:
        if (why := self._life.refuses(action, params)) is not None:
            return refusal(*why)
        if action == "GetConsoleOutput":
            return self._console(params["InstanceId"])
        if action == "ModifyEbsDefaultKmsKeyId":
            self._disk_key = params["KmsKeyId"]
        if action == "GetEbsDefaultKmsKeyId":  # moto only stores it
            return _xml(action, f"<kmsKeyId>{self._disk_key}</kmsKeyId>")
        if action == "CreateImage":
            return self._ask_moto(environ, _without_snapshot_tags(params))
        if action == "DeleteFleets" and self._life.is_empty(params):
            # moto fails for a fleet whose instances were terminated before.
            return self._ask_moto(environ, urlencode({**params, "TerminateInstances": "false"}).encode())
        token = params.get("ClientToken", "")
        if action not in _TOKENED or not token:
            return self._ask_moto(environ, body)
        if token in self._tokens:
            before, answer, made = self._tokens[token]
            if before != digest:
                return refusal("IdempotentParameterMismatch", "the token was used with other parameters")
            if made and not self._life.any_alive(made):
                return refusal("IdempotentInstanceTerminated", "the instance of this token was terminated")
            return answer
        if action == "CreateFleet" and (room := self._surroundings.now.room) is not None:
            wanted = int(params["TargetCapacitySpecification.TotalTargetCapacity"])
            left, least = room - self._life.count_alive(), _least(params)
            if min(left, wanted) < max(1, least):
                return empty_fleet("InsufficientInstanceCapacity", "no capacity for so many instances here")
            granted = str(min(left, wanted))
            body = urlencode({**params, "TargetCapacitySpecification.TotalTargetCapacity": granted}).encode()
        known = set(self._life.instances())
        answer = self._ask_moto(environ, body)
        made = [id for id in self._life.instances() if id not in known]
        if action == "CreateFleet":
            self._life.adjust(made, params)
        if answer.status < 300:
            self._tokens[token] = (digest, answer, made)
        return answer

    def _console(self, id: str) -> FaultAnswer:
        output = base64.b64encode(self._life.console(id).encode()).decode()
        at = "<timestamp>2026-01-01T00:00:00.000Z</timestamp>"
        return _xml("GetConsoleOutput", f"<instanceId>{id}</instanceId>{at}<output>{output}</output>")

    def _other(self, environ: Environ, body: bytes) -> FaultAnswer:
        # As `ssm AmazonSSM.PutParameter`, `fis POST /experiments`.
        scope = _scope(environ).partition("Credential=")[2].split("/")
        what = environ.get("HTTP_X_AMZ_TARGET") or f"{environ['REQUEST_METHOD']} {environ.get('PATH_INFO', '')}"
        with self._lock:
            self.calls.append(f"{scope[3] if len(scope) > 3 else '?'} {what}")
        if "/servicequotas/" in _scope(environ):
            code = str(json.loads(body)["QuotaCode"])
            quota = {"Quota": {"QuotaCode": code, "Value": self._surroundings.quota(code, self._quota)}}
            return FaultAnswer(200, json.dumps(quota).encode(), (("Content-Type", "application/x-amz-json-1.1"),))
        if "/pricing/" in _scope(environ):
            why = {"__type": "AccessDeniedException", "message": "this account may not read prices"}
            return FaultAnswer(400, json.dumps(why).encode(), (("Content-Type", "application/x-amz-json-1.1"),))
        params = dict(parse_qsl(body.decode("utf-8", "replace"))) if "/iam/" in _scope(environ) else {}
        if params.get("Action") == "CreateInstanceProfile":
            self._surroundings.delay(("profile", params["InstanceProfileName"]), self._surroundings.now.profile_delay)
        target = environ.get("HTTP_X_AMZ_TARGET", "")
        if target.startswith("AmazonSSM."):
            with self._lock:
                rule = self._rules.match(target.rpartition(".")[2], {"Region": _region(environ)})
            if rule is not None:
                return rule.answer_json()
        if target.endswith(".GetParameter"):
            name = json.loads(body)["Name"]
            if name.startswith(_IMAGES):
                # moto has only the parameters of Amazon Linux; any of its images will do.
                value = {
                    "Parameter": {"Name": name, "Type": "String", "Value": self._life.some_image(_region(environ))}
                }
                return FaultAnswer(200, json.dumps(value).encode(), (("Content-Type", "application/x-amz-json-1.1"),))
        if environ["REQUEST_METHOD"] == "PUT":
            # moto checks for an object and writes it in two steps; S3 does so atomically.
            with self._storing:
                return self._ask_moto(environ, body)
        answer = self._ask_moto(environ, body)
        if environ["REQUEST_METHOD"] == "POST" and environ.get("PATH_INFO") == "/experiments" and answer.status < 300:
            with self._lock:
                self._life.interrupt(json.loads(answer.body)["experiment"])
        return answer

    def _ask_moto(self, environ: Environ, body: bytes) -> FaultAnswer:
        caught: list[tuple[str, list[tuple[str, str]]]] = []
        again = {**environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        chunks = self._moto(again, lambda status, headers, *_: caught.append((status, headers)))
        whole = b"".join(chunks)
        status, headers = caught[0]
        return FaultAnswer(int(status.split()[0]), whole, tuple(headers))


def _pools(params: dict[str, str]) -> list[tuple[str, str]]:
    """Return the overrides of a fleet: the beginning of their parameters, and their zone (empty: any)."""
    found = dict.fromkeys(match[0] for key in params if (match := _OVERRIDE.match(key)))
    return [(one, params.get(one + "AvailabilityZone", "")) for one in found]


def _with_pool(params: dict[str, str], full: set[str]) -> dict[str, str]:
    """Return a request with the one pool that the fleet uses: the last with capacity, which we do not expect."""
    pools = [one for one, _ in _pools(params)]
    used = [one for one, zone in _pools(params) if zone not in full][-1:]
    others = {key: value for key, value in params.items() if not key.startswith(tuple(pools) or ("-",))}
    # moto expects the first number.
    renamed = {key.replace(one, pools[0]): value for one in used for key, value in params.items() if one in key}
    return others | renamed


def _least(params: dict[str, str]) -> int:
    """Return the minimum capacity of a fleet; 0 without one."""
    minimum = next((value for key, value in params.items() if key.endswith(".MinTargetCapacity")), "0")
    single = any(key.endswith((".SingleAvailabilityZone", ".SingleInstanceType")) for key in params)
    # EC2 accepts a minimum only together with one of these.
    return int(minimum) if single else 0


def _xml(action: str, inner: str) -> FaultAnswer:
    """Return an answer of EC2."""
    space = "http://ec2.amazonaws.com/doc/2016-11-15/"
    text = f'<{action}Response xmlns="{space}"><requestId>r</requestId>{inner}</{action}Response>'
    return FaultAnswer(200, text.encode(), (("Content-Type", "text/xml"),))


def _without_snapshot_tags(params: dict[str, str]) -> bytes:
    """Remove the tags of snapshots, which moto does not support."""
    numbers = {key.split(".")[1] for key, value in params.items() if value == "snapshot" and "ResourceType" in key}
    tags = tuple(f"TagSpecification.{number}." for number in numbers)
    kept = {key: value for key, value in params.items() if not (tags and key.startswith(tags))}
    return urlencode(kept).encode()


def _respond(answer: FaultAnswer, start_response: Any) -> Iterable[bytes]:
    start_response(f"{answer.status} {'OK' if answer.status < 400 else 'Error'}", list(answer.headers))
    return [answer.body]


def _scope(environ: Environ) -> str:
    return str(environ.get("HTTP_AUTHORIZATION", ""))


def _region(environ: Environ) -> str:
    """Return the region that a request was signed for."""
    return _scope(environ).partition("Credential=")[2].split("/")[2]


def main(root: str, port: int = 0) -> None:
    os.environ.setdefault("MOTO_EC2_LOAD_DEFAULT_AMIS", "true")
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    life = Life(root)
    bridge = Bridge(DomainDispatcherApplication(create_backend_app), life)
    server = make_server("127.0.0.1", port, bridge, threaded=True, request_handler=MotoRequestHandler)
    life.endpoint = f"http://127.0.0.1:{server.server_port}"
    print(life.endpoint, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0)
