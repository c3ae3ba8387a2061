"""`outlast setup gcp`, and the checks of `outlast doctor` on a project."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from outlast.clouds.gcp.checks import _tight, bucket_warnings, missing
from outlast.clouds.gcp.cloud import GcpCloud
from outlast.clouds.gcp.setup import APIS, MACHINE, OPTIONAL, SUPERVISOR, GcpSetup
from outlast.errors import Denied
from outlast.workspace import open_workspace
from outlast_gcp_emulator.conditions import REAL
from tests.support.gcp import Rehearsal
from tests.support.home import Home

# A permission that custom roles of the emulator do not support.
_NEW = {"compute.advice.capacity"}


def test_setup_prints_commands_and_changes_nothing_without_apply(
    gcp: GcpCloud, rehearsal: Rehearsal, tmp_path: Path
) -> None:
    home = Home(tmp_path)
    home.environment |= rehearsal.variables
    answer = home.outlast("setup", "gcp", "--project", "fresh-project")
    assert answer.returncode == 0
    assert answer.stdout.count("gcloud ") == 11 + len(SUPERVISOR.optional)
    client = GcpCloud("fresh-project").client
    machine, supervisor = (GcpSetup(client).email(account) for account in (MACHINE, SUPERVISOR))
    accounts = {machine: MACHINE, supervisor: SUPERVISOR}
    before = missing(client, accounts)
    # Cloud Storage is enabled in every new project. Accounts are not known while IAM is disabled.
    off = [name for name in APIS if name not in (*OPTIONAL, "storage.googleapis.com")]
    assert [text for text, _ in before] == [f"these APIs are disabled: {', '.join(off)}"]
    for again in (False, True):
        done = home.outlast("setup", "gcp", "--project", "fresh-project", "--apply")
        assert done.returncode == 0, done.stderr
        assert ("waiting until the API compute takes effect" in done.stderr) != again
        assert ("waiting until Google knows the new APIs and accounts" in done.stderr) != again
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


@pytest.mark.full
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
    enabling = client.call("serviceusage", "POST", "v1/projects/sick-project/services/iam.googleapis.com:enable").doc
    while not enabling.get("done"):
        enabling = client.call("serviceusage", "GET", f"v1/{enabling['name']}").doc
    with pytest.raises(Denied):
        client.call("iam", "GET", "v1/projects/sick-project/serviceAccounts")
    home.environment |= {**rehearsal.variables, "GOOGLE_CLOUD_PROJECT": "sick-project"}
    answer = home.outlast("doctor", "--json", "--workspace", "gs://sick-project-box/ws")
    rows = [row for row in json.loads(answer.stdout)["checks"] if row["check"].startswith("gcp")]
    assert any("these APIs are disabled: compute.googleapis.com" in row["says"] for row in rows)
    assert any("does not exist" in row["says"] and "setup gcp --apply" in row["fix"] for row in rows)
    assert any("built-in prices of 2026-08-21" in row["says"] for row in rows)


def test_setup_leaves_out_permissions_that_custom_roles_of_the_project_do_not_support(gcp: GcpCloud) -> None:
    client = GcpCloud("young-project").client
    reported: list[str] = []
    for _ in range(2):  # a role that exists is updated the same way
        for step in GcpSetup(client, report=reported.append).steps():
            step.apply()
    role = client.call("iam", "GET", "v1/projects/young-project/roles/outlastSupervisor").doc
    assert set(role["includedPermissions"]) == {*SUPERVISOR.permissions, *SUPERVISOR.optional} - _NEW
    assert "compute.instances.getSerialPortOutput" in role["includedPermissions"]
    assert [line for line in reported if "compute.advice.capacity" in line and "outlastSupervisor" in line]


@pytest.mark.full
def test_doctor_checks_a_project_in_sight_for_the_machines_and_the_supervisor(
    gcp: GcpCloud, rehearsal: Rehearsal, tmp_path: Path
) -> None:
    home = Home(tmp_path)
    client = GcpCloud("seen-project").client
    home.environment |= {**rehearsal.variables, "GOOGLE_CLOUD_PROJECT": "seen-project"}
    assert home.outlast("setup", "gcp", "--apply").returncode == 0
    # The workspace is a folder: the project alone is reason enough. Google has granted a quota for GPUs.
    rehearsal.endpoint.surroundings.now = replace(REAL, quotas={})
    assert "project `seen-project`: credentials, APIs, roles and quotas are there" in home.outlast("doctor").stdout
    # An administrator takes rights away.
    path = "v1/projects/seen-project:setIamPolicy"
    client.call("cloudresourcemanager", "POST", path, body={"policy": {"bindings": []}})
    client.call("storage", "PUT", "b/seen-project-outlast/iam", body={"bindings": []})
    found = texts(home, "--workspace", "gs://seen-project-outlast/ws")
    machine, supervisor = (GcpSetup(client).email(account) for account in (MACHINE, SUPERVISOR))
    assert (
        f"the account of the machines, {machine}, lacks `compute.instances.delete` in the policy of the project"
        in found
    )
    assert any(supervisor in text and "`compute.instances.create`" in text for text in found)
    assert any(machine in text and "`storage.objects.create`" in text for text in found)
    assert texts(home, "--cloud", "aws") == []
    assert texts(home, "--cloud", "gcp")


def texts(home: Home, *argv: str) -> list[str]:
    """Return the warnings of `outlast doctor` about Google Cloud."""
    checks = json.loads(home.outlast("doctor", "--json", *argv).stdout)["checks"]
    return [row["says"] for row in checks if row["check"] == "gcp" and row["state"] == "warning"]


def test_doctor_states_the_cost_of_a_buckets_settings(gcp: GcpCloud) -> None:
    body = {"name": "dear-box", "softDeletePolicy": {"retentionDurationSeconds": str(7 * 86400)}, "location": "US"}
    gcp.client.call("storage", "POST", "b", query={"project": gcp.client.project}, body=body)
    assert [text for text, _ in bucket_warnings(gcp.client, "dear-box")] == [
        "gs://dear-box bills deleted objects for 7 more days: $34 per month at 10 GB of checkpoints per hour",
        "gs://dear-box is in the multi-region US: replication costs $146 per month at 10 GB of checkpoints per hour",
        "gs://dear-box: parts of interrupted uploads stay, are never listed and cost $0.020 per GB and month",
    ]
    GcpSetup(gcp.client, bucket="cheap-box")._create_bucket()
    assert bucket_warnings(gcp.client, "cheap-box") == []
    assert bucket_warnings(gcp.client, "no-such-box") == []


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
