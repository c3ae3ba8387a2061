"""Instances of the Compute API, each a real machine of the local cloud."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast_gcp_emulator.faults import Fault
from tests.integration.emulator.compute import SPOT, ZONE, Client, ComputeServer, machine
from tests.support.emulator import Caller
from tests.support.waiting import eventually

_numbers = itertools.count(1)
CLOUD_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


@pytest.fixture
def client(server: ComputeServer) -> Iterator[Client]:
    """A separate project for each test, with an empty cloud."""
    yield Client(server, f"proj{next(_numbers)}")
    for zone in server.cloud.zone_settings():
        server.cloud.set_zone(zone, capacity=None, quota=None, rate=None, grace_s=None)
    for one in server.cloud.machines():
        server.cloud.delete(one.name)


def test_a_machine_is_created_described_stopped_started_and_deleted(client: Client) -> None:
    operation = client.begin("POST Z/instances", machine("one", labels={"exp": "e1"}, description="first"))
    assert operation["operationType"] == "insert"
    assert operation["targetLink"].endswith(f"/projects/{client.project}/{ZONE}/instances/one")
    assert client.wait(operation)["progress"] == 100
    found = client.get("Z/instances/one")
    assert (found["status"], found["labels"], found["description"]) == ("RUNNING", {"exp": "e1"}, "first")
    assert found["machineType"].endswith(f"{ZONE}/machineTypes/n1-standard-1")
    assert found["networkInterfaces"][0]["accessConfigs"][0]["natIP"]
    assert client.get("Z/disks/one")["users"] == [found["selfLink"]]
    client.do("POST Z/instances/one/stop")
    assert client.status("one") == "TERMINATED"
    client.do("POST Z/instances/one/start")
    assert client.status("one") == "RUNNING"
    client.do("DELETE Z/instances/one")
    assert client.refused("GET Z/instances/one")[:2] == (404, "notFound")
    assert client.refused("GET Z/disks/one")[:2] == (404, "notFound")
    assert client.names("Z/instances") == []


def test_scripts_read_metadata_as_on_googles_machines(client: Client) -> None:
    script = """
    ask() { curl -sf -H Metadata-Flavor:Google "http://metadata.google.internal/computeMetadata/v1/$1" || echo none; }
    echo "zone=$(ask instance/zone) name=$(ask instance/name) project=$(ask project/project-id)"
    echo "mine=$(ask instance/attributes/mine) ours=$(ask project/attributes/ours) type=$(ask instance/machine-type)"
    echo "scopes=$(ask instance/service-accounts/default/scopes) token=$(ask instance/service-accounts/default/token)"
    echo "hidden=$(ask instance/attributes/outlast-overlay)"
    """
    project = client.get("")
    body = {"fingerprint": project["commonInstanceMetadata"]["fingerprint"], "items": [{"key": "ours", "value": "o"}]}
    client.do("POST setCommonInstanceMetadata", body)
    accounts = [{"email": "default", "scopes": [CLOUD_SCOPE]}]
    made = machine("one", script=script, serviceAccounts=accounts)
    made["metadata"]["items"].append({"key": "mine", "value": "m"})
    client.do("POST Z/instances", made)
    client.prints("one", "startup-script exit status 0")
    output = client.serial("one")
    number = project["id"]
    assert f"startup-script: zone=projects/{number}/zones/us-central1-a name=one project={client.project}" in output
    assert f"mine=m ours=o type=projects/{number}/machineTypes/n1-standard-1" in output
    assert f"scopes={CLOUD_SCOPE}" in output
    assert '"access_token"' in output
    assert "hidden=none" in output


def test_scripts_read_addresses_and_disks_from_the_metadata(client: Client) -> None:
    script = """
    ask() { curl -sf -H Metadata-Flavor:Google "http://metadata.google.internal/computeMetadata/v1/$1" || echo none; }
    CARD=instance/network-interfaces/0
    echo "card=$(ask $CARD/network) ip=$(ask $CARD/ip) outside=$(ask $CARD/access-configs/0/external-ip)"
    echo "disk=$(ask instance/disks/0/interface) $(ask instance/disks/0/device-name)"
    """
    found = client.create("open", script=script)["networkInterfaces"][0]
    client.create("closed", script=script, networkInterfaces=[{"network": "global/networks/default"}])
    for name in ("open", "closed"):
        client.prints(name, "disk=SCSI persistent-disk-0")
    number = client.get("")["id"]
    outside = found["accessConfigs"][0]["natIP"]
    card = f"card=projects/{number}/networks/default"
    assert f"{card} ip={found['networkIP']} outside={outside}" in client.serial("open")
    assert "outside=none" in client.serial("closed")


def test_a_script_reports_its_progress_by_guest_attributes(client: Client) -> None:
    script = """
    GUEST=http://metadata.google.internal/computeMetadata/v1/instance/guest-attributes
    curl -sf -X PUT --data begun -H Metadata-Flavor:Google $GUEST/startup/state
    curl -sf -X PUT --data 7 -H Metadata-Flavor:Google $GUEST/startup/step
    """
    made = machine("one", script=script)
    made["metadata"]["items"].append({"key": "enable-guest-attributes", "value": "TRUE"})
    client.do("POST Z/instances", made)
    client.prints("one", "startup-script exit status 0")
    ask = "Z/instances/one/getGuestAttributes"
    written = [
        {"namespace": "startup", "key": "state", "value": "begun"},
        {"namespace": "startup", "key": "step", "value": "7"},
    ]
    assert client.get(ask, queryPath="startup/")["queryValue"]["items"] == written
    assert client.get(ask, queryPath="startup/step")["queryValue"]["items"] == written[1:]
    assert client.get(ask, variableKey="startup/step")["variableValue"] == "7"
    assert [item for item in client.get(ask)["queryValue"]["items"] if item["namespace"] != "hostkeys"] == written
    message = "The resource 'startup/nothing' of type 'Guest Attribute' was not found."
    assert client.refused(f"GET {ask}?queryPath=startup/nothing") == (404, "notFound", message)
    client.do("POST Z/instances/one/stop")
    assert client.get(ask, queryPath="startup/state")["queryValue"]["items"] == written[:1]


def test_serial_output_is_read_from_an_offset(client: Client) -> None:
    client.create("one", script="echo first line")
    client.prints("one", "first line")
    client.prints("one", "Finished running startup scripts")
    first = client.get("Z/instances/one/serialPort")
    assert first["start"] == "0"
    client.do("POST Z/instances/one/stop")
    more = client.get("Z/instances/one/serialPort", start=first["next"])
    assert more["start"] == first["next"]
    assert "first line" not in more["contents"]
    assert "power is off" in more["contents"]


def test_a_machine_that_powers_itself_off_is_terminated_with_an_operation(client: Client) -> None:
    client.do("POST Z/instances", machine("one", script="shutdown -h now"))
    client.comes("one", "TERMINATED")

    def written() -> bool:
        return "compute.instances.guestTerminate" in [op["operationType"] for op in client.get("Z/operations")["items"]]

    eventually(written, what="the operation of the power-off")


# Errors


@pytest.mark.parametrize(
    ("zone", "code"),
    [
        ({"capacity": 0}, "ZONE_RESOURCE_POOL_EXHAUSTED"),
        ({"quota": 0}, "QUOTA_EXCEEDED"),
        ({"deny": "no"}, "PERMISSIONS_ERROR"),
    ],
)
def test_an_insert_can_fail_in_its_operation_and_leaves_nothing(client: Client, zone: Any, code: str) -> None:
    client.server.cloud.set_zone("us-central1-a", **zone)
    try:
        assert client.fails("POST Z/instances", machine("one")) == code
    finally:
        client.server.cloud.set_zone("us-central1-a", capacity=None, quota=None, deny=None)
    assert client.refused("GET Z/instances/one")[:2] == (404, "notFound")
    assert client.names("Z/disks") == []
    client.create("one")


def test_a_start_can_fail_without_capacity(client: Client) -> None:
    client.create("one")
    client.do("POST Z/instances/one/stop")
    client.server.cloud.set_zone("us-central1-a", capacity=0)
    assert client.fails("POST Z/instances/one/start") == "ZONE_RESOURCE_POOL_EXHAUSTED"
    assert client.status("one") == "TERMINATED"


def test_too_many_requests_are_throttled_only_in_their_zone(client: Client) -> None:
    client.server.cloud.set_zone("us-central1-a", rate=0)
    assert client.refused("GET Z/instances")[:2] == (429, "rateLimitExceeded")
    assert client.get("zones/us-central1-b/instances")["items"] == []
    client.server.cloud.set_zone("us-central1-a", rate=2)
    statuses = [client.server.call("GET", client.path("Z/instances")).status for _ in range(20)]
    assert statuses[0] == 200
    assert 429 in statuses


def test_a_repeated_request_id_returns_the_same_operation(client: Client) -> None:
    path = "Z/instances?requestId=c8eae213-1074-48bb-8304-c04afb5a1c8a"
    first = client.begin(f"POST {path}", machine("one"))
    again = client.server.call.json("POST", client.path(path), machine("one"))
    assert again["name"] == first["name"]
    client.wait(first)
    assert client.names("Z/instances") == ["one"]
    assert client.refused("POST Z/instances", machine("one"))[:2] == (409, "alreadyExists")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"name": "Not_A_Name"}, "resource.name"),
        ({"machineType": f"{ZONE}/machineTypes/n1-standard-3"}, "resource.machineType"),
        ({"machineType": ""}, "resource.machineType"),
        ({"disks": []}, "resource.disks"),
        ({"image": "global/images/nosuch"}, "resource.disks[0].initializeParams.sourceImage"),
        ({"scheduling": {"provisioningModel": "CHEAP"}}, "resource.scheduling.provisioningModel"),
        ({"scheduling": {"preemptible": True, "automaticRestart": True}}, "automatic restart"),
        ({"guestAccelerators": [{"acceleratorType": "x/tpu", "acceleratorCount": 1}]}, "guestAccelerators[0]"),
        ({"metadata": {"items": [{"value": "v"}]}}, "resource.items[0].key"),
    ],
)
def test_an_invalid_instance_is_refused_with_the_name_of_its_field(client: Client, fields: Any, named: str) -> None:
    status, reason, message = client.refused("POST Z/instances", machine(**{"name": "one", **fields}))
    assert (status, reason) == (400, "invalid")
    assert named in message
    assert client.names("Z/disks") == []


def test_unknown_zones_and_addresses_are_refused(client: Client) -> None:
    assert client.refused("GET zones/mars-1a/instances")[0] == 400
    assert client.refused("GET zones/mars-1a")[:2] == (404, "notFound")
    assert client.refused("GET Z/teapots")[:2] == (404, "notFound")
    assert client.refused("GET Z/operations/nosuch")[:2] == (404, "notFound")
    assert client.refused("POST Z/operations/nosuch/wait")[:2] == (404, "notFound")


def test_a_change_with_a_stale_fingerprint_is_refused(client: Client) -> None:
    found = client.create("one")
    stale = found["metadata"]["fingerprint"]
    body = {"fingerprint": stale, "items": [{"key": "k", "value": "v"}]}
    client.do("POST Z/instances/one/setMetadata", body)
    assert client.refused("POST Z/instances/one/setMetadata", body)[:2] == (412, "conditionNotMet")
    labels = {"labelFingerprint": found["labelFingerprint"], "labels": {"a": "b"}}
    client.do("POST Z/instances/one/setLabels", labels)
    assert client.refused("POST Z/instances/one/setLabels", labels)[:2] == (412, "conditionNotMet")
    tags = {"fingerprint": found["tags"]["fingerprint"], "items": ["web"]}
    client.do("POST Z/instances/one/setTags", tags)
    assert client.refused("POST Z/instances/one/setTags", tags)[:2] == (412, "conditionNotMet")
    shown = client.get("Z/instances/one")
    assert (shown["labels"], shown["tags"]["items"]) == ({"a": "b"}, ["web"])
    assert shown["metadata"]["items"] == [{"key": "k", "value": "v"}]


def test_the_machine_type_changes_only_while_the_machine_is_stopped(client: Client) -> None:
    client.create("one")
    body = {"machineType": f"{ZONE}/machineTypes/custom-4-8192"}
    assert client.fails("POST Z/instances/one/setMachineType", body) == "INVALID_USAGE"
    client.do("POST Z/instances/one/stop")
    client.do("POST Z/instances/one/setMachineType", body)
    assert client.get("Z/instances/one")["machineType"].endswith("custom-4-8192")
    assert [one.type for one in client.server.cloud.machines()] == ["custom-4-8192"]


def test_a_protected_instance_cannot_be_deleted(client: Client) -> None:
    client.create("one", deletionProtection=True)
    assert client.refused("DELETE Z/instances/one")[0] == 400
    client.do("POST Z/instances/one/setDeletionProtection?deletionProtection=false")
    client.do("DELETE Z/instances/one")


# Events of the cloud


def test_a_maintenance_event_preempts_a_spot_machine_with_notice(client: Client) -> None:
    client.server.cloud.set_zone("us-central1-a", grace_s=0.5)
    ask = "curl -s -H Metadata-Flavor:Google http://metadata/computeMetadata/v1/instance/preempted"
    script = f"echo waiting; until [ $({ask}) = TRUE ]; do sleep 0.02; done; echo noticed"
    client.create("one", script=script, scheduling=SPOT)
    client.prints("one", "waiting")
    client.do("POST Z/instances/one/simulateMaintenanceEvent")
    client.comes("one", "TERMINATED")
    assert "startup-script: noticed" in client.serial("one")

    def preemptions() -> list[str]:
        query = 'operationType eq ".*\\bcompute\\.instances\\.preempted\\b.*"'
        return client.names("Z/operations", filter=query)

    eventually(lambda: len(preemptions()) == 1, what="the operation of the preemption")


def test_a_preempted_machine_with_action_delete_is_deleted(client: Client) -> None:
    client.server.cloud.set_zone("us-central1-a", grace_s=0.1)
    client.create("one", scheduling={**SPOT, "instanceTerminationAction": "DELETE"})
    client.do("POST Z/instances/one/simulateMaintenanceEvent")
    eventually(lambda: client.names("Z/instances") == [], what="the end of the machine")
    eventually(lambda: client.names("Z/disks") == [], what="the end of its disk")


@pytest.mark.parametrize("action", ["STOP", "DELETE"])
def test_a_machine_stops_after_its_maximum_run_duration(client: Client, action: str) -> None:
    rules = {**SPOT, "instanceTerminationAction": action, "maxRunDuration": {"seconds": "1"}}
    client.do("POST Z/instances", machine("one", scheduling=rules))
    if action == "STOP":
        client.comes("one", "TERMINATED")
    else:
        eventually(lambda: client.names("Z/instances") == [], within_s=20, what="the end of the machine")


def test_the_scopes_of_a_machine_limit_its_requests(client: Client) -> None:
    ask = "curl -s http://metadata/computeMetadata/v1/instance/service-accounts/default/token -H Metadata-Flavor:Google"
    me = f"{client.server.endpoint.address}{client.path('Z/instances')}/$(hostname)"
    script = f"""
    token=$({ask} | sed 's/.*"access_token": "\\([^"]*\\)".*/\\1/')
    curl -s -o /dev/null -w 'status=%{{http_code}}\\n' -X DELETE -H "Authorization: Bearer $token" {me}
    """
    weak = [{"email": "default", "scopes": ["https://www.googleapis.com/auth/devstorage.read_write"]}]
    client.create("weak", script=script.replace("$(hostname)", "weak"), serviceAccounts=weak)
    client.prints("weak", "status=403")
    strong = [{"email": "default", "scopes": [CLOUD_SCOPE]}]
    client.do(
        "POST Z/instances", machine("strong", script=script.replace("$(hostname)", "strong"), serviceAccounts=strong)
    )
    eventually(lambda: client.names("Z/instances") == ["weak"], within_s=20, what="the machine deleting itself")


def test_a_restarted_server_keeps_its_instances(client: Client) -> None:
    before = client.create("one", labels={"a": "b"})
    client.server.reopen()
    after = client.get("Z/instances/one")
    same = ("id", "labels", "status", "creationTimestamp")
    assert [after[name] for name in same] == [before[name] for name in same]
    assert client.names("Z/disks") == ["one"]
    client.do("DELETE Z/instances/one")


@pytest.mark.parametrize("mark", ["_creating", "_deleting"])
def test_a_server_killed_during_a_launch_or_a_delete_leaves_no_partial_machine(client: Client, mark: str) -> None:
    client.create("half")
    client.create("whole")
    [kept] = Path(client.server.endpoint.root, "compute", "instances").glob(f"{client.project}*/half.json")
    record = json.loads(kept.read_text())
    record["doc"][mark] = True
    # The state on disk during the operation.
    kept.write_text(json.dumps(record))
    client.server.reopen()
    assert client.names("Z/instances") == ["whole"]
    assert client.names("Z/disks") == ["whole"]
    assert len(client.server.cloud.machines()) == 1


def test_a_path_without_the_api_version_works(client: Client) -> None:
    """Google's clients omit `/compute/v1` if the server's address is their endpoint."""
    found = client.server.call.json("GET", f"/projects/{client.project}/zones/us-central1-a")
    assert found["selfLink"] == client.get("zones/us-central1-a")["selfLink"]
    assert client.server.call("GET", f"/projects/{client.project}/nothing/of/the/kind").status == 404


@pytest.mark.full
def test_a_machine_that_cannot_boot_does_not_stop_the_reconciler(client: Client) -> None:
    client.server.cloud.set_zone("us-central1-a", grace_s=1.0)
    client.create("spot", scheduling=SPOT)
    client.create("lost")
    folder = client.server.cloud._folder("lost")
    # A disk that is a file instead of a folder cannot boot.
    os.rename(folder.disk_path, f"{folder.disk_path}.away")
    Path(folder.disk_path).touch()
    os.kill((folder.state() or {})["shim_pid"], signal.SIGKILL)
    verb = "compute.instances.hostError"
    eventually(
        lambda: verb in [one["operationType"] for one in client.get("Z/operations")["items"]], what="a host error"
    )
    client.do("POST Z/instances/spot/simulateMaintenanceEvent")
    client.comes("spot", "TERMINATED")


# Injected faults


def test_a_request_with_a_lost_response_can_be_repeated_without_a_duplicate(client: Client) -> None:
    path = client.path("Z/instances?requestId=5f5c9f5e-0001-4c1e-9f43-3f4f1b1f9a11")
    client.server.endpoint.faults.add(Fault(path="/compute/v1/projects/*/instances", method="POST", after_work=True))
    with pytest.raises(ConnectionError):
        client.server.call("POST", path, machine("one"))
    client.server.call = Caller(client.server.endpoint)
    client.wait(client.server.call.json("POST", path, machine("one")))
    assert client.names("Z/instances") == ["one"]
    assert len(client.get("Z/operations", filter="operationType=insert")["items"]) == 1


@pytest.mark.parametrize("status", [401, 403, 404, 409, 429, 500, 503])
def test_injected_faults_have_googles_form_and_change_nothing(client: Client, status: int) -> None:
    client.server.endpoint.faults.add(Fault(path="/compute/v1/projects/*/instances", method="POST", status=status))
    assert client.refused("POST Z/instances", machine("one"))[0] == status
    assert client.names("Z/instances") == []
