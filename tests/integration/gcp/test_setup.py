"""`outlast setup gcp`, and the checks of `outlast doctor` on a project."""

from __future__ import annotations

import json
from pathlib import Path

from outlast.clouds.gcp.cloud import GcpCloud
from outlast.clouds.gcp.setup import APIS, MACHINE, OPTIONAL, SUPERVISOR, GcpSetup, _tight, missing
from outlast.workspace import open_workspace
from tests.support.gcp import Rehearsal
from tests.support.home import Home


def test_setup_prints_commands_and_changes_nothing_without_apply(
    gcp: GcpCloud, rehearsal: Rehearsal, tmp_path: Path
) -> None:
    home = Home(tmp_path)
    home.environment |= rehearsal.variables
    answer = home.outlast("setup", "gcp", "--project", "fresh-project")
    assert answer.returncode == 0
    assert answer.stdout.count("gcloud ") == 11
    client = GcpCloud("fresh-project").client
    machine, supervisor = (GcpSetup(client).email(account) for account in (MACHINE, SUPERVISOR))
    accounts = {machine: "the machines", supervisor: "the supervisor machine"}
    before = missing(client, accounts)
    assert [text for text, _ in before] == [
        f"these APIs are disabled: {', '.join(name for name in APIS if name not in OPTIONAL)}",
        f"the service account of the machines, {machine}, does not exist",
        f"the service account of the supervisor machine, {supervisor}, does not exist",
    ]
    for _ in range(2):  # it may be repeated
        done = home.outlast("setup", "gcp", "--project", "fresh-project", "--apply")
        assert done.returncode == 0, done.stderr
        assert done.stdout == "gs://fresh-project-outlast\n"
    assert missing(client, accounts) == []
    policy = client.call("cloudresourcemanager", "POST", "v1/projects/fresh-project:getIamPolicy", body={}).doc
    member, other = f"serviceAccount:{machine}", f"serviceAccount:{supervisor}"
    assert policy["bindings"] == [
        {"role": "projects/fresh-project/roles/outlastMachine", "members": [member]},
        {"role": "projects/fresh-project/roles/outlastSupervisor", "members": [other]},
    ]
    bucket = client.call("storage", "GET", "b/fresh-project-outlast/iam").doc
    for one in (member, other):
        assert {"role": "roles/storage.objectUser", "members": [one]} in bucket["bindings"]
    path = f"v1/projects/fresh-project/serviceAccounts/{machine}:getIamPolicy"
    acting = client.call("iam", "POST", path).doc["bindings"]
    assert acting == [{"role": "roles/iam.serviceAccountUser", "members": [other]}]


def test_machines_can_be_limited_to_deleting_those_of_one_workspace(
    gcp: GcpCloud, rehearsal: Rehearsal, tmp_path: Path
) -> None:
    home = Home(tmp_path)
    home.environment |= rehearsal.variables
    client = GcpCloud("kept-project").client
    client.call("storage", "POST", "b", query={"project": "kept-project"}, body={"name": "kept-project-outlast"})
    argv = ["setup", "gcp", "--project", "kept-project", "--only", "gs://kept-project-outlast/ws"]
    for _ in range(2):
        assert home.outlast(*argv, "--apply").returncode == 0
    ending = f"-{open_workspace('gs://kept-project-outlast/ws').id[:6]}"
    asked = {"options": {"requestedPolicyVersion": 3}}
    policy = client.call("cloudresourcemanager", "POST", "v1/projects/kept-project:getIamPolicy", body=asked).doc
    assert [(one["role"].rpartition("/")[2], one.get("condition")) for one in policy["bindings"]] == [
        ("outlastMachine", {"title": f"outlast{ending}", "expression": f'resource.name.endsWith("{ending}")'}),
        ("outlastSupervisor", None),
    ]
    answer = home.outlast(*argv).stdout
    assert f"--condition='title=outlast{ending},expression=resource.name.endsWith(\"{ending}\")'" in answer


def test_doctor_lists_what_a_project_lacks(gcp: GcpCloud, rehearsal: Rehearsal, tmp_path: Path) -> None:
    home = Home(tmp_path)
    client = GcpCloud("sick-project").client
    client.call("storage", "POST", "b", query={"project": "sick-project"}, body={"name": "sick-project-box"})
    home.environment |= {**rehearsal.variables, "GOOGLE_CLOUD_PROJECT": "sick-project"}
    answer = home.outlast("doctor", "--json", "--workspace", "gs://sick-project-box/ws")
    rows = [row for row in json.loads(answer.stdout)["checks"] if row["check"].startswith("gcp")]
    assert any("these APIs are disabled: compute.googleapis.com" in row["says"] for row in rows)
    assert any("does not exist" in row["says"] and "setup gcp --apply" in row["fix"] for row in rows)
    assert any("built-in prices of 2025-06" in row["says"] for row in rows)


def test_an_exhausted_quota_is_reported_with_its_region() -> None:
    quotas: list[dict[str, object]] = [
        {"metric": "CPUS", "limit": 24, "usage": 24},
        {"metric": "INSTANCES", "limit": 100, "usage": 1},
        {"metric": "GPUS_ALL_REGIONS", "limit": 0, "usage": 0},
    ]
    assert _tight(quotas, "us-east1") == [
        "quota CPUS (processors) of us-east1: 24 of 24 are used",
        "quota GPUS_ALL_REGIONS (GPUs, in all regions together) of us-east1: 0 of 0 are used",
    ]
