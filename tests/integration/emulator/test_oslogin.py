"""Keys of OS Login: a machine that is asked in this way knows them, any other does not."""

from __future__ import annotations

import getpass
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.emulator.compute import Client, Doc, Place, machine, place
from tests.integration.emulator.discovery import Watching

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGq0 ada@home"
ADA = "/oslogin/v1/users/ada@example.com"


@pytest.fixture
def here(tmp_path: Path, watching: Watching) -> Iterator[Place]:
    with place(tmp_path, watching) as opened:
        yield opened


@pytest.fixture
def client(here: Place) -> Client:
    return Client(here, "proj")


def _create(client: Client, name: str, **attributes: str) -> str:
    made = machine(name)
    made["metadata"] = {"items": [{"key": key.replace("_", "-"), "value": value} for key, value in attributes.items()]}
    client.do("POST Z/instances", made)
    return name


def _keys(here: Place, name: str) -> str:
    return here.cloud.metadata(name).get("ssh-keys", "")


def _import(here: Place, key: str = KEY, **fields: str) -> Doc:
    answer: Doc = here.call.json("POST", f"{ADA}:importSshPublicKey?projectId=proj", {"key": key, **fields})
    profile: Doc = answer["loginProfile"]
    return profile


def test_a_key_is_added_to_and_removed_from_machines_with_os_login(here: Place, client: Client) -> None:
    by_login = _create(client, "by-login", enable_oslogin="TRUE", ssh_keys=f"bob:{KEY}")
    by_metadata = _create(client, "by-metadata", ssh_keys=f"bob:{KEY}")
    assert _keys(here, by_login) == ""
    profile = _import(here)
    assert profile["posixAccounts"][0]["username"] == getpass.getuser()
    [fingerprint] = profile["sshPublicKeys"]
    assert here.call.json("GET", f"{ADA}/sshPublicKeys/{fingerprint}")["key"] == KEY
    assert _keys(here, by_login) == f"{getpass.getuser()}:{KEY}"
    assert _keys(here, by_metadata) == f"bob:{KEY}"
    here.reopen()
    assert here.call.json("GET", f"{ADA}/loginProfile")["sshPublicKeys"][fingerprint]["key"] == KEY
    here.call.json("DELETE", f"{ADA}/sshPublicKeys/{fingerprint}")
    assert _keys(here, by_login) == ""
    assert here.call("GET", f"{ADA}/sshPublicKeys/{fingerprint}").status == 404


def test_a_machine_can_disable_the_os_login_of_its_project(here: Place, client: Client) -> None:
    project = client.get("")
    body = {
        "fingerprint": project["commonInstanceMetadata"]["fingerprint"],
        "items": [{"key": "enable-oslogin", "value": "true"}],
    }
    client.do("POST setCommonInstanceMetadata", body)
    _import(here)
    assert _keys(here, _create(client, "like-all")).endswith(KEY)
    assert _keys(here, _create(client, "unlike", enable_oslogin="FALSE", ssh_keys=f"bob:{KEY}")) == f"bob:{KEY}"


def test_an_expired_key_is_refused_until_it_is_renewed(here: Place, client: Client) -> None:
    name = _create(client, "by-login", enable_oslogin="TRUE")
    [fingerprint] = _import(here, expirationTimeUsec=str(int(time.time() * 1e6) - 1))["sshPublicKeys"]
    assert _keys(here, name) == ""
    later = {"expirationTimeUsec": str(int(time.time() * 1e6) + 10**9)}
    here.call.json("PATCH", f"{ADA}/sshPublicKeys/{fingerprint}?updateMask=expirationTimeUsec", later)
    assert _keys(here, name).endswith(KEY)


def test_a_machine_imports_keys_only_if_its_scopes_allow_it(here: Place, client: Client) -> None:
    client.do("POST Z/instances", machine("weak"))
    told = json.loads(here.cloud.metadata("weak")["outlast-overlay"])["instance"]["outlast"]
    bearer = f"Bearer {told['token']}"
    asked = here.call("POST", f"{ADA}:importSshPublicKey", {"key": KEY}, Authorization=bearer)
    assert asked.status == 403
    assert here.call.json("GET", f"{ADA}/loginProfile")["sshPublicKeys"] == {}


@pytest.mark.parametrize("key", ["", "nonsense", f"{KEY}\nroot:{KEY}"])
def test_an_invalid_key_is_refused(here: Place, key: str) -> None:
    assert here.call("POST", f"{ADA}:importSshPublicKey", {"key": key}).status == 400
    assert here.call.json("GET", f"{ADA}/loginProfile")["sshPublicKeys"] == {}
