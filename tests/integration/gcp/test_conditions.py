"""The conditions of the real Google Cloud: the server really behaves so, and outlast copes or says the next step."""

from __future__ import annotations

import http.client
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from outlast.clouds.cloud import Boot, Machine, Offer, Requirements
from outlast.clouds.gcp.client import GcpClient
from outlast.clouds.gcp.cloud import GcpCloud
from outlast.clouds.gcp.setup import GcpSetup
from outlast.errors import BadRequest, NoQuota, PolicyDenied
from outlast_gcp_emulator.conditions import EXTERNAL_ADDRESS, IMAGE_PROJECTS, LOCATIONS, REAL, SHIELDED, CloudConditions
from outlast_gcp_emulator.environment import PROJECT
from tests.integration.gcp.home import at_home
from tests.support.emulator import Caller, content
from tests.support.gcp import ZONE, Rehearsal

SERVICES = "/serviceusage/v1/projects/{}/services"
INSTANCES = f"/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances"


@pytest.fixture
def call(rehearsal: Rehearsal, gcp: GcpCloud) -> Caller:
    return Caller(rehearsal.endpoint)


@pytest.fixture
def given(rehearsal: Rehearsal, gcp: GcpCloud) -> Callable[..., None]:
    """Change some conditions; the fixture `gcp` restores them."""

    def change(**conditions: object) -> None:
        rehearsal.endpoint.surroundings.now = replace(REAL, **conditions)  # type: ignore[arg-type]

    return change


@pytest.fixture
def offer(gcp: GcpCloud) -> Offer:
    return gcp.offers(Requirements(type="e2-standard-2", zones=(ZONE,)))[0]


@pytest.fixture(autouse=True)
def _clean(gcp: GcpCloud) -> Iterator[None]:
    yield
    for machine in gcp.machines():
        gcp.delete(machine.name)


def launch(gcp: GcpCloud, offer: Offer, **boot: object) -> Machine:
    return gcp.launch(offer, f"c-{secrets.token_hex(4)}", boot=Boot(**boot), labels={"kind": "test"})  # type: ignore[arg-type]


def instance(
    name: str, *, disk_gb: int = 10, image: str = "debian-cloud/global/images/family/debian-12"
) -> dict[str, object]:
    disk = {"sourceImage": f"projects/{image}", "diskSizeGb": str(disk_gb)}
    return {
        "name": name,
        "machineType": f"zones/{ZONE}/machineTypes/e2-small",
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": disk}],
        "networkInterfaces": [{"network": "global/networks/default", "accessConfigs": [{"type": "ONE_TO_ONE_NAT"}]}],
    }


def message(response: http.client.HTTPResponse) -> str:
    return content(response).decode()


def test_every_condition_of_the_real_cloud_is_on() -> None:
    kind = CloudConditions()
    switches = {
        name: getattr(REAL, name) for name in CloudConditions.__slots__ if getattr(REAL, name) != getattr(kind, name)
    }
    # A project may lack its network, and an organisation may have constraints: tests below switch these on.
    assert set(CloudConditions.__slots__) - set(switches) == {"constraints", "default_network"}


def test_an_api_refuses_requests_until_its_enabling_is_done_and_once_after_that(call: Caller) -> None:
    project = f"new-{secrets.token_hex(3)}"
    accounts = f"/iam/v1/projects/{project}/serviceAccounts"
    refused = call("GET", accounts)
    assert refused.status == 403
    assert "SERVICE_DISABLED" in message(refused)
    assert "iam.googleapis.com has not been used in project" in message(refused)
    body = {"serviceIds": ["iam.googleapis.com"]}
    operation = call.json("POST", SERVICES.format(project) + ":batchEnable", body)
    assert not operation.get("done")
    for done in (None, None, True):
        assert call("GET", accounts).status == 403
        assert call.json("GET", f"/serviceusage/v1/{operation['name']}").get("done") == done
    assert call("GET", accounts).status == 403
    assert call("GET", accounts).status == 200


def test_a_new_account_is_unknown_to_the_first_policy_that_names_it(call: Caller) -> None:
    accounts = f"/iam/v1/projects/{PROJECT}/serviceAccounts"
    name = f"new-{secrets.token_hex(3)}"
    email = call.json("POST", accounts, {"accountId": name})["email"]
    policy = {"policy": {"bindings": [{"role": "roles/viewer", "members": [f"serviceAccount:{email}"]}]}}
    path = f"{accounts}/{email}:setIamPolicy"
    refused = call("POST", path, policy)
    assert (refused.status, f"Service account {email} does not exist." in message(refused)) == (400, True)
    assert call("POST", path, policy).status == 200


def test_setup_waits_for_apis_and_accounts_and_ends_in_a_working_state(gcp: GcpCloud, rehearsal: Rehearsal) -> None:
    client, said = GcpClient(f"fresh-{secrets.token_hex(3)}"), list[str]()
    for step in GcpSetup(client, report=said.append, pause_s=0.0).steps():
        step.apply()
    assert sum("waiting until the API" in line for line in said) == 4
    fresh = GcpCloud(client.project)
    fresh.put_secrets("outlast-x-run-1", {"KEY": "one"})
    fresh.drop_secrets("outlast-x-run-1")
    assert fresh.machines() == []


def test_lists_lack_a_new_instance_that_its_name_finds(call: Caller, gcp: GcpCloud) -> None:
    name = f"late-{secrets.token_hex(3)}"
    call.json("POST", INSTANCES, instance(name))

    def listed(path: str) -> bool:
        return name in str(call.json("GET", path))

    assert call.json("GET", f"{INSTANCES}/{name}")["name"] == name
    assert not listed(INSTANCES)
    assert not listed(f"/compute/v1/projects/{PROJECT}/aggregated/instances")
    assert listed(INSTANCES)
    assert listed(f"/compute/v1/projects/{PROJECT}/aggregated/instances")


