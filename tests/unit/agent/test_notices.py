"""Notices and warnings that a machine reads from its metadata server, with the servers' paths and values."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from outlast.agent.ec2 import Ec2Instance
from outlast.agent.instance import GceInstance

GOOGLE = "/computeMetadata/v1/instance/"
AMAZON = "/latest/meta-data/"


class Metadata:
    """A metadata server with the values of `paths`."""

    def __init__(self) -> None:
        self.paths: dict[str, str] = {}
        paths = self.paths

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = paths.get(self.path.partition("?")[0])
                self.send_response(404 if body is None else 200)
                self.send_header("ETag", "1")
                self.end_headers()
                self.wfile.write((body or "").encode())

            def do_PUT(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"token")

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    found = Metadata()
    yield found
    found.server.shutdown()
    found.server.server_close()


def test_google_announces_maintenance_once_and_then_a_preemption(metadata: Metadata) -> None:
    machine = GceInstance(metadata.host)
    metadata.paths[GOOGLE + "preempted"] = "FALSE"
    metadata.paths[GOOGLE + "maintenance-event"] = "NONE"
    assert machine.wait_for_notice(0.0) is None
    metadata.paths[GOOGLE + "maintenance-event"] = "TERMINATE_ON_HOST_MAINTENANCE"
    notice = machine.wait_for_notice(0.0)
    assert notice is not None
    assert (notice.early, "maintenance" in notice.why) == (True, True)
    assert machine.wait_for_notice(0.0) is None
    metadata.paths[GOOGLE + "preempted"] = "TRUE"
    metadata.paths[GOOGLE + "attributes/outlast-grace-s"] = "120"
    taken = machine.wait_for_notice(0.0)
    assert taken is not None
    assert (taken.early, taken.grace_s) == (False, 120.0)


def test_google_migrates_most_machines_without_a_warning(metadata: Metadata) -> None:
    metadata.paths[GOOGLE + "preempted"] = "FALSE"
    metadata.paths[GOOGLE + "maintenance-event"] = "MIGRATE_ON_HOST_MAINTENANCE"
    assert GceInstance(metadata.host).wait_for_notice(0.0) is None


@pytest.mark.parametrize(
    ("plans", "warned"),
    [
        ([], False),
        ([{"Code": "instance-retirement", "State": "active", "NotBefore": "1 Dec 2026 00:00:00 GMT"}], True),
        ([{"Code": "instance-reboot", "State": "completed", "NotBefore": "1 Dec 2026 00:00:00 GMT"}], False),
        ("unknown", False),
    ],
)
def test_amazon_announces_the_retirement_of_a_machine(
    metadata: Metadata, monkeypatch: pytest.MonkeyPatch, plans: object, warned: bool
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://{metadata.host}")
    metadata.paths[AMAZON + "events/maintenance/scheduled"] = json.dumps(plans)
    machine = Ec2Instance()
    notice = machine.wait_for_notice(0.0)
    assert (notice is not None and notice.early and "instance-retirement" in notice.why) == warned
    assert machine.wait_for_notice(0.0) is None
