"""The metadata server implements the protocol of GCE and survives malformed requests."""

from __future__ import annotations

import base64
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from outlast.clouds.cloud import Boot
from outlast.clouds.local import metadata
from outlast.clouds.local.cloud import LocalCloud
from outlast.testing.cloud_conformance import MachineFactory, eventually

V1 = "/computeMetadata/v1"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    """One machine for all requests."""
    cloud = LocalCloud(str(tmp_path_factory.mktemp("cloud")), mode="plain")
    fleet = MachineFactory(cloud, patience_s=20.0)
    try:
        boot = Boot(script="sleep 1000", metadata={"some-key": "some value", "empty": ""})
        cloud.launch(fleet.offer(), "m", boot=boot, labels={})
        fleet.wait("m", "running")
        yield cloud
    finally:
        cloud.delete("m")


@pytest.fixture
def get(shared: LocalCloud, ask: Any) -> Callable[..., Any]:
    host = shared.metadata_host("m")
    return lambda path, **options: ask(host, path, **options)


def test_values_are_text_with_an_etag(get: Any) -> None:
    answer = get(f"{V1}/instance/name")
    assert (answer.status, answer.body) == (200, "m")
    assert answer.headers["Content-Type"] == "application/text"
    assert answer.headers["Metadata-Flavor"] == "Google"
    assert len(answer.headers["ETag"]) == 16
    assert get(f"{V1}/instance/attributes/some-key").body == "some value"
    assert get(f"{V1}/instance/attributes/empty").body == ""
    assert get(f"{V1}/instance/name?alt=json").body == '"m"'


@pytest.mark.parametrize(
    "path",
    [
        "instance/id",
        "instance/hostname",
        "instance/zone",
        "instance/machine-type",
        "instance/image",
        "instance/cpu-platform",
        "instance/preempted",
        "instance/maintenance-event",
        "instance/tags",
        "instance/attributes/",
        "instance/scheduling/preemptible",
        "instance/scheduling/automatic-restart",
        "instance/scheduling/on-host-maintenance",
        "instance/disks/0/device-name",
        "instance/network-interfaces/0/ip",
        "instance/service-accounts/default/email",
        "instance/service-accounts/default/aliases",
        "instance/service-accounts/default/scopes",
        "instance/service-accounts/default/token",
        "project/project-id",
        "project/numeric-project-id",
        "project/attributes/",
    ],
)
def test_every_path_that_programs_read_exists(get: Any, path: str) -> None:
    assert get(f"{V1}/{path}").status == 200


def test_directories_are_listed_and_redirected_to(get: Any) -> None:
    assert "attributes/\n" in get(f"{V1}/instance/").body
    assert get(f"{V1}/instance/disks/").body == "0/\n"
    answer = get(f"{V1}/instance?recursive=true")
    assert answer.status == 301
    assert answer.headers["Location"].endswith(f"{V1}/instance/?recursive=true")
    assert get(f"{V1}").status == 301
    assert get("/").body == "0.1/\ncomputeMetadata/\n"


def test_recursive_answers_are_json_in_camel_case_but_for_attributes(get: Any) -> None:
    answer = get(f"{V1}/instance/?recursive=true")
    assert answer.headers["Content-Type"] == "application/json"
    values = answer.json()
    assert values["machineType"].endswith("/machineTypes/local-1")
    assert values["scheduling"] == {
        "automaticRestart": "FALSE",
        "onHostMaintenance": "TERMINATE",
        "preemptible": "TRUE",
    }
    assert values["attributes"]["some-key"] == "some value"
    assert values["serviceAccounts"]["default"]["scopes"]
    assert set(get(f"{V1}/?recursive=true").json()) == {"instance", "project"}
    assert "disks/0/mode READ_WRITE\n" in get(f"{V1}/instance/?recursive=true&alt=text").body


def test_a_missing_path_is_404(get: Any) -> None:
    for path in ("/nothing", f"{V1}/instance/nothing", f"{V1}/instance/name/", f"{V1}/instance/disks/7/", f"{V1}/x/y"):
        assert get(path).status == 404


def test_requests_without_the_header_or_from_elsewhere_are_refused(get: Any) -> None:
    assert get(f"{V1}/instance/name", headers={}).status == 403
    forwarded = {"Metadata-Flavor": "Google", "X-Forwarded-For": "10.0.0.1"}
    assert get(f"{V1}/instance/name", headers=forwarded).status == 403
    assert get(f"{V1}/instance/name", method="POST").status == 405


