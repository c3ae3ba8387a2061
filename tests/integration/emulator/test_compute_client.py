"""Google's Python client for Compute Engine."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.emulator.compute import ComputeServer

PROJECT, ZONE = "proj1", "us-central1-a"


class Clients:
    """The clients by their names: `clients.Instances` is an InstancesClient for our endpoint."""

    def __init__(self, url: str) -> None:
        self.v1 = pytest.importorskip("google.cloud.compute_v1", reason="google-cloud-compute is not installed")
        self._url = url

    def __getattr__(self, name: str) -> Any:
        from google.auth.credentials import AnonymousCredentials

        kind = getattr(self.v1, f"{name}Client")
        return kind(credentials=AnonymousCredentials(), client_options={"api_endpoint": self._url})


@pytest.fixture
def clients(server: ComputeServer) -> Clients:
    return Clients(server.endpoint.url)


def wait(clients: Clients, operation: Any) -> Any:
    """Wait for an operation by its name, because the client's futures ignore the endpoint."""
    if operation.zone:
        where = {"project": PROJECT, "zone": operation.zone.rpartition("/")[2], "operation": operation.name}
        done = clients.ZoneOperations.wait(**where)
    else:
        done = clients.GlobalOperations.wait(project=PROJECT, operation=operation.name)
    assert done.status == clients.v1.Operation.Status.DONE
    return done


def instance(clients: Clients, name: str) -> Any:
    v1 = clients.v1
    disk = v1.AttachedDisk(
        boot=True,
        auto_delete=True,
        initialize_params=v1.AttachedDiskInitializeParams(
            source_image="projects/debian-cloud/global/images/family/debian-12", disk_size_gb=20
        ),
    )
    return v1.Instance(
        name=name,
        machine_type=f"zones/{ZONE}/machineTypes/n1-standard-4",
        disks=[disk],
        labels={"made-by": "client"},
        network_interfaces=[v1.NetworkInterface(network="global/networks/default")],
        metadata=v1.Metadata(items=[v1.Items(key="startup-script", value="echo started")]),
        scheduling=v1.Scheduling(provisioning_model="SPOT", instance_termination_action="STOP"),
    )


def test_the_official_client_manages_a_machine(clients: Clients) -> None:
    operation = clients.Instances.insert_unary(project=PROJECT, zone=ZONE, instance_resource=instance(clients, "py1"))
    assert not wait(clients, operation).error.errors
    found = clients.Instances.get(project=PROJECT, zone=ZONE, instance="py1")
    assert (found.status, found.labels["made-by"], found.disks[0].disk_size_gb) == ("RUNNING", "client", 20)
    assert found.scheduling.provisioning_model == "SPOT"
    found.metadata.items.append(clients.v1.Items(key="k", value="v"))
    one = {"project": PROJECT, "zone": ZONE, "instance": "py1"}
    wait(clients, clients.Instances.set_metadata_unary(**one, metadata_resource=found.metadata))
    wait(clients, clients.Instances.stop_unary(**one))
    assert clients.Instances.get(**one).status == "TERMINATED"
    kind = clients.v1.InstancesSetMachineTypeRequest(machine_type=f"zones/{ZONE}/machineTypes/n2-standard-8")
    wait(clients, clients.Instances.set_machine_type_unary(**one, instances_set_machine_type_request_resource=kind))
    image = clients.v1.Image(name="img", family="fam", source_disk=f"zones/{ZONE}/disks/py1")
    wait(clients, clients.Images.insert_unary(project=PROJECT, image_resource=image))
    assert clients.Images.get_from_family(project=PROJECT, family="fam").status == "READY"
    wait(clients, clients.Instances.start_unary(**one))
    changed = clients.Instances.get(**one)
    assert changed.machine_type.endswith("n2-standard-8")
    assert [item.key for item in changed.metadata.items] == ["startup-script", "k"]
    assert clients.Instances.get_serial_port_output(**one).contents
    wait(clients, clients.Instances.delete_unary(**one))
    assert "py1" not in [one.name for one in clients.Instances.list(project=PROJECT, zone=ZONE)]


def test_the_official_client_pages_and_filters(clients: Clients) -> None:
    for number in range(5):
        disk = clients.v1.Disk(name=f"disk-{number}", size_gb=10 + number)
        wait(clients, clients.Disks.insert_unary(project=PROJECT, zone=ZONE, disk_resource=disk))
    request = clients.v1.ListDisksRequest(project=PROJECT, zone=ZONE, max_results=2, filter="name eq disk-.*")
    assert [disk.name for disk in clients.Disks.list(request=request)] == [f"disk-{number}" for number in range(5)]
    request = clients.v1.AggregatedListDisksRequest(
        project=PROJECT, filter="name eq disk-.* sizeGb > 12", max_results=1
    )
    every = clients.Disks.aggregated_list(request=request)
    assert [disk.name for _, scoped in every for disk in scoped.disks] == ["disk-3", "disk-4"]


def test_the_official_client_gets_typed_errors(clients: Clients, server: ComputeServer) -> None:
    from google.api_core.exceptions import BadRequest, Conflict, NotFound

    with pytest.raises(NotFound):
        clients.Instances.get(project=PROJECT, zone=ZONE, instance="nosuch")
    resource = instance(clients, "twice")
    fields = {"project": PROJECT, "zone": ZONE, "instance_resource": resource}
    request = clients.v1.InsertInstanceRequest(**fields, request_id="545d5bb6-de44-4d6e-917b-75c880b73b64")
    first = clients.Instances.insert_unary(request=request)
    assert clients.Instances.insert_unary(request=request).name == first.name
    wait(clients, first)
    with pytest.raises(Conflict):
        clients.Instances.insert_unary(**fields)
    resource.name = "Wrong"
    with pytest.raises(BadRequest, match=r"resource\.name"):
        clients.Instances.insert_unary(**fields)
    server.cloud.set_zone(ZONE, capacity=0)
    resource.name = "crowded"
    done = wait(clients, clients.Instances.insert_unary(**fields))
    assert [error.code for error in done.error.errors] == ["ZONE_RESOURCE_POOL_EXHAUSTED"]
    server.cloud.set_zone(ZONE, capacity=None)
