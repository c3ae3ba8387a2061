"""Machines of a distributed run through Google's `bulkInsert`: all or none, and nothing is left of a part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.clouds.cloud import LABEL_RUN, LABEL_WORKSPACE, Boot, Offer, Requirements
from outlast.clouds.gcp.cloud import GcpCloud
from outlast.errors import CloudUnreachable, NoCapacity
from outlast_gcp_emulator.faults import Fault
from tests.integration.gcp.home import at_home
from tests.support.gang import lose_one_of_two, write_gang
from tests.support.gcp import ZONE, Rehearsal
from tests.support.waiting import eventually

LABELS = {LABEL_WORKSPACE: "ab12cd34", LABEL_RUN: "gang-7"}
BOOT = Boot(script="sleep 1000", metadata={"outlast-nodes": "3"}, peers=True)


@pytest.fixture
def offer(gcp: GcpCloud) -> Offer:
    return gcp.offers(Requirements(type="e2-standard-2", zones=(ZONE,)))[0]


@pytest.fixture(autouse=True)
def _clean(gcp: GcpCloud, rehearsal: Rehearsal) -> Iterator[None]:
    yield
    rehearsal.endpoint.faults.clear()
    rehearsal.local.set_zone(ZONE, capacity=None)
    for machine in gcp.machines():
        gcp.delete(machine.name)
    eventually(lambda: gcp.machines() == [], what="the deletion of all machines")


def names_of(case: str) -> list[str]:
    # Names that no other test has: the server remembers requests.
    return [f"gang-{case}-{rank}" for rank in range(3)]


def test_all_machines_come_from_one_request_and_a_repeated_one_adds_none(
    gcp: GcpCloud, rehearsal: Rehearsal, offer: Offer
) -> None:
    names = names_of("all")
    made = gcp.launch_all(offer, names, boot=BOOT, labels=LABELS)
    assert [(one.name, one.zone, one.type, one.spot) for one in made] == [
        (name, ZONE, "e2-standard-2", True) for name in names
    ]
    assert all(one.labels == LABELS for one in made)
    assert {gcp.metadata(name)["outlast-nodes"] for name in names} == {"3"}
    gcp.launch_all(offer, names, boot=BOOT, labels=LABELS)
    # One of them is lost and replaced.
    gcp.delete(names[1])
    gcp.launch_all(offer, names, boot=BOOT, labels=LABELS)
    assert sorted(one.name for one in gcp.machines(LABELS)) == names


def test_a_zone_with_room_for_a_part_keeps_none(gcp: GcpCloud, rehearsal: Rehearsal, offer: Offer) -> None:
    rehearsal.local.set_zone(ZONE, capacity=2)
    with pytest.raises(NoCapacity):
        gcp.launch_all(offer, names_of("part"), boot=BOOT, labels=LABELS)
    assert gcp.machines(LABELS) == []


@pytest.mark.parametrize("step", ["*/instances/bulkInsert", "*/operations/*/wait"])
def test_a_lost_answer_leads_to_no_second_set_of_machines(
    gcp: GcpCloud, rehearsal: Rehearsal, offer: Offer, step: str
) -> None:
    names = names_of("answer" if "bulk" in step else "wait")
    rehearsal.endpoint.faults.add(Fault(path=step, method="POST", after_work=True, times=20))
    with pytest.raises(CloudUnreachable):
        gcp.launch_all(offer, names, boot=BOOT, labels=LABELS)
    rehearsal.endpoint.faults.clear()
    gcp.launch_all(offer, names, boot=BOOT, labels=LABELS)
    assert sorted(one.name for one in gcp.machines(LABELS)) == names


@pytest.mark.full
def test_a_distributed_run_loses_one_machine_and_replaces_only_this_one(
    gcp: GcpCloud, rehearsal: Rehearsal, tmp_path: Path
) -> None:
    with at_home(tmp_path, rehearsal, gcp) as home:
        write_gang(home, "gcp", 'type = "e2-standard-2"\nzones = ["us-central1-a"]')
        lose_one_of_two(home)
        assert gcp.machines() == []
