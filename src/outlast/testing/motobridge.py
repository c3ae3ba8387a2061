"""A server of `moto` whose instances are machines of the local cloud, with user data and metadata.

    python -m outlast.testing.motobridge ROOT [PORT]

The bridge adds features that moto lacks: client tokens, zones of fleets, refusals, consoles, interruptions. Faults are
injected by `POST /__bridge/rules` (JSON, a list of `motofaults.FaultRule`). It listens on loopback only.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qsl, urlencode

from outlast.testing.motofaults import FaultAnswer, FaultRules, refusal
from outlast.testing.motolife import Life

Environ = dict[str, Any]
_TOKENED = ("RunInstances", "CreateFleet")
_UBUNTU = "/aws/service/canonical/ubuntu/"


class Bridge:
    def __init__(self, moto: Callable[..., Iterable[bytes]], life: Life) -> None:
        self._moto = moto
        self._life = life
        self._rules = FaultRules()
        self._lock = threading.RLock()
        self._storing = threading.Lock()
        self._tokens: dict[str, tuple[str, FaultAnswer, list[str]]] = {}
        self.calls: list[str] = []
        self._quota = 64.0

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
        elif path == "/__bridge/quota":
            self._quota = float(json.loads(body)["processors"])
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
            rule = self._rules.match(action, params)
            if rule is not None and not rule.after and not rule.vanish:
                return rule.answer(action)
            self._life.sync_from_machines()
            answer = self._ec2(environ, body, action, params)
            self._life.sync_to_machines()
            if rule is not None and rule.vanish:
                self._life.vanish()
                return answer
            return rule.answer(action) if rule is not None else answer

    def _ec2(self, environ: Environ, body: bytes, action: str, params: dict[str, str]) -> FaultAnswer:
        if (why := self._life.refuses(action, params)) is not None:
            return refusal(*why)
        if action == "GetConsoleOutput":
            return self._console(params["InstanceId"])
        if action == "CreateImage":
            return self._ask_moto(environ, _without_snapshot_tags(params))
        if action == "DeleteFleets" and self._life.is_empty(params):
            # moto fails for a fleet whose instances were terminated before.
            return self._ask_moto(environ, urlencode({**params, "TerminateInstances": "false"}).encode())
        token = params.get("ClientToken", "")
        if action not in _TOKENED or not token:
            return self._ask_moto(environ, body)
        digest = hashlib.sha256(body).hexdigest()
        if token in self._tokens:
            before, answer, made = self._tokens[token]
            if before != digest:
                return refusal("IdempotentParameterMismatch", "the token was used with other parameters")
            if made and not self._life.any_alive(made):
                return refusal("IdempotentInstanceTerminated", "the instance of this token was terminated")
            return answer
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
        space = "http://ec2.amazonaws.com/doc/2016-11-15/"
        text = (
            f'<GetConsoleOutputResponse xmlns="{space}"><requestId>r</requestId><instanceId>{id}</instanceId>'
            f"<timestamp>2026-01-01T00:00:00.000Z</timestamp><output>{output}</output></GetConsoleOutputResponse>"
        )
        return FaultAnswer(200, text.encode(), (("Content-Type", "text/xml"),))

    def _other(self, environ: Environ, body: bytes) -> FaultAnswer:
        # As `ssm AmazonSSM.PutParameter`, `fis POST /experiments`.
        scope = _scope(environ).partition("Credential=")[2].split("/")
        what = environ.get("HTTP_X_AMZ_TARGET") or f"{environ['REQUEST_METHOD']} {environ.get('PATH_INFO', '')}"
        with self._lock:
            self.calls.append(f"{scope[3] if len(scope) > 3 else '?'} {what}")
        if "/servicequotas/" in _scope(environ):
            quota = {"Quota": {"QuotaCode": json.loads(body)["QuotaCode"], "Value": self._quota}}
            return FaultAnswer(200, json.dumps(quota).encode(), (("Content-Type", "application/x-amz-json-1.1"),))
        if "/pricing/" in _scope(environ):
            why = {"__type": "AccessDeniedException", "message": "this account may not read prices"}
            return FaultAnswer(400, json.dumps(why).encode(), (("Content-Type", "application/x-amz-json-1.1"),))
        target = environ.get("HTTP_X_AMZ_TARGET", "")
        if target.startswith("AmazonSSM."):
            with self._lock:
                rule = self._rules.match(target.rpartition(".")[2], {})
            if rule is not None:
                return rule.answer_json()
        if target.endswith(".GetParameter"):
            name = json.loads(body)["Name"]
            if name.startswith(_UBUNTU):
                # moto has only the parameters of Amazon Linux; any of its images will do.
                value = {"Parameter": {"Name": name, "Type": "String", "Value": self._life.some_image()}}
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
