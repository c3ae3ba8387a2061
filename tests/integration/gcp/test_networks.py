"""Networks of machines on Google Cloud: `setup --network`, a launch in it, and policies of the organisation."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import replace

import pytest

from outlast.clouds.cloud import Boot, Requirements
from outlast.clouds.gcp.cloud import GcpCloud
from outlast.clouds.gcp.network import shared_network
from outlast.clouds.gcp.setup_network import network_steps
from outlast.errors import BadRequest, PolicyDenied
from outlast.spec.network import NetworkSpec, network_of
from outlast_gcp_emulator.conditions import EXTERNAL_ADDRESS, REAL
from tests.support.gcp import ZONE, Rehearsal

PRIVATE = NetworkSpec(
    network="outlast",
    subnetworks=("outlast",),
    external_address=False,
    tags=("ml",),
    labels={"team": "vision"},
)


def test_a_machine_starts_in_the_private_network_without_an_address(
    gcp: GcpCloud, rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        for step in network_steps(gcp.client, "us-central1"):
            step.apply()
    # The organisation forbids external addresses, and this machine has none.
    rehearsal.endpoint.surroundings.now = replace(REAL, constraints=frozenset({EXTERNAL_ADDRESS}))
    offer = gcp.offers(Requirements(type="e2-small", zones=(ZONE,)))[0]
    name = f"n-{secrets.token_hex(4)}"
    gcp.launch(offer, name, boot=Boot(network=PRIVATE), labels={"kind": "test"})
    doc, _ = gcp.instances.find(name)
    full = gcp.client.compute("GET", f"zones/{ZONE}/instances/{name}").doc
    [interface] = full["networkInterfaces"]
    assert interface["network"].endswith("/networks/outlast")
    assert interface["subnetwork"].endswith("/regions/us-central1/subnetworks/outlast")
    assert "accessConfigs" not in interface
    assert set(full["tags"]["items"]) == {"outlast-ssh", "ml"}
    assert doc["labels"]["team"] == "vision"
    gcp.delete(name)
    with pytest.raises(PolicyDenied) as raised:
        gcp.launch(offer, f"n-{secrets.token_hex(4)}", boot=Boot(network=NetworkSpec()), labels={})
    assert "external_address = false" in raised.value.hint
    # Machines that no run owns get the settings of the environment.
    monkeypatch.setenv("OUTLAST_NETWORKS", json.dumps({"gcp": {"network": "no-such-network"}}))
    rehearsal.endpoint.surroundings.now = REAL
    with pytest.raises(BadRequest) as missing:
        gcp.launch(offer, f"n-{secrets.token_hex(4)}", boot=Boot(), labels={})
    assert "no-such-network" in missing.value.message
    assert "setup gcp --network" in missing.value.hint


@pytest.mark.parametrize("settings", [{"network": "outlast"}, {"subnetworks": ["outlast"]}], ids=["name", "subnetwork"])
def test_volumes_and_databases_are_in_the_network_of_the_machines(
    gcp: GcpCloud, monkeypatch: pytest.MonkeyPatch, settings: dict[str, object]
) -> None:
    for step in network_steps(gcp.client, "us-central1"):
        step.apply()
    monkeypatch.setenv("OUTLAST_NETWORKS", json.dumps({"gcp": settings}))
    gcp.volumes.create("demos", size_gb=1100.0, zone=ZONE)
    doc = gcp.client.call("file", "GET", f"v1/projects/{gcp.client.project}/locations/{ZONE}/instances/demos").doc
    assert [one["network"] for one in doc["networks"]] == ["outlast"]
    gcp.volumes.delete("demos")
    full = f"projects/{gcp.client.project}/global/networks/outlast"
    assert shared_network(gcp.client, network_of("gcp", os.environ), "us-central1") == full
    # The network of a host project.
    shared = {"gcp": {"network": "projects/host/global/networks/research"}}
    monkeypatch.setenv("OUTLAST_NETWORKS", json.dumps(shared))
    gcp.volumes.create("shared", size_gb=1100.0, zone=ZONE)
    doc = gcp.client.call("file", "GET", f"v1/projects/{gcp.client.project}/locations/{ZONE}/instances/shared").doc
    [network] = doc["networks"]
    assert network["network"] == "projects/host/global/networks/research"
    assert network["connectMode"] == "PRIVATE_SERVICE_ACCESS"
    gcp.volumes.delete("shared")
