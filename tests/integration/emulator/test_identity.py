"""Service accounts, enabled APIs and projects, as scripts set them up."""

from __future__ import annotations

import base64
import json

from tests.support.emulator import Caller

ACCOUNTS = "/iam/v1/projects/proj/serviceAccounts"
EMAIL = "trainer@proj.iam.gserviceaccount.com"


def states(call: Caller) -> dict[str, str]:
    found = call.json("GET", "/serviceusage/v1/projects/proj/services?filter=state:ENABLED").get("services", [])
    return {one["config"]["name"]: one["state"] for one in found}


def test_apis_are_enabled_and_disabled_one_by_one_and_together(call: Caller) -> None:
    services = "/serviceusage/v1/projects/proj/services"
    for name in states(call):
        call.json("POST", f"{services}/{name}:disable", {})
    assert call.json("POST", f"{services}/compute.googleapis.com:enable", {})["done"]
    call.json("POST", f"{services}:batchEnable", {"serviceIds": ["file.googleapis.com", "iam.googleapis.com"]})
    call.json("POST", f"{services}/iam.googleapis.com:disable", {})
    assert states(call) == {"compute.googleapis.com": "ENABLED", "file.googleapis.com": "ENABLED"}
    assert call.json("GET", f"{services}/iam.googleapis.com")["state"] == "DISABLED"


def test_an_account_is_found_by_its_address_alone(call: Caller) -> None:
    call.json("POST", ACCOUNTS, {"accountId": "trainer", "serviceAccount": {"displayName": "Trains"}})
    assert call.refused("POST", ACCOUNTS, {"accountId": "trainer"}) == (409, "alreadyExists")
    anywhere = f"/iam/v1/projects/-/serviceAccounts/{EMAIL}"
    assert call.json("GET", anywhere)["displayName"] == "Trains"
    assert [one["email"] for one in call.json("GET", ACCOUNTS)["accounts"]] == [EMAIL]
    key = json.loads(base64.b64decode(call.json("POST", f"{anywhere}/keys", {})["privateKeyData"]))
    assert (key["client_email"], key["project_id"]) == (EMAIL, "proj")
    assert call.json("POST", "/token", {})["access_token"]
    call.json("DELETE", anywhere)
    assert call.json("GET", ACCOUNTS)["accounts"] == []
    assert call.refused("DELETE", anywhere)[0] == 404
    assert call.refused("POST", f"{anywhere}/keys", {})[0] == 404


def test_projects_are_listed_and_no_name_escapes_their_folder(call: Caller) -> None:
    call.json("POST", ACCOUNTS, {"accountId": "trainer"})
    found = call.json("GET", "/cloudresourcemanager/v1/projects")["projects"]
    assert [one["projectId"] for one in found] == ["outlast-local", "proj"]
    one = call.json("GET", "/cloudresourcemanager/v1/projects/proj")
    assert (one["lifecycleState"], one["projectNumber"].isdigit()) == ("ACTIVE", True)
    assert call.refused("GET", "/iam/v1/projects/..%2F..%2Fkey/serviceAccounts")[0] == 400
    assert call.refused("GET", "/iam/v1/projects/-/serviceAccounts/x@..%2F..%2Fkey")[0] == 400
