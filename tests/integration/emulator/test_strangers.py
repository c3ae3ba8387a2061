"""Refused requests: from web pages in this user's browser, and with names that escape a folder.

A client that can launch a machine runs programs as the user of the server. `test_attacks` covers other users.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.clouds.local.peer_credentials import is_page
from outlast_gcp_emulator.endpoint import Endpoint
from tests.support.emulator import Caller, content

# A page can send this without a preflight request: for a browser it is a form.
AS_A_FORM = {"Content_Type": "text/plain"}
MACHINE = (
    b'{"name": "evil", "machineType": "zones/us-central1-a/machineTypes/e2-small",'
    b' "metadata": {"items": [{"key": "startup-script", "value": "touch /tmp/owned"}]}}'
)
INSTANCES = "/compute/v1/projects/p/zones/us-central1-a/instances"


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"}],
    ids=["origin", "sandboxed frame", "image or form"],
)
def test_a_web_page_launches_no_machine(call: Caller, headers: dict[str, str]) -> None:
    response = call("POST", INSTANCES, MACHINE, **AS_A_FORM, **headers)
    assert response.status == 403, content(response)
    # The connection is closed, so that the rest of the body cannot become another request.
    assert "access-control-allow-origin" not in {name.lower() for name in response.headers}


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example"]
)
def test_a_page_with_a_rebound_dns_name_reads_nothing(call: Caller, host: str) -> None:
    assert call("GET", "/storage/v1/b?project=p", Host=host).status == 403


@pytest.mark.parametrize("host", ["127.0.0.1:9480", "localhost:1", "[::1]:80", "169.254.169.254", "LOCALHOST"])
def test_programs_are_not_mistaken_for_pages(host: str) -> None:
    assert not is_page({"host": host})
    assert not is_page({"host": host, "sec-fetch-site": "none"})


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/secretmanager/v1/projects/{}/secrets"),
        ("GET", "/sourcerepo/v1/projects/{}/repos"),
        ("GET", "/file/v1/projects/{}/locations/-/instances"),
        ("POST", "/cloudresourcemanager/v1/projects/{}:setIamPolicy"),
        ("GET", "/sqladmin/v1/projects/p/instances/{}"),
    ],
)
@pytest.mark.parametrize("name", ["..%2F..%2Fvictim", "..", "%2e%2e", "a%00b"])
def test_no_name_escapes_its_folder(endpoint: Endpoint, call: Caller, method: str, path: str, name: str) -> None:
    victim = Path(endpoint.root).parent / "victim.json"
    victim.write_text('{"accounts": {}, "roles": {}, "bindings": [], "services": []}')
    before = victim.read_text()
    response = call(method, path.format(name), {"policy": {"bindings": ["evil"]}} if method == "POST" else None)
    assert response.status == 400, content(response)
    assert victim.read_text() == before


@pytest.mark.parametrize("length", ["9" * 5000, "-1", "1e3"])
def test_an_invalid_content_length_is_refused(call: Caller, length: str) -> None:
    assert call("POST", "/storage/v1/b?project=p", b"", Content_Length=length).status == 400
