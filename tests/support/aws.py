"""moto's server with machines behind it, one for all tests of a process; each test has an EC2 without instances."""

from __future__ import annotations

import getpass
import json
import os
import secrets
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlast.clouds.aws.client import AwsClient
from outlast.clouds.aws.cloud import AwsCloud
from outlast.clouds.local.cloud import LocalCloud
from outlast.testing.motoconditions import REAL

pytest.importorskip("boto3")
pytest.importorskip("moto.moto_server")

REGION = "us-east-1"


class Bridge:
    def __init__(self, url: str, root: str, *, mode: str) -> None:
        self.url, self.root = url, root
        self.local = LocalCloud(root, mode=mode)
        self.variables = {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": REGION,
            "OUTLAST_AWS_INSTANCE_PROFILE": "",
            "OUTLAST_AWS_SSH_USER": getpass.getuser(),
            "OUTLAST_AWS_SSH_PROXY": shlex.join([sys.executable, "-m", "tests.integration.aws.connect", root]) + " %i",
        }

    @cached_property
    def _client(self) -> AwsClient:
        return AwsClient()

    def new_bucket(self) -> str:
        """Create an empty bucket and return its name. The variables must be set."""
        name = f"box-{secrets.token_hex(4)}"
        self._client.call("s3", "create_bucket", Bucket=name)
        return name

    def send(self, what: str, argv: Any) -> Any:
        request = urllib.request.Request(f"{self.url}/__bridge/{what}", json.dumps(argv).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    def grace(self, grace_s: float) -> None:
        """How long machines have after the notice; two minutes are too long for a test."""
        for zone in self.local.zone_settings():
            self.local.set_zone(zone, grace_s=grace_s)

    def rules(self, *rules: dict[str, Any]) -> None:
        self.send("rules", list(rules))

    def conditions(self, **changes: Any) -> None:
        """Set the conditions of the real cloud, with changes."""
        self.send("conditions", msgspec.to_builtins(msgspec.structs.replace(REAL, **changes)))


@contextmanager
def run_bridge(root: str, *, mode: str) -> Iterator[Bridge]:
    """Run the server with machines of a mode of the local cloud; delete them at the end."""
    argv = [sys.executable, "-m", "outlast.testing.motobridge", root]
    with open(f"{root}/bridge.log", "wb") as log:
        environ = {**os.environ, "OUTLAST_LOCAL_MODE": mode}
        server = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=log, env=environ)
    assert server.stdout is not None
    url = server.stdout.readline().decode().strip()
    assert url.startswith("http://127.0.0.1:"), Path(root, "bridge.log").read_text()
    bridge = Bridge(url, root, mode=mode)
    bridge.conditions()
    yield bridge
    server.terminate()
    server.wait(timeout=600)
    for machine in bridge.local.machines():
        bridge.local.delete(machine.name)


@pytest.fixture(scope="session")
def bridge_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bridge]:
    with run_bridge(str(tmp_path_factory.mktemp("aws-machines")), mode="pidns") as bridge:
        yield bridge


@pytest.fixture
def bridge(bridge_process: Bridge, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bridge]:
    for name, value in bridge_process.variables.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    bridge_process.rules()
    bridge_process.conditions()
    bridge_process.grace(0.5)
    yield bridge_process
    bridge_process.rules()


@pytest.fixture
def cloud(bridge: Bridge) -> AwsCloud:
    return AwsCloud()
