"""Keys of OS Login: machines that enable it accept them, others do not."""

from __future__ import annotations

import getpass
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.emulator.compute import Client, ComputeServer, Doc, compute_server, machine
from tests.integration.emulator.discovery import Watching

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGq0 ada@home"
ADA = "/oslogin/v1/users/ada@example.com"


@pytest.fixture
def server(tmp_path: Path, watching: Watching) -> Iterator[ComputeServer]:
    with compute_server(tmp_path, watching) as opened:
        yield opened


@pytest.fixture
def client(server: ComputeServer) -> Client:
    return Client(server, "proj")


def _create(client: Client, name: str, **attributes: str) -> str:
    made = machine(name)
    made["metadata"] = {"items": [{"key": key.replace("_", "-"), "value": value} for key, value in attributes.items()]}
    client.do("POST Z/instances", made)
    return name


def _keys(server: ComputeServer, name: str) -> str:
    return server.cloud.metadata(name).get("ssh-keys", "")


def _import(server: ComputeServer, key: str = KEY, **fields: str) -> Doc:
    response: Doc = server.call.json("POST", f"{ADA}:importSshPublicKey?projectId=proj", {"key": key, **fields})
    profile: Doc = response["loginProfile"]
    return profile


def test_a_key_is_added_to_and_removed_from_machines_with_os_login(server: ComputeServer, client: Client) -> None:
    by_login = _create(client, "by-login", enable_oslogin="TRUE", ssh_keys=f"bob:{KEY}")
    by_metadata = _create(client, "by-metadata", ssh_keys=f"bob:{KEY}")
    assert _keys(server, by_login) == ""
    profile = _import(server)
    assert profile["posixAccounts"][0]["username"] == getpass.getuser()
    [fingerprint] = profile["sshPublicKeys"]
    assert server.call.json("GET", f"{ADA}/sshPublicKeys/{fingerprint}")["key"] == KEY
    assert _keys(server, by_login) == f"{getpass.getuser()}:{KEY}"
    assert _keys(server, by_metadata) == f"bob:{KEY}"
    server.reopen()
    assert server.call.json("GET", f"{ADA}/loginProfile")["sshPublicKeys"][fingerprint]["key"] == KEY
    server.call.json("DELETE", f"{ADA}/sshPublicKeys/{fingerprint}")
    assert _keys(server, by_login) == ""
    assert server.call("GET", f"{ADA}/sshPublicKeys/{fingerprint}").status == 404


def test_a_machine_can_disable_the_os_login_of_its_project(server: ComputeServer, client: Client) -> None:
    project = client.get("")
    body = {
        "fingerprint": project["commonInstanceMetadata"]["fingerprint"],
        "items": [{"key": "enable-oslogin", "value": "true"}],
    }
    client.do("POST setCommonInstanceMetadata", body)
    _import(server)
    assert _keys(server, _create(client, "like-all")).endswith(KEY)
    assert _keys(server, _create(client, "unlike", enable_oslogin="FALSE", ssh_keys=f"bob:{KEY}")) == f"bob:{KEY}"


def test_an_expired_key_is_refused_until_it_is_renewed(server: ComputeServer, client: Client) -> None:
    name = _create(client, "by-login", enable_oslogin="TRUE")
    [fingerprint] = _import(server, expirationTimeUsec=str(int(time.time() * 1e6) - 1))["sshPublicKeys"]
    assert _keys(server, name) == ""
    later = {"expirationTimeUsec": str(int(time.time() * 1e6) + 10**9)}
    server.call.json("PATCH", f"{ADA}/sshPublicKeys/{fingerprint}?updateMask=expirationTimeUsec", later)
    assert _keys(server, name).endswith(KEY)


def test_a_machine_imports_keys_only_if_its_scopes_allow_it(server: ComputeServer, client: Client) -> None:
    client.do("POST Z/instances", machine("weak"))
    access = json.loads(server.cloud.metadata("weak")["outlast-overlay"])["instance"]["outlast"]
    bearer = f"Bearer {access['token']}"
    response = server.call("POST", f"{ADA}:importSshPublicKey", {"key": KEY}, Authorization=bearer)
    assert response.status == 403
    assert server.call.json("GET", f"{ADA}/loginProfile")["sshPublicKeys"] == {}


@pytest.mark.parametrize("key", ["", "nonsense", f"{KEY}\nroot:{KEY}"])
def test_an_invalid_key_is_refused(server: ComputeServer, key: str) -> None:
    assert server.call("POST", f"{ADA}:importSshPublicKey", {"key": key}).status == 400
    assert server.call.json("GET", f"{ADA}/loginProfile")["sshPublicKeys"] == {}
