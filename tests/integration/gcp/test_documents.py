"""Pure functions: labels, request bodies, prices from the catalogue, offers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.clouds.cloud import LABEL_RUN, Boot, Offer, Range, Requirements
from outlast.clouds.gcp import labels, machines, skus
from outlast.clouds.gcp.cloud import GcpCloud
from outlast.code.wheel import wheel
from outlast.errors import BadRequest
from outlast.kit.boot_script import boot_script
from outlast_gcp_emulator.http_types import BytesBody, Caller, HttpResponse, parse_request
from tests.integration.emulator.discovery import Watching

SPOT = Offer(
    cloud="gcp", region="r", zone="r-a", type="n1-standard-4", cpus=4, memory_gb=15, spot=True, price_usd_per_hour=0.1
)


@given(st.text(max_size=5))
def test_labels_survive_encoding(text: str) -> None:
    encoded = labels.encode(text)
    assert labels.decode(encoded) == text
    assert set(encoded) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_")


def test_foreign_labels_stay_unchanged_and_long_ones_are_refused() -> None:
    assert labels.decode("my_team") == "my_team"
    with pytest.raises(BadRequest, match="too long"):
        labels.encode("x" * 64)


def test_machines_of_runs_are_deleted_by_google_and_manual_ones_are_stopped() -> None:
    boot = Boot(life_max_s=3600.0)
    run, machine_record = (machines.scheduling(SPOT, boot, run=run) for run in (True, False))
    assert (run["instanceTerminationAction"], machine_record["instanceTerminationAction"]) == ("DELETE", "STOP")
    assert run["maxRunDuration"] == {"seconds": "3600"}
    assert run["automaticRestart"] is False


def test_gpus_are_attached_to_n1_and_scopes_are_minimal() -> None:
    offer = Offer(**{**{f: getattr(SPOT, f) for f in SPOT.__struct_fields__}, "gpu": "T4", "gpus": 2})
    whole = {"image": "i", "account": "me@p", "user": "ada"}
    body = machines.insert_body(offer, "box", boot=Boot(), labels={LABEL_RUN: "a-1"}, **whole)
    assert body["guestAccelerators"][0]["acceleratorCount"] == 2
    assert body["scheduling"]["onHostMaintenance"] == "TERMINATE"
    assert not any(scope.endswith("cloud-platform") for scope in body["serviceAccounts"][0]["scopes"])
    secret = Boot(metadata={"outlast-secrets": "name"})
    body = machines.insert_body(offer, "box", boot=secret, labels={}, **whole)
    assert [scope.rpartition("/")[2] for scope in body["serviceAccounts"][0]["scopes"]] == ["cloud-platform"]


def test_a_machine_of_a_reservation_names_it_also_in_a_bulk_request() -> None:
    offer = Offer(**{**{f: getattr(SPOT, f) for f in SPOT.__struct_fields__}, "spot": False})
    whole = {"image": "i", "account": "me@p", "user": "ada"}
    body = machines.insert_body(offer, "box", boot=Boot(reservation="week"), labels={LABEL_RUN: "a-1"}, **whole)
    wanted = {
        "consumeReservationType": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": ["week"],
    }
    assert body["reservationAffinity"] == wanted
    assert machines.bulk_body(body, ["a", "b"])["instanceProperties"]["reservationAffinity"] == wanted


def sku(description: str, nanos: int, usage: str = "OnDemand") -> dict[str, object]:
    price = {"pricingExpression": {"tieredRates": [{"unitPrice": {"units": "0", "nanos": nanos}}]}}
    category = {"resourceFamily": "Compute", "usageType": usage}
    return {"description": description, "category": category, "serviceRegions": ["us-east1"], "pricingInfo": [price]}


def test_prices_are_read_out_of_the_catalogue() -> None:
    found = skus.read_skus(
        [
            sku("N2 Instance Core running in Americas", 31611000),
            sku("Spot Preemptible N2D AMD Instance Ram running in Americas", 900000, "Preemptible"),
            sku("Nvidia Tesla T4 GPU attached to Spot Preemptible VMs running in Americas", 110000000, "Preemptible"),
            sku("Commitment v1: N2 Cpu in Americas for 1 Year", 1, "Commit1Yr"),
            sku("Licensing Fee for something else", 1),
        ]
    )
    assert found == {
        "us-east1/n2/cpu/on-demand": 0.031611,
        "us-east1/n2d/memory/spot": 0.0009,
        "us-east1/nvidia-tesla-t4/gpu/spot": 0.11,
    }


def test_a_size_without_a_type_becomes_a_custom_type(gcp: GcpCloud) -> None:
    six = Requirements(cpus=Range(low=6, high=6), memory_gb=Range(low=20, high=20), zones=("us-central1-a",))
    assert gcp.offers(six)[0].type in ("e2-custom-6-20480", "n2d-custom-6-20480")


@pytest.mark.full
def test_gpus_are_found_attached_and_built_in(gcp: GcpCloud) -> None:
    attached = gcp.offers(Requirements(gpu="T4", gpus=1, zones=("us-central1-a",)))
    assert {(offer.gpu, offer.gpus) for offer in attached} == {("T4", 1)}
    assert all(offer.type.startswith("n1-") for offer in attached)
    assert gcp.offers(Requirements(gpu="A100", gpus=8, zones=("us-central1-a",)))[0].type == "a2-highgpu-8g"
    with pytest.raises(BadRequest, match="GPU"):
        gcp.offers(Requirements(gpu="B1000"))


@pytest.mark.full
def test_machines_that_google_sells_as_spot_only_are_not_offered_on_demand(gcp: GcpCloud) -> None:
    there = {"gpu": "H100", "gpus": 1, "zones": ("us-central1-a",)}
    assert {offer.type for offer in gcp.offers(Requirements(**there))} == {"a3-highgpu-1g"}
    assert gcp.offers(Requirements(**there, spot=False)) == []


@pytest.mark.full
def test_a_gpu_that_the_default_image_has_no_driver_for_needs_another_image(gcp: GcpCloud) -> None:
    there = {"gpu": "V100", "gpus": 1, "zones": ("us-central1-a",)}
    for needs in (Requirements(**there), Requirements(**there, type="n1-standard-8")):
        with pytest.raises(BadRequest, match="default image does not support the GPU `V100`"):
            gcp.offers(needs)
    assert gcp.offers(Requirements(**there, image="debian-12"))[0].gpu == "V100"


def test_the_same_outlast_makes_the_same_wheel_and_the_script_is_bash() -> None:
    import subprocess

    assert wheel() == wheel()
    assert subprocess.run(["bash", "-n", "-c", boot_script("agent", "outlast.agent")], check=False).returncode == 0


@pytest.mark.parametrize(
    ("method", "target", "body", "error"),
    [
        ("GET", "projects/p/zones", {}, ""),
        ("GET", "projects/p/zones?fields=items(name,status),nextPageToken", {}, ""),
        ("GET", "projects/p/zoos", {}, "is in no API"),
        ("GET", "projects/p/zones?colour=red", {}, "has no parameter colour"),
        ("GET", "projects/p/zones?maxResults=many", {}, "maxResults is not a number: many"),
        ("GET", "projects/p/zones?fields=items(name,colour)", {}, "fields/items has no field colour"),
        ("GET", "projects/p/aggregated/instances?fields=items/*/instances/disks/colour", {}, "has no field colour"),
        ("POST", "projects/p/zones/z/instances", {"colour": "red"}, "has no field colour"),
        ("POST", "projects/p/zones/z/instances", {"scheduling": {"provisioningModel": "CHEAP"}}, "is none of"),
        ("POST", "projects/p/zones/z/instances", {"disks": [{"diskSizeGb": 10}]}, "is not a int64"),
    ],
)
def test_a_request_that_google_does_not_describe_is_reported(
    method: str, target: str, body: dict[str, object], error: str
) -> None:
    import json

    pytest.importorskip("googleapiclient", reason="google-api-python-client is not installed")
    watching = Watching(ours=True)
    sent = BytesBody(json.dumps(body).encode() if body else b"")
    request = parse_request(method, f"/compute/v1/{target}", {}, sent, Caller())
    if body:
        request.json()
    watching(request, HttpResponse(status=404))
    found = watching.taken()
    assert [error in one for one in found] == ([True] if error else [])