def test_a_launched_machine_is_listed_for_every_process(gcp: GcpCloud, rehearsal: Rehearsal, offer: Offer) -> None:
    machine = launch(gcp, offer)
    assert [one.name for one in rehearsal.cloud().machines()] == [machine.name]
    assert rehearsal.cloud().machine(machine.name).zone == ZONE


def test_a_machine_waits_until_it_may_read_its_bucket_and_its_secrets(
    gcp: GcpCloud, rehearsal: Rehearsal, tmp_path: Path, given: Callable[..., None]
) -> None:
    given(grant_delay=3)
    with at_home(tmp_path, rehearsal, gcp) as home:
        argv = ("run", "--cloud", "gcp", "--zone", ZONE, "--secret", "KEY", "--name", "late")
        answer = home.outlast(
            *argv, "--", "python3", "-c", "import os; print(os.environ['KEY'][::-1])", KEY="abcdef", timeout_s=180.0
        )
        assert answer.returncode == 0, answer.stderr
        assert "fedcba" in answer.stdout
        assert [one.outcome for one in home.state("late-1").attempts] == ["finished"]


@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        (EXTERNAL_ADDRESS, "to use external IP with it"),
        (SHIELDED, "Secure Boot is not enabled"),
        (IMAGE_PROJECTS, "Use of images from project debian-cloud is prohibited"),
    ],
)
def test_a_constraint_of_the_organisation_refuses_a_launch_and_is_named(
    gcp: GcpCloud, call: Caller, offer: Offer, given: Callable[..., None], constraint: str, text: str
) -> None:
    given(constraints=frozenset({constraint}))
    refused = call("POST", INSTANCES, instance("forbidden"))
    assert (refused.status, f"constraints/{constraint} violated" in message(refused)) == (412, True)
    with pytest.raises(PolicyDenied, match=text) as problem:
        launch(gcp, offer)
    assert f"constraint `{constraint}`" in problem.value.hint
    assert gcp.machines() == []


def test_a_constraint_on_places_refuses_the_bucket_of_the_set_up(gcp: GcpCloud, given: Callable[..., None]) -> None:
    given(constraints=frozenset({LOCATIONS}))
    setup = GcpSetup(gcp.client, bucket=f"box-{secrets.token_hex(4)}", pause_s=0.0)
    step = next(step for step in setup.steps() if "bucket for workspaces" in step.what)
    with pytest.raises(PolicyDenied, match="US-CENTRAL1") as problem:
        step.apply()
    assert LOCATIONS in problem.value.hint


def test_secrets_are_stored_in_a_region_where_the_organisation_forbids_replication_everywhere(
    gcp: GcpCloud, given: Callable[..., None]
) -> None:
    given(constraints=frozenset({LOCATIONS}))
    gcp.put_secrets("kept-in-a-region", {"KEY": "value"})
    project = f"v1/projects/{gcp.client.project}/secrets"
    doc = gcp.client.call("secretmanager", "GET", f"{project}/kept-in-a-region").doc
    assert [list(place) for place in doc["replication"]["userManaged"]["replicas"]] == [["location"]]
    gcp.drop_secrets("kept-in-a-region")


def test_a_disk_that_is_smaller_than_its_image_is_refused_and_outlast_asks_for_a_larger_one(
    gcp: GcpCloud, call: Caller, offer: Offer
) -> None:
    image = "deeplearning-platform-release/global/images/family/common-cpu"
    refused = call("POST", INSTANCES, instance("small", disk_gb=20, image=image))
    text = "Requested disk size cannot be smaller than the image size (50 GB)"
    assert (refused.status, text in message(refused)) == (400, True)
    assert launch(gcp, offer, image="deeplearning-platform-release/common-cpu", disk_gb=20.0).disk_gb == 50


@pytest.mark.full
def test_a_project_without_quota_for_gpus_refuses_them_with_its_limit(gcp: GcpCloud, call: Caller) -> None:
    project = call.json("GET", f"/compute/v1/projects/{PROJECT}")
    assert {"metric": "GPUS_ALL_REGIONS", "limit": 0, "usage": 0} in project["quotas"]
    offer = gcp.offers(Requirements(gpu="T4", gpus=1, zones=(ZONE,)))[0]
    with pytest.raises(NoQuota, match=r"Limit: 0.0 globally") as problem:
        launch(gcp, offer)
    assert "GPUS_ALL_REGIONS" in problem.value.hint
    assert gcp.machines() == []


def test_a_project_without_the_default_network_gets_the_command_that_creates_it(
    gcp: GcpCloud, call: Caller, offer: Offer, given: Callable[..., None]
) -> None:
    given(default_network=False)
    assert call("GET", f"/compute/v1/projects/{PROJECT}/global/networks/default").status == 404
    refused = call("POST", INSTANCES, instance("unconnected"))
    assert (refused.status, "The referenced network resource cannot be found." in message(refused)) == (400, True)
    with pytest.raises(BadRequest, match="network resource cannot be found") as problem:
        launch(gcp, offer)
    assert "outlast setup gcp --network --apply" in problem.value.hint


def test_a_machine_that_ended_by_itself_stays_listed(gcp: GcpCloud, call: Caller, offer: Offer) -> None:
    from tests.support.waiting import eventually

    name = launch(gcp, offer, script="shutdown -h now\nsleep 1000\n").name
    eventually(lambda: gcp.machine(name).status == "stopped", within_s=60, what="the machine being off")
    assert name in str(call.json("GET", f"{INSTANCES}?filter=status%3DTERMINATED"))
