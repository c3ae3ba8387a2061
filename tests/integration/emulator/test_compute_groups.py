"""Many machines: zonal and regional groups, autoscalers, rolling updates and bulk inserts."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.integration.emulator.compute import SPOT, ZONE, Client, ComputeServer, Doc, machine
from tests.support.waiting import eventually

_numbers = itertools.count(1)
R = "regions/us-central1"


@pytest.fixture
def client(server: ComputeServer) -> Iterator[Client]:
    yield Client(server, f"many{next(_numbers)}")
    for zone in server.cloud.zone_settings():
        server.cloud.set_zone(zone, capacity=None, quota=None)


def properties(script: str = "") -> Doc:
    wanted = {**machine("unused", script=script, scheduling=SPOT), "machineType": "n1-standard-1"}
    del wanted["name"]
    return wanted


def template(client: Client, name: str = "template") -> Doc:
    client.do("POST global/instanceTemplates", {"name": name, "properties": properties()})
    return {"instanceTemplate": f"global/instanceTemplates/{name}"}


def everywhere(client: Client) -> list[tuple[str, str]]:
    """Return zone and name of each machine of the project."""
    items = client.get("aggregated/instances")["items"]
    return sorted((scope, one["name"]) for scope, found in items.items() for one in found.get("instances", []))


def zones_of(client: Client) -> Counter[str]:
    return Counter(scope.rpartition("-")[2] for scope, _ in everywhere(client))


def test_a_regional_group_is_spread_over_its_zones(client: Client) -> None:
    group = {"name": "wide", "targetSize": 4, **template(client)}
    client.do(f"POST {R}/instanceGroupManagers", group)
    assert zones_of(client) == {"a": 1, "b": 1, "c": 1, "f": 1}
    assert client.get(f"{R}/instanceGroupManagers/wide")["status"]["isStable"]
    client.do(f"POST {R}/instanceGroupManagers/wide/resize?size=1")
    [(scope, name)] = everywhere(client)
    client.do(f"POST {scope}/instances/{name}/stop")
    eventually(
        lambda: client.get(f"{R}/instanceGroupManagers/wide")["status"]["isStable"], within_s=20, what="the recreation"
    )
    client.do(f"DELETE {R}/instanceGroupManagers/wide")
    assert everywhere(client) == []


def test_a_regional_group_uses_zones_with_room(client: Client) -> None:
    client.server.cloud.set_zone("us-central1-a", capacity=0)
    policy = {"zones": [{"zone": "zones/us-central1-a"}, {"zone": "zones/us-central1-b"}]}
    client.do(
        f"POST {R}/instanceGroupManagers",
        {"name": "some", "targetSize": 2, "distributionPolicy": policy, **template(client)},
    )
    assert zones_of(client) == {"b": 2}
    client.do(f"DELETE {R}/instanceGroupManagers/some")
    strange = {"zones": [{"zone": "zones/europe-west1-b"}]}
    wanted = {
        "name": "far",
        "instanceTemplate": "global/instanceTemplates/template",
        "distributionPolicy": strange,
    }
    assert client.refused(f"POST {R}/instanceGroupManagers", wanted)[0] == 400


@pytest.mark.full
def test_a_group_stays_within_the_bounds_of_its_autoscaler(client: Client) -> None:
    client.do("POST Z/instanceGroupManagers", {"name": "group", "targetSize": 0, **template(client)})
    target = "zones/us-central1-a/instanceGroupManagers/group"
    scaler = {"name": "scaler", "target": target, "autoscalingPolicy": {"minNumReplicas": 2, "maxNumReplicas": 3}}
    client.do("POST Z/autoscalers", scaler)
    eventually(lambda: len(everywhere(client)) == 2, within_s=20, what="the minimum size")
    changed = {**scaler, "autoscalingPolicy": {"minNumReplicas": 0, "maxNumReplicas": 1}}
    client.do("PUT Z/autoscalers?autoscaler=scaler", changed)
    eventually(lambda: len(everywhere(client)) == 1, within_s=20, what="the maximum size")
    assert client.refused("POST Z/autoscalers", {"name": "other", "target": target})[0] == 400
    client.do("DELETE Z/autoscalers/scaler")
    client.do("POST Z/instanceGroupManagers/group/resize?size=2")
    assert len(everywhere(client)) == 2
    client.do("DELETE Z/instanceGroupManagers/group")


def test_non_numeric_bounds_of_an_autoscaler_are_refused(client: Client) -> None:
    client.do("POST Z/instanceGroupManagers", {"name": "group", "targetSize": 0, **template(client)})
    target = "zones/us-central1-a/instanceGroupManagers/group"
    scaler = {"name": "scaler", "target": target, "autoscalingPolicy": {"maxNumReplicas": 1}}
    client.do("POST Z/autoscalers", scaler)
    changed = {**scaler, "autoscalingPolicy": {"minNumReplicas": "few", "maxNumReplicas": 1}}
    assert "minNumReplicas" in client.refused("PATCH Z/autoscalers?autoscaler=scaler", changed)[2]
    client.do("DELETE Z/autoscalers/scaler")
    client.do("DELETE Z/instanceGroupManagers/group")


def test_a_template_in_use_cannot_be_deleted(client: Client) -> None:
    client.do("POST Z/instanceGroupManagers", {"name": "group", "targetSize": 0, **template(client)})
    refused = client.refused("DELETE global/instanceTemplates/template")
    assert refused[:2] == (400, "resourceInUseByAnotherResource")
    client.do("DELETE Z/instanceGroupManagers/group")
    client.do("DELETE global/instanceTemplates/template")


def test_an_abandoned_machine_keeps_running(client: Client) -> None:
    client.do("POST Z/instanceGroupManagers", {"name": "group", "targetSize": 2, **template(client)})
    one, other = sorted(client.names("Z/instances"))
    client.do("POST Z/instanceGroupManagers/group/abandonInstances", {"instances": [f"{ZONE}/instances/{one}"]})
    group = client.get("Z/instanceGroupManagers/group")
    assert (group["targetSize"], group["status"]["isStable"]) == (1, True)
    client.do("DELETE Z/instanceGroupManagers/group")
    assert client.names("Z/instances") == [one]
    assert client.status(one) == "RUNNING"
    assert other not in client.names("Z/disks")
    client.do(f"DELETE Z/instances/{one}")


def test_a_group_is_patched_with_and_without_its_machines(client: Client) -> None:
    client.do("POST Z/instanceGroupManagers", {"name": "group", "targetSize": 1, **template(client)})
    template(client, "second")
    [first] = client.get("Z/instances")["items"]
    client.do("POST global/healthChecks", {"name": "alive", "type": "TCP", "tcpHealthCheck": {"port": 22}})
    rules = {"autoHealingPolicies": [{"healthCheck": "global/healthChecks/alive", "initialDelaySec": 30}]}
    client.do("PATCH Z/instanceGroupManagers/group", rules)
    found = client.get("Z/instanceGroupManagers/group")
    assert found["autoHealingPolicies"][0]["initialDelaySec"] == 30
    assert found["instanceTemplate"].endswith("/template")
    assert [one["id"] for one in client.get("Z/instances")["items"]] == [first["id"]]
    versions = [{"instanceTemplate": "global/instanceTemplates/second"}]
    client.do("PATCH Z/instanceGroupManagers/group", {"versions": versions, "updatePolicy": {"type": "PROACTIVE"}})
    assert client.get("Z/instanceGroupManagers/group")["instanceTemplate"].endswith("/second")
    eventually(
        lambda: [one["status"] for one in client.get("Z/instances").get("items", [])] == ["RUNNING"], within_s=20
    )
    assert client.get("Z/instances")["items"][0]["id"] != first["id"]
    client.do("DELETE Z/instanceGroupManagers/group")


def test_bulk_inserts_create_numbered_names(client: Client) -> None:
    wanted = {"count": "3", "namePattern": "worker-##", "instanceProperties": properties()}
    client.create("worker-02")
    begun = client.begin("POST Z/instances/bulkInsert", wanted)
    assert "error" not in client.wait(begun)
    assert client.names("Z/instances") == ["worker-01", "worker-02", "worker-03", "worker-04"]
    each = client.get("Z/operations", filter=f"operationGroupId={begun['operationGroupId']}")["items"]
    assert sorted(one["operationType"] for one in each) == ["bulkInsert", "insert", "insert", "insert"]
    many = {**wanted, "count": "200"}
    status, _, message = client.refused("POST Z/instances/bulkInsert", many)
    assert (status, "namePattern" in message) == (400, True)
    twice = {"count": "1", "perInstanceProperties": {"worker-01": {}}, "instanceProperties": properties()}
    assert client.refused("POST Z/instances/bulkInsert", twice)[0] == 409
    for name in client.names("Z/instances"):
        client.do(f"DELETE Z/instances/{name}")
    assert client.names("Z/disks") == []


def test_bulk_inserts_need_all_machines_or_the_minimum_count(client: Client) -> None:
    client.server.cloud.set_zone("us-central1-a", capacity=2)
    wanted = {"count": "3", "namePattern": "w-#", "instanceProperties": properties()}
    assert client.fails("POST Z/instances/bulkInsert", wanted) == "ZONE_RESOURCE_POOL_EXHAUSTED"
    assert everywhere(client) == []
    assert client.names("Z/disks") == []
    client.do("POST Z/instances/bulkInsert", {**wanted, "minCount": "1"})
    assert len(everywhere(client)) == 2
    # The zone is full now, but the region is not.
    only = {"locations": {"zones/us-central1-b": {"preference": "DENY"}}}
    elsewhere = {**wanted, "count": "1", "namePattern": "r-#", "locationPolicy": only}
    client.do(f"POST {R}/instances/bulkInsert", elsewhere)
    assert zones_of(client) == {"a": 2, "c": 1}
    for scope, name in everywhere(client):
        client.do(f"DELETE {scope}/instances/{name}")
