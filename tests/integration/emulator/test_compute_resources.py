"""Disks, images, snapshots, templates, groups, networks and lists of the Compute API."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.emulator.compute import SPOT, ZONE, Client, ComputeServer, machine
from tests.support.waiting import eventually

_numbers = itertools.count(1)


@pytest.fixture
def client(server: ComputeServer) -> Iterator[Client]:
    yield Client(server, f"proj{next(_numbers)}")
    for zone in server.cloud.zone_settings():
        server.cloud.set_zone(zone, capacity=None, grace_s=None)


WRITE = "echo precious > $HOME/kept"
READ = "echo found $(cat $HOME/kept)"


def with_disk(client: Client, name: str = "one") -> None:
    """A stopped machine that has written to its disk."""
    client.create(name, script=WRITE)
    client.prints(name, "Finished running startup scripts")
    client.do(f"POST Z/instances/{name}/stop")


def test_an_image_of_a_disk_boots_other_machines_after_the_first_is_deleted(client: Client) -> None:
    with_disk(client)
    source = {"name": "img-1", "family": "env", "sourceDisk": f"{ZONE}/disks/one", "labels": {"by": "me"}}
    client.do("POST global/images", source)
    image = client.get("global/images/img-1")
    assert (image["status"], image["family"], image["labels"]) == ("READY", "env", {"by": "me"})
    assert client.refused("POST global/images", source)[:2] == (409, "alreadyExists")
    client.do("DELETE Z/instances/one")
    client.create("two", image="global/images/family/env", script=READ)
    client.prints("two", "found precious")
    assert client.get("Z/disks/two")["sourceImage"].endswith("/images/img-1")


def test_an_image_of_a_running_machine_must_be_forced(client: Client) -> None:
    client.create("one", script=WRITE)
    client.prints("one", "Finished running startup scripts")
    source = {"name": "img", "sourceDisk": f"{ZONE}/disks/one"}
    status, reason, message = client.refused("POST global/images", source)
    assert (status, reason) == (400, "resourceInUseByAnotherResource")
    assert f"instances/one" in message  # noqa: F541
    client.do("POST global/images?forceCreate=true", source)
    client.create("two", image="global/images/img", script=READ)
    client.prints("two", "found precious")
    assert client.status("one") == "RUNNING"


def test_a_family_is_its_newest_image_that_is_not_deprecated(client: Client) -> None:
    public = "projects/ubuntu-os-cloud/global/images/family/ubuntu-1604-lts"
    for name in ("env-1", "env-2"):
        client.do("POST global/images", {"name": name, "family": "env", "sourceImage": public})
    assert client.get("global/images/family/env")["name"] == "env-2"
    assert client.get("zones/-/imageFamilyViews/env")["image"]["name"] == "env-2"
    client.do("POST global/images/env-2/deprecate", {"state": "DEPRECATED"})
    assert client.get("global/images/family/env")["name"] == "env-1"
    client.do("POST global/images/env-1/deprecate", {"state": "OBSOLETE"})
    assert client.refused("GET global/images/family/env")[:2] == (404, "notFound")
    client.do("POST global/images/env-2/deprecate", {"state": "ACTIVE"})
    assert client.get("global/images/family/env")["name"] == "env-2"
    assert client.refused("POST global/images/env-2/deprecate", {"state": "OLD"})[0] == 400


def test_deleting_an_image_keeps_the_disk_that_another_shares(client: Client) -> None:
    with_disk(client)
    client.do("POST global/images", {"name": "first", "sourceDisk": f"{ZONE}/disks/one"})
    client.do("POST global/images", {"name": "second", "sourceImage": "global/images/first"})
    kept = len(client.server.cloud.images())
    client.do("DELETE global/images/first")
    assert len(client.server.cloud.images()) == kept
    client.create("two", image="global/images/second", script=READ)
    client.prints("two", "found precious")
    client.do("DELETE Z/instances/two")
    client.do("DELETE global/images/second")
    assert len(client.server.cloud.images()) == kept - 1


def test_an_image_has_an_iam_policy(client: Client) -> None:
    client.do("POST global/images", {"name": "img", "sourceImage": "projects/debian-cloud/global/images/debian-12"})
    bindings = [{"role": "roles/compute.imageUser", "members": ["user:a@example.org"]}]
    first = client.server.call.json("GET", client.path("global/images/img/getIamPolicy"))
    body = {"policy": {"bindings": bindings, "etag": first["etag"]}}
    client.server.call.json("POST", client.path("global/images/img/setIamPolicy"), body)
    assert client.get("global/images/img/getIamPolicy")["bindings"] == bindings
    assert client.refused("POST global/images/img/setIamPolicy", body)[:2] == (412, "conditionNotMet")


def test_public_images_stand_for_this_computers_software(client: Client) -> None:
    debian = Client(client.server, "debian-cloud")
    assert debian.get("global/images/family/debian-12")["family"] == "debian-12"
    assert "debian-12" in [image["family"] for image in debian.get("global/images")["items"]]
    assert Client(client.server, "windows-cloud").get("global/images")["items"] == []


@pytest.mark.parametrize(
    "image",
    [
        "deeplearning-platform-release/global/images/family/tf2-latest-gpu",
        "ml-images/global/images/c2-deeplearning-tf-1-12-cu100-20181120",
        "ml-images/global/images/family/tf-1-15",
    ],
)
def test_images_for_machine_learning_are_found_by_old_names(server: ComputeServer, image: str) -> None:
    assert server.call.json("GET", f"/compute/v1/projects/{image}")["status"] == "READY"


def test_a_snapshot_is_taken_of_a_running_machine_and_becomes_a_disk(client: Client) -> None:
    client.create("one", script=WRITE)
    client.prints("one", "Finished running startup scripts")
    client.do("POST Z/disks/one/createSnapshot", {"name": "snap"})
    assert client.get("global/snapshots/snap")["status"] == "READY"
    client.do("DELETE Z/instances/one")
    client.do("POST Z/disks", {"name": "again", "sourceSnapshot": "global/snapshots/snap"})
    disks = [{"boot": True, "source": f"{ZONE}/disks/again"}]
    client.create("two", script=READ, disks=disks)
    client.prints("two", "found precious")
    client.do("DELETE global/snapshots/snap")
    assert client.names("global/snapshots") == []


def test_a_kept_boot_disk_boots_the_next_machine(client: Client) -> None:
    with_disk(client)
    device = client.get("Z/instances/one")["disks"][0]["deviceName"]
    client.do(f"POST Z/instances/one/setDiskAutoDelete?autoDelete=false&deviceName={device}")
    client.do("DELETE Z/instances/one")
    assert "users" not in client.get("Z/disks/one")
    disks = [{"boot": True, "autoDelete": True, "source": f"{ZONE}/disks/one"}]
    client.create("two", script=READ, disks=disks, scheduling=SPOT)
    client.prints("two", "found precious")
    assert client.refused("DELETE Z/disks/one")[:2] == (400, "resourceInUseByAnotherResource")
    client.do("DELETE Z/instances/two")
    assert client.names("Z/disks") == []


def test_a_kept_boot_disk_survives_a_failed_launch(client: Client) -> None:
    with_disk(client)
    client.do(f"POST Z/instances/one/setDiskAutoDelete?autoDelete=false&deviceName=persistent-disk-0")  # noqa: F541
    client.do("DELETE Z/instances/one")
    disks = [{"boot": True, "autoDelete": False, "source": f"{ZONE}/disks/one"}]
    client.server.cloud.set_zone("us-central1-a", capacity=0)
    assert client.fails("POST Z/instances", machine("two", disks=disks)) == "ZONE_RESOURCE_POOL_EXHAUSTED"
    client.server.cloud.set_zone("us-central1-a", capacity=None)
    client.create("two", script=READ, disks=disks)
    client.prints("two", "found precious")


def test_disks_grow_and_never_shrink(client: Client) -> None:
    client.create("one")
    client.do("POST Z/disks/one/resize", {"sizeGb": "50"})
    assert client.get("Z/disks/one")["sizeGb"] == "50"
    status, _, message = client.refused("POST Z/disks/one/resize", {"sizeGb": "20"})
    assert status == 400
    assert "50" in message
    client.do("POST Z/disks", {"name": "data", "sizeGb": "20"})
    client.do("POST Z/instances/one/attachDisk", {"source": f"{ZONE}/disks/data", "deviceName": "data"})
    assert [disk["deviceName"] for disk in client.get("Z/instances/one")["disks"]] == ["persistent-disk-0", "data"]
    client.do("POST Z/instances/one/detachDisk?deviceName=data")
    client.do("DELETE Z/disks/data")


def test_a_disk_attached_without_a_device_name_is_named_by_its_index(client: Client) -> None:
    client.create("one")
    for name in ("a", "b", "c"):
        client.do("POST Z/disks", {"name": name, "sizeGb": "20"})
        if name != "c":
            client.do("POST Z/instances/one/attachDisk", {"source": f"{ZONE}/disks/{name}"})
    client.do("POST Z/instances/one/detachDisk?deviceName=persistent-disk-1")
    taken = {"source": f"{ZONE}/disks/c", "deviceName": "persistent-disk-2"}
    assert client.refused("POST Z/instances/one/attachDisk", taken)[:2] == (400, "invalid")
    assert "users" not in client.get("Z/disks/c")
    client.do("POST Z/instances/one/attachDisk", {"source": f"{ZONE}/disks/c"})
    found = [(disk["deviceName"], disk["source"].rpartition("/")[2]) for disk in client.get("Z/instances/one")["disks"]]
    assert found == [("persistent-disk-0", "one"), ("persistent-disk-1", "c"), ("persistent-disk-2", "b")]
    client.do("DELETE Z/instances/one")


def test_a_clone_of_a_boot_disk_contains_its_files(client: Client) -> None:
    client.create("one", script=WRITE)
    client.prints("one", "Finished running startup scripts")
    # A smaller size is refused, and leaves nothing behind.
    images = len(client.server.cloud.images())
    assert client.refused("POST Z/disks", {"name": "less", "sizeGb": "1", "sourceDisk": f"{ZONE}/disks/one"})[0] == 400
    assert len(client.server.cloud.images()) == images
    client.do("POST Z/disks", {"name": "copy", "sourceDisk": f"{ZONE}/disks/one"})
    client.do("DELETE Z/instances/one")
    copy = client.get("Z/disks/copy")
    assert (copy["sourceDisk"].rpartition("/")[2], copy["sizeGb"]) == ("one", "10")
    client.create("two", script=READ, disks=[{"boot": True, "autoDelete": True, "source": f"{ZONE}/disks/copy"}])
    client.prints("two", "found precious")
    client.do("DELETE Z/instances/two")
    assert len(client.server.cloud.images()) == images
    elsewhere = {"name": "far", "sourceDisk": f"projects/{client.project}/zones/us-east1-b/disks/one"}
    assert "same zone" in client.refused("POST Z/disks", elsewhere)[2]


def test_a_global_snapshot_request_has_a_global_operation(client: Client) -> None:
    with_disk(client)
    done = client.do("POST global/snapshots", {"name": "snap", "sourceDisk": f"{ZONE}/disks/one"})
    assert "/global/operations/" in done["selfLink"]
    assert client.get(f"global/operations/{done['name']}")["status"] == "DONE"
    assert client.get("global/snapshots/snap")["status"] == "READY"


def test_a_server_killed_during_a_snapshot_leaves_no_partial_one(client: Client) -> None:
    client.do("POST Z/disks", {"name": "data", "sizeGb": "1"})
    for name in ("half", "whole"):
        client.do("POST Z/disks/data/createSnapshot", {"name": name})
    drive = Path(client.server.cloud.root, "drives", client.get("global/snapshots/half")["id"])
    [kept] = Path(client.server.endpoint.root, "compute", "snapshots").glob(f"{client.project}*/half.json")
    record = json.loads(kept.read_text())
    # The state on disk during the operation.
    record["doc"]["status"] = "CREATING"
    del record["doc"]["_drive"]
    kept.write_text(json.dumps(record))
    drive.rename(f"{drive}.draft")
    client.server.reopen()
    assert client.names("global/snapshots") == ["whole"]
    assert not list(drive.parent.glob(f"{drive.name}*"))
    client.do("POST Z/disks/data/createSnapshot", {"name": "half"})


# Groups


def test_a_managed_group_recreates_a_preempted_machine(client: Client) -> None:
    client.server.cloud.set_zone("us-central1-a", grace_s=0.1)
    properties = {**machine("unused", scheduling=SPOT), "machineType": "n1-standard-1"}
    del properties["name"]
    client.do("POST global/instanceTemplates", {"name": "template", "properties": properties})
    group = {"name": "group", "targetSize": 1, "instanceTemplate": "global/instanceTemplates/template"}
    client.do("POST Z/instanceGroupManagers", {**group, "baseInstanceName": "worker"})
    [name] = client.names("Z/instances")
    first = client.get(f"Z/instances/{name}")
    assert name.startswith("worker-")
    client.do(f"POST Z/instances/{name}/simulateMaintenanceEvent")

    def revived() -> bool:
        found = client.get("Z/instances")["items"]
        return [one["status"] for one in found] == ["RUNNING"] and found[0]["id"] != first["id"]

    eventually(revived, within_s=20, what="the machine coming back")
    assert client.names("Z/instances") == [name]
    eventually(lambda: client.get("Z/instanceGroupManagers/group")["status"]["isStable"], what="a stable group")
    client.do("POST Z/instanceGroupManagers/group/resize?size=0")
    assert client.names("Z/instances") == []
    client.do("DELETE Z/instanceGroupManagers/group")
    assert client.refused("GET Z/instanceGroupManagers/group")[:2] == (404, "notFound")


@pytest.mark.full
def test_a_group_without_capacity_reports_the_error_and_retries(client: Client) -> None:
    properties = {**machine("unused"), "machineType": "n1-standard-1"}
    client.do("POST global/instanceTemplates", {"name": "template", "properties": properties})
    client.server.cloud.set_zone("us-central1-a", capacity=0)
    group = {"name": "group", "targetSize": 1, "instanceTemplate": "global/instanceTemplates/template"}
    client.do("POST Z/instanceGroupManagers", group)
    [error] = client.get("Z/instanceGroupManagers/group/listErrors")["items"]
    assert error["error"]["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED"
    client.server.cloud.set_zone("us-central1-a", capacity=None)
    eventually(lambda: len(client.names("Z/instances")) == 1, within_s=30, what="the group trying again")
    client.do("DELETE Z/instanceGroupManagers/group")


# Lists


@pytest.fixture(scope="module")
def crowd(server: ComputeServer) -> Client:
    """A project with disks, which are created fast. Lists of all kinds behave alike."""
    crowd = Client(server, "crowd")
    for number in range(5):
        body = {"name": f"disk-{number}", "sizeGb": str(10 + number), "labels": {"odd": str(number % 2)}}
        crowd.do("POST Z/disks", body)
    crowd.do("POST zones/us-central1-b/disks", {"name": "other", "sizeGb": "10"})
    return crowd


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("name=disk-1", "1"),
        ("labels.odd=1", "13"),
        ("labels.odd = 1 AND sizeGb > 12", "3"),
        ("(name = disk-0) OR (name = disk-4)", "04"),
        ("name eq disk-[12]", "12"),
        ("name ne .*[0-3]", "4"),
        ("NOT labels.odd=1", "024"),
        ("-labels.odd=1 sizeGb<=12", "02"),
        ("labels.odd:*", "01234"),
        ("labels.none:*", ""),
        ("name:disk-3", "3"),
        ("status=READY", "01234"),
        ('creationTimestamp > "2020-01-01T00:00:00"', "01234"),
    ],
)
def test_lists_are_filtered(crowd: Client, text: str, found: str) -> None:
    assert crowd.names("Z/disks", filter=text) == [f"disk-{number}" for number in found]


@pytest.mark.parametrize("text", ["name", "name=", "(name=a", "name=a)", "name ~~ b", "name eq [", "AND"])
def test_an_invalid_filter_is_refused(crowd: Client, text: str) -> None:
    from urllib.parse import quote

    status, reason, message = crowd.refused(f"GET Z/disks?filter={quote(text)}")
    assert (status, reason) == (400, "invalid")
    assert "filter" in message


def test_pages_lose_no_items_when_others_are_deleted(crowd: Client) -> None:
    names: list[str] = []
    query: dict[str, Any] = {"maxResults": "2"}
    while True:
        page = crowd.get("Z/disks", **query)
        names += [item["name"] for item in page["items"]]
        if "nextPageToken" not in page:
            break
        query["pageToken"] = page["nextPageToken"]
    assert names == [f"disk-{number}" for number in range(5)]
    first = crowd.get("Z/disks", maxResults="2")
    crowd.do("DELETE Z/disks/disk-1")
    rest = crowd.names("Z/disks", pageToken=first["nextPageToken"])
    crowd.do("POST Z/disks", {"name": "disk-1", "sizeGb": "11", "labels": {"odd": "1"}})
    assert rest == ["disk-2", "disk-3", "disk-4"]
    assert crowd.refused("GET Z/disks?maxResults=501")[0] == 400
    assert crowd.refused("GET Z/disks?orderBy=size")[0] == 400


def test_an_aggregated_list_is_grouped_by_zone(crowd: Client) -> None:
    items = crowd.get("aggregated/disks")["items"]
    assert sorted(items) == ["zones/us-central1-a", "zones/us-central1-b"]
    assert [disk["name"] for disk in items["zones/us-central1-b"]["disks"]] == ["other"]
    empty = Client(crowd.server, "empty").get("aggregated/disks")["items"]
    assert [one["warning"]["code"] for one in empty.values()] == ["NO_RESULTS_ON_PAGE"]


def test_a_response_contains_only_the_requested_fields(crowd: Client) -> None:
    found = crowd.get("Z/disks", fields="items(name,sizeGb)", filter="name=disk-2")
    assert found == {"items": [{"name": "disk-2", "sizeGb": "12"}]}


def test_lists_are_sorted_by_creation_time_on_request(crowd: Client) -> None:
    assert crowd.names("Z/disks", orderBy="creationTimestamp desc", filter="name=disk-2 OR name=disk-3") == [
        "disk-3",
        "disk-2",
    ]


# Kinds without machines


def test_a_new_project_has_a_network_and_firewall_rules(client: Client) -> None:
    assert client.names("global/networks") == ["default"]
    assert client.names("regions/us-central1/subnetworks") == ["default"]
    assert "default-allow-ssh" in client.names("global/firewalls")
    rule = {"name": "web", "allowed": [{"IPProtocol": "tcp", "ports": ["80"]}], "targetTags": ["web"]}
    client.do("POST global/firewalls", rule)
    assert client.get("global/firewalls/web")["direction"] == "INGRESS"
    client.do("DELETE global/firewalls/web")
    assert client.refused("POST global/firewalls", {"name": "web"})[0] == 400
    assert client.refused("POST global/networks", {"name": "default"})[:2] == (409, "alreadyExists")
    client.do("POST regions/us-central1/addresses", {"name": "fixed"})
    assert client.get("regions/us-central1/addresses/fixed")["address"].startswith("203.0.113.")


def test_zones_regions_and_types_are_googles(client: Client) -> None:
    assert "us-central1-f" in client.names("zones")
    assert client.get("regions/us-central1")["zones"][0].endswith("/zones/us-central1-a")
    assert client.get("Z/machineTypes/n2-highmem-8")["memoryMb"] == 65536
    assert client.get("Z/machineTypes/custom-4-8192")["guestCpus"] == 4
    assert client.refused("GET Z/machineTypes/n1-standard-3")[:2] == (404, "notFound")
    assert client.get("Z/acceleratorTypes/nvidia-tesla-t4")["maximumCardsPerInstance"] == 4
    assert client.names("Z/diskTypes", filter="name=pd-ssd") == ["pd-ssd"]
    page = client.get("aggregated/machineTypes", filter="name = e2-micro", maxResults="3")
    assert len(page["items"]) == 3
    assert page["nextPageToken"]