def test_programs_write_guest_attributes_once_enabled(shared: LocalCloud, get: Any) -> None:
    guest = f"{V1}/instance/guest-attributes"
    eventually("it is not allowed yet", lambda: get(f"{guest}/").status == 403)
    refused = get(f"{guest}/run/state", method="PUT", body="begun")
    assert (refused.status, refused.body) == (403, "Guest attributes endpoint access is disabled.\n")
    shared.set_metadata("m", {"enable-guest-attributes": "TRUE"})
    eventually("the machine knows it", lambda: get(f"{guest}/").status == 200)
    assert get(f"{guest}/").body == ""
    for state in ("begun", "done"):
        assert get(f"{guest}/run/state", method="PUT", body=state).status == 200
    assert get(f"{guest}/other/my-key", method="PUT", body="ä").status == 200
    assert get(f"{guest}/").body == "other/\nrun/\n"
    assert get(f"{guest}/run/state").body == "done"
    assert get(f"{guest}/?recursive=true").json() == {"run": {"state": "done"}, "other": {"my-key": "ä"}}
    assert get(f"{V1}/instance/?recursive=true").json()["guestAttributes"]["other"] == {"my-key": "ä"}
    assert shared.guest_attributes("m") == {"run": {"state": "done"}, "other": {"my-key": "ä"}}
    assert get(f"{guest}/other/my-key", method="DELETE").status == 200
    assert shared.guest_attributes("m") == {"run": {"state": "done"}}
    shared.set_metadata("m", {"enable-guest-attributes": ""})


@pytest.mark.parametrize(
    ("place", "size", "status"),
    [("alone", 1, 400), ("a/b/c", 1, 400), ("../a", 1, 400), (f"a/{'k' * 129}", 1, 400), ("a/b", 2**18, 413)],
)
def test_invalid_guest_attributes_are_refused(shared: LocalCloud, get: Any, place: str, size: int, status: int) -> None:
    shared.set_metadata("m", {"enable-guest-attributes": "true"})
    path = f"{V1}/instance/guest-attributes/{place}"
    eventually("the machine knows it", lambda: get(f"{V1}/instance/guest-attributes/").status == 200)
    before = shared.guest_attributes("m")
    assert get(path, method="PUT", body="x" * size).status == status
    assert shared.guest_attributes("m") == before
    shared.set_metadata("m", {"enable-guest-attributes": ""})


def test_the_google_client_reads_its_values(get: Any) -> None:
    assert get("/").headers["Metadata-Flavor"] == "Google"
    account = get(f"{V1}/instance/service-accounts/default/?recursive=true").json()
    assert account["email"]
    token = get(f"{V1}/instance/service-accounts/default/token?scopes=a").json()
    assert token["access_token"]
    assert token["token_type"] == "Bearer"


def test_an_identity_token_names_the_account_and_the_audience(get: Any) -> None:
    place = f"{V1}/instance/service-accounts/default"
    claims = get(f"{place}/identity?audience=https://mine.example&format=full").body.split(".")[1]
    claims_read = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    assert claims_read["aud"] == "https://mine.example"
    assert claims_read["email"] == get(f"{place}/email").body
    assert claims_read["exp"] > time.time()
    assert get(f"{place}/identity").status == 400
    assert get(f"{V1}/instance/service-accounts/unknown/identity?audience=a").status == 404


def test_waiting_ends_at_a_change_and_not_before(shared: LocalCloud, get: Any) -> None:
    before = get(f"{V1}/instance/attributes/some-key")
    answers: list[Any] = []
    waiter = threading.Thread(
        target=lambda: answers.append(get(f"{V1}/instance/attributes/?recursive=true&wait_for_change=true"))
    )
    waiter.start()
    eventually("the server holds the request", lambda: _connections(shared) >= 1)
    assert answers == []
    shared.set_metadata("m", {"late": "1"})
    waiter.join(timeout=10)
    assert answers[0].json()["late"] == "1"
    assert get(f"{V1}/instance/attributes/some-key").headers["ETag"] == before.headers["ETag"]


def test_waiting_with_an_old_etag_is_answered_at_once_and_with_the_newest_not_until_the_timeout(get: Any) -> None:
    path = f"{V1}/instance/name?wait_for_change=true"
    assert get(f"{path}&last_etag=0").body == "m"
    etag = get(f"{V1}/instance/name").headers["ETag"]
    began = time.monotonic()
    answer = get(f"{path}&last_etag={etag}&timeout_sec=0.2")
    assert time.monotonic() - began >= 0.2
    assert (answer.body, answer.headers["ETag"]) == ("m", etag)


