"""Interactive use of Google Cloud: images, resizing, keys, ssh."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.clouds.cloud import Boot, Offer, Requirements
from outlast.clouds.gcp.cloud import GcpCloud
from outlast.clouds.gcp.images import GcpImages
from outlast.clouds.local.ssh import find_sshd
from outlast.errors import BadRequest, CloudUnreachable, NotFound
from outlast_gcp_emulator.environment import PROJECT
from outlast_gcp_emulator.faults import Fault
from tests.support.gcp import ZONE, Rehearsal
from tests.support.home import Home
from tests.support.waiting import eventually

LABELS = {"kind": "workshop"}
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFakeFakeFakeFakeFakeFakeFakeFakeFakeFakeFake ada@home"


@pytest.fixture
def offer(gcp: GcpCloud) -> Iterator[Offer]:
    yield gcp.offers(Requirements(type="e2-standard-2", zones=(ZONE,), spot=False))[0]
    for machine in gcp.machines(LABELS):
        gcp.delete(machine.name)
    for image in gcp.images():
        if image.name.startswith("env-"):
            gcp.delete_image(image.name)


def printed(gcp: GcpCloud, name: str, text: str) -> None:
    eventually(lambda: text in gcp.serial(name), within_s=30, what=f"{name} printing {text}")


def test_an_image_of_a_disk_boots_another_machine_and_is_never_created_twice(
    gcp: GcpCloud, rehearsal: Rehearsal, offer: Offer
) -> None:
    gcp.launch(offer, "origin", boot=Boot(script="echo once > ~/kept; sync; echo written"), labels=LABELS)
    printed(gcp, "origin", "written")
    with pytest.raises(BadRequest, match="running"):
        gcp.snapshot("origin", "env-1", family="env")
    gcp.stop("origin")
    rehearsal.endpoint.faults.add(Fault(path="*/global/images", method="POST", after_work=True))
    with pytest.raises(CloudUnreachable):
        gcp.snapshot("origin", "env-1", family="env", labels={"by": "Ada"}, note="first")
    made = gcp.snapshot("origin", "env-1", family="env", labels={"by": "Ada"}, note="first")
    assert (made.name, made.family, made.labels, made.description) == ("env-1", "env", {"by": "Ada"}, "first")
    assert [image.name for image in gcp.images() if image.family == "env"] == ["env-1"]
    gcp.launch(offer, "copy", boot=Boot(script="echo found $(cat ~/kept)", image="env"), labels=LABELS)
    printed(gcp, "copy", "found once")
    gcp.stop("copy")
    with pytest.raises(BadRequest, match="another disk"):
        gcp.snapshot("copy", "env-1")
    gcp.retire_image("env-1")
    gcp.retire_image("env-1")
    assert gcp.image("env-1").retired
    with pytest.raises(NotFound):
        gcp.image("env")
    gcp.retire_image("env-1", retired=False)
    assert gcp.image("env").name == "env-1"
    path = f"projects/{gcp.client.project}/global/images"
    assert gcp.image(f"{path}/family/env").name == gcp.image(f"{path}/env-1").name == "env-1"
    assert gcp.image(f"https://www.googleapis.com/compute/v1/{path}/family/env").name == "env-1"
    with pytest.raises(NotFound):
        gcp.image(f"{path}/env")
    for _ in range(2):
        gcp.share_image("env-1", "ada@example.com")
    policy = gcp.client.compute("GET", "global/images/env-1/getIamPolicy").doc
    assert [one["members"] for one in policy["bindings"]] == [["user:ada@example.com"]]
    gcp.delete_image("env-1")
    gcp.delete_image("env-1")
    with pytest.raises(NotFound):
        GcpImages(gcp.client).image("env-1")


@pytest.mark.full
def test_a_stopped_machine_takes_another_type_and_a_disk_only_grows(gcp: GcpCloud, offer: Offer) -> None:
    gcp.launch(offer, "box", boot=Boot(disk_gb=20), labels=LABELS)
    with pytest.raises(BadRequest, match="not stopped"):
        gcp.resize("box", type="e2-standard-8")
    with pytest.raises(BadRequest, match="cannot shrink"):
        gcp.resize("box", disk_gb=10)
    gcp.stop("box")
    for _ in range(2):
        gcp.resize("box", type="e2-standard-8", disk_gb=30)
    machine = gcp.machine("box")
    assert (machine.type, machine.disk_gb) == ("e2-standard-8", 30.0)
    assert machine.price_usd_per_hour > offer.price_usd_per_hour
    with pytest.raises(BadRequest, match="no-such-type"):
        gcp.resize("box", type="no-such-type")


@pytest.mark.full
def test_a_machine_that_was_started_again_keeps_its_cost(gcp: GcpCloud, offer: Offer) -> None:
    gcp.launch(offer, "box", boot=Boot(), labels=LABELS)
    gcp.stop("box")
    before = gcp.machine("box").ran_s
    gcp.start("box")
    machine = gcp.machine("box")
    assert machine.started_at > machine.created_at
    assert machine.ran_before_s == round(before)
    assert machine.labels == LABELS


def test_an_admitted_key_is_added_and_the_firewall_opens_for_ssh_only(gcp: GcpCloud, offer: Offer) -> None:
    gcp.launch(offer, "box", boot=Boot(ssh_keys=(KEY,)), labels=LABELS)
    other = KEY.replace("ada", "bob")
    for _ in range(2):
        gcp.admit("box", other)
    keys = gcp.metadata("box")["ssh-keys"].splitlines()
    assert [line.partition(":")[2] for line in keys] == [KEY, other]
    with pytest.raises(BadRequest, match="invalid public ssh key"):
        gcp.admit("box", "nonsense")
    access = gcp.access("box")
    assert access.host == gcp.machine("box").address
    assert keys[0].startswith(f"{access.user}:")
    rule = gcp.client.compute("GET", "global/firewalls/outlast-ssh").doc
    assert rule["sourceRanges"] == ["35.235.240.0/20"]
    assert rule["targetTags"] == ["outlast-ssh"]
    assert rule["allowed"] == [{"IPProtocol": "tcp", "ports": ["22"]}]
    gcp.stop("box")
    with pytest.raises(BadRequest, match="stopped"):
        gcp.access("box")


@pytest.mark.full
@pytest.mark.skipif(not find_sshd(), reason="sshd is not installed: apt install openssh-server")
def test_commands_create_enter_copy_to_and_delete_a_machine(
    gcp: GcpCloud, rehearsal: Rehearsal, tmp_path: Path
) -> None:
    home = Home(tmp_path)
    bucket = f"box-{secrets.token_hex(4)}"
    gcp.client.call("storage", "POST", "b", query={"project": PROJECT}, body={"name": bucket})
    home.environment |= {**rehearsal.variables, "OUTLAST_WORKSPACE": f"gs://{bucket}/ws"}
    home.write("note.txt", "some text\n")
    made = home.outlast("machine", "create", "desk", "--cloud", "gcp", "--type", "e2-small", timeout_s=120)
    assert made.returncode == 0, made.stderr
    assert "desk runs in us-central1-a: e2-small, on demand" in made.stdout
    assert "prices: built-in prices of 2026-08-21" in made.stderr
    copied = home.outlast("machine", "cp", "note.txt", "desk:note.txt")
    assert copied.returncode == 0, copied.stderr
    answer = home.outlast("machine", "ssh", "desk", "--", "cat note.txt; echo $OUTLAST_MACHINE")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("some text\n")
    assert home.outlast("machine", "delete", "desk", "--yes").returncode == 0
    assert gcp.machines() == []
