"""Suspend and resume, machine images, scheduling changes, quotas and disk patches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.emulator.compute import ZONE, Client, ComputeServer, compute_server
from tests.integration.emulator.discovery import Watching

TICKS = "i=0; while true; do i=$((i+1)); echo tick $i.; sleep 0.02; done"
# $HOME is on the machine's disk in every mode; /root is not.
WRITE = 'cd "$HOME"; cat written 2>/dev/null; echo "by $(hostname)" >> written; echo wrote'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, watching: Watching) -> Iterator[ComputeServer]:
    with compute_server(tmp_path_factory.mktemp("rest"), watching) as opened:
        yield opened


def test_an_instance_is_suspended_and_resumed(server: ComputeServer) -> None:
    client = Client(server, "sleeper")
    client.create("vm", script=TICKS)
    client.prints("vm", "tick 3.")
    client.do("POST Z/instances/vm/suspend")
    found = client.get("Z/instances/vm")
    assert found["status"] == "SUSPENDED"
    assert "natIP" not in found["networkInterfaces"][0]["accessConfigs"][0]
    assert found["lastSuspendedTimestamp"] > found["creationTimestamp"]
    assert client.names("Z/instances", filter="status=SUSPENDED") == ["vm"]
    assert client.fails("POST Z/instances/vm/start") == "INVALID_USAGE"
    client.do("POST Z/instances/vm/resume")
    assert client.status("vm") == "RUNNING"
    assert client.fails("POST Z/instances/vm/resume") == "INVALID_USAGE"
    assert "boot 2" not in client.serial("vm")
    client.do("POST Z/instances/vm/suspend")
    client.do("POST Z/instances/vm/stop")
    assert client.status("vm") == "TERMINATED"
    assert client.fails("POST Z/instances/vm/suspend") == "INVALID_USAGE"
    client.do("POST Z/instances/vm/start")
    client.do("POST Z/instances/vm/suspend")
    client.do("DELETE Z/instances/vm")


def test_a_machine_image_creates_copies_of_a_deleted_machine(server: ComputeServer) -> None:
    client = Client(server, "cloner")
    client.create("first", script=WRITE, labels={"team": "red"})
    client.prints("first", "wrote")
    source = f"projects/cloner/{ZONE}/instances/first"
    client.do("POST global/machineImages", {"name": "like-first", "sourceInstance": source})
    image = client.get("global/machineImages/like-first")
    assert image["status"] == "READY"
    assert image["instanceProperties"]["machineType"] == "n1-standard-1"
    assert [one["sourceDisk"].rpartition("/")[2] for one in image["savedDisks"]] == ["first"]
    assert client.names("global/machineImages") == ["like-first"]
    assert client.names("global/snapshots") == []
    client.do("DELETE Z/instances/first")
    wanted = {"name": "second", "sourceMachineImage": "projects/cloner/global/machineImages/like-first"}
    client.do("POST Z/instances", {**wanted, "machineType": f"{ZONE}/machineTypes/n1-standard-4"})
    client.prints("second", "by first")
    second = client.get("Z/instances/second")
    assert second["labels"] == {"team": "red"}
    assert second["machineType"].endswith("/n1-standard-4")
    assert [one["source"].rpartition("/")[2] for one in second["disks"]] == ["second"]
    client.do("DELETE global/machineImages/like-first")
    client.do("DELETE Z/instances/second")
    assert [image.name for image in server.cloud.images()] == ["base"]


def test_a_machine_image_without_a_source_or_with_a_taken_name_is_refused(server: ComputeServer) -> None:
    client = Client(server, "refused")
    client.create("vm")
    source = f"projects/refused/{ZONE}/instances/vm"
    client.do("POST global/machineImages", {"name": "taken", "sourceInstance": source})
    again = client.refused("POST global/machineImages", {"name": "taken", "sourceInstance": source})
    assert again[:2] == (409, "alreadyExists")
    nowhere = {"name": "none", "sourceInstance": f"{source}-2"}
    assert client.refused("POST global/machineImages", nowhere)[:2] == (404, "notFound")
    assert client.refused("POST global/machineImages", {"name": "none"})[0] == 400
    wanted = {"name": "vm2", "sourceMachineImage": "global/machineImages/none"}
    assert client.refused("POST Z/instances", wanted)[:2] == (404, "notFound")
    client.do("DELETE global/machineImages/taken")
    client.do("DELETE Z/instances/vm")


def test_a_server_killed_during_a_machine_image_leaves_no_partial_one(tmp_path: Path, watching: Watching) -> None:
    with compute_server(tmp_path, watching) as other:
        client = Client(other, "killed")
        client.create("vm", script=WRITE)
        client.prints("vm", "wrote")
        for name in ("half", "whole"):
            source = f"projects/killed/{ZONE}/instances/vm"
            client.do("POST global/machineImages", {"name": name, "sourceInstance": source})
        ledger = Path(other.endpoint.root, "compute")
        [kept] = ledger.glob("machineImages/*/half.json")
        record = json.loads(kept.read_text())
        # The state on disk during the creation.
        record["doc"]["status"] = "CREATING"
        kept.write_text(json.dumps(record))
        other.reopen()
        assert client.names("global/machineImages") == ["whole"]
        assert len(list(ledger.glob("savedDisks/*/*.json"))) == 1
        assert len(other.cloud.images()) == 2


def test_a_template_is_created_from_an_instance(server: ComputeServer) -> None:
    client = Client(server, "templates")
    client.create("vm", script="echo I am $(hostname)", labels={"team": "red"})
    source = f"projects/templates/{ZONE}/instances/vm"
    client.do("POST global/instanceTemplates", {"name": "like-vm", "sourceInstance": source})
    properties = client.get("global/instanceTemplates/like-vm")["properties"]
    assert properties["labels"] == {"team": "red"}
    client.do("POST Z/instances?sourceInstanceTemplate=global/instanceTemplates/like-vm", {"name": "vm2"})
    client.prints("vm2", "I am vm2")
    for name in ("vm", "vm2"):
        client.do(f"DELETE Z/instances/{name}")


def test_settings_without_effect_are_stored(server: ComputeServer) -> None:
    client = Client(server, "written")
    client.create("vm")
    client.do("POST Z/instances/vm/setMinCpuPlatform", {"minCpuPlatform": "Intel Haswell"})
    client.do("PATCH Z/instances/vm/updateShieldedInstanceConfig", {"enableSecureBoot": True})
    client.do("PATCH Z/instances/vm/setShieldedInstanceIntegrityPolicy", {"updateAutoLearnPolicy": True})
    found = client.get("Z/instances/vm")
    assert found["minCpuPlatform"] == "Intel Haswell"
    assert found["shieldedInstanceConfig"] == {"enableSecureBoot": True}
    binding = {"role": "roles/compute.admin", "members": ["user:a@example.com"]}
    path = client.path("Z/instances/vm")
    server.call.json("POST", f"{path}/setIamPolicy", {"policy": {"bindings": [binding]}})
    assert server.call.json("GET", f"{path}/getIamPolicy")["bindings"] == [binding]
    client.do("DELETE Z/instances/vm")


def test_an_image_changes_its_family(server: ComputeServer) -> None:
    client = Client(server, "families")
    source = "projects/debian-cloud/global/images/family/debian-12"
    client.do("POST global/images", {"name": "mine", "sourceImage": source, "family": "old"})
    client.do("PATCH global/images/mine", {"family": "new"})
    assert client.get("global/images/family/new")["name"] == "mine"
    assert client.refused("GET global/images/family/old")[0] == 404
    client.do("DELETE global/images/mine")


def test_a_stopped_machine_changes_between_spot_and_on_demand(tmp_path: Path, watching: Watching) -> None:
    with compute_server(tmp_path, watching) as server:
        client = Client(server, "proj1")
        server.cloud.set_zone("us-central1-a", grace_s=1.0)
        client.create("one", scheduling={"provisioningModel": "SPOT", "instanceTerminationAction": "STOP"})
        [spot] = server.cloud.machines()
        refused = client.refused("POST Z/instances/one/setScheduling", {"provisioningModel": "STANDARD"})
        assert refused[0] == 400
        client.do("POST Z/instances/one/stop")
        client.comes("one", "TERMINATED")
        client.do("POST Z/instances/one/setScheduling", {"provisioningModel": "STANDARD"})
        rules = client.get("Z/instances/one")["scheduling"]
        assert (rules["provisioningModel"], rules["preemptible"]) == ("STANDARD", False)
        assert "instanceTerminationAction" not in rules
        [standard] = server.cloud.machines()
        assert (standard.spot, standard.price_usd_per_hour > spot.price_usd_per_hour) == (False, True)
        both = {"provisioningModel": "STANDARD", "automaticRestart": True, "onHostMaintenance": "MIGRATE"}
        client.do("POST Z/instances/one/setScheduling", both)
        assert client.get("Z/instances/one")["scheduling"]["automaticRestart"] is True
        client.do("POST Z/instances/one/setScheduling", {"preemptible": True})
        rules = client.get("Z/instances/one")["scheduling"]
        assert (rules["provisioningModel"], rules["automaticRestart"]) == ("SPOT", False)
        client.do("POST Z/instances/one/start")
        client.comes("one", "RUNNING")
        assert [machine.spot for machine in server.cloud.machines()] == [True]
        client.do("POST Z/instances/one/simulateMaintenanceEvent")
        client.comes("one", "TERMINATED")


def test_a_patch_resizes_a_disk_and_changes_nothing_else(tmp_path: Path, watching: Watching) -> None:
    with compute_server(tmp_path, watching) as server:
        client = Client(server, "proj1")
        client.do("POST Z/disks", {"name": "one", "sizeGb": "10"})
        client.do("PATCH Z/disks/one?paths=sizeGb", {"name": "one", "sizeGb": "15"})
        assert client.get("Z/disks/one")["sizeGb"] == "15"
        assert client.refused("PATCH Z/disks/one", {"name": "one"})[0] == 400


def test_regions_and_projects_have_gpu_quotas(tmp_path: Path, watching: Watching) -> None:
    with compute_server(tmp_path, watching) as server:
        client = Client(server, "proj1")
        region = {quota["metric"]: quota["limit"] for quota in client.get("regions/us-central1")["quotas"]}
        assert region["PREEMPTIBLE_NVIDIA_T4_GPUS"] > 0
        assert "GPUS_ALL_REGIONS" in [quota["metric"] for quota in client.get("")["quotas"]]