def test_no_change_is_missed_between_two_requests(shared: LocalCloud, get: Any) -> None:
    seen: list[str] = []
    path = f"{V1}/instance/attributes/counter"
    shared.set_metadata("m", {"counter": "0"})
    eventually("the counter is there", lambda: get(path).body == "0")
    etag = get(path).headers["ETag"]

    def follow() -> None:
        nonlocal etag
        while not seen or seen[-1] != "20":
            answer = get(f"{path}?wait_for_change=true&last_etag={etag}&timeout_sec=5")
            etag = answer.headers["ETag"]
            seen.append(answer.body)

    follower = threading.Thread(target=follow)
    follower.start()
    for number in range(1, 21):
        shared.set_metadata("m", {"counter": str(number)})
    follower.join(timeout=20)
    assert seen[-1] == "20"
    assert seen == sorted(seen, key=int)


def test_malformed_requests_do_not_end_the_server(shared: LocalCloud, get: Any) -> None:
    address, port = shared.metadata_host("m").split(":")
    rng = random.Random(7)
    pieces = [
        b"GET",
        b" ",
        b"/",
        b"\r\n",
        b"\r\n\r\n",
        b"HTTP/1.1",
        b"Content-Length: ",
        b"-1",
        b"99999999999",
        b"%",
        b"\xff\x00",
        b":",
        b"computeMetadata/v1/",
        b"?recursive=true&",
        b"Metadata-Flavor: Google",
        b"\0" * 64,
    ]
    for _ in range(200):
        with socket.create_connection((address, int(port)), timeout=5) as client:
            client.sendall(b"".join(rng.choices(pieces, k=rng.randrange(1, 30))))
    with socket.create_connection((address, int(port)), timeout=5) as client:
        client.sendall(b"GET / HTTP/1.1\r\nX: " + b"y" * 70_000)
        assert b" 431 " in client.recv(65536)
    assert get(f"{V1}/instance/name").body == "m"


def test_pipelined_requests_are_answered_in_order(shared: LocalCloud) -> None:
    address, port = shared.metadata_host("m").split(":")
    head = "HTTP/1.1\r\nMetadata-Flavor: Google\r\nHost: localhost\r\n"
    question = f"GET {V1}/instance/name {head}\r\nGET {V1}/project/project-id {head}Connection: close\r\n\r\n"
    with socket.create_connection((address, int(port)), timeout=5) as client:
        client.sendall(question.encode())
        received = b""
        while piece := client.recv(65536):
            received += piece
    assert received.index(b"\r\n\r\nm") < received.index(b"outlast-local")


def test_a_text_tree_has_a_line_for_every_line_of_a_value() -> None:
    assert metadata.as_text_tree({"a": {"b": "x\ny"}, "c": [1]}) == "a/b x\na/b y\nc/0 1\n"


def _connections(cloud: LocalCloud) -> int:
    """Return the number of open connections of the machine's server, from the kernel."""
    port = f":{int(cloud.metadata_host('m').rpartition(':')[2]):04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(1 for line in lines if line.split()[1].endswith(port) and line.split()[3] == "01")


def test_an_overlay_replaces_values_of_the_machine(plain_fleet: MachineFactory, ask: Any) -> None:
    over = {
        "instance": {
            "attributes": {"startup-script": "what the user wrote"},
            "zone": "projects/1/zones/us-central1-a",
            "service-accounts": {"default": {"email": "a@b", "scopes": ["x", "y"]}},
        },
        "project": {"project-id": "proj1", "attributes": {"shared": "yes"}},
    }
    boot = Boot(script="sleep 1000", metadata={"outlast-overlay": json.dumps(over)})
    plain_fleet.cloud.launch(plain_fleet.offer(), "m", boot=boot, labels={})
    plain_fleet.wait("m", "running")
    host = cast(LocalCloud, plain_fleet.cloud).metadata_host("m")
    get = lambda path: ask(host, f"{V1}/{path}")  # noqa: E731
    assert get("instance/attributes/?recursive=true").json() == {"startup-script": "what the user wrote"}
    assert get("instance/zone").body == "projects/1/zones/us-central1-a"
    assert get("instance/name").body == "m"
    assert get("instance/service-accounts/").body == "default/\n"
    assert get("instance/service-accounts/default/scopes").body == "x\ny\n"
    assert get("instance/service-accounts/default/token").json()["access_token"] == "local-m"
    assert get("instance/service-accounts/a@b/token").status == 404
    assert get("project/attributes/shared").body == "yes"
    plain_fleet.cloud.set_metadata("m", {"outlast-overlay": "no JSON"})
    eventually("the overlay is gone", lambda: get("project/project-id").body != "proj1")
