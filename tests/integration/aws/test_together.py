"""Machines of a distributed run through EC2's fleets: all or none, and nothing is left of a part."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.clouds.aws import machines
from outlast.clouds.aws.client import read_tags
from outlast.clouds.aws.cloud import AwsCloud
from outlast.clouds.aws.fleets import FleetsOfMany
from outlast.clouds.cloud import LABEL_ATTEMPT, LABEL_RUN, LABEL_WORKSPACE, Boot, Machine, Requirements
from outlast.errors import CloudUnreachable, NoCapacity
from tests.integration.aws.home import at_home, left
from tests.integration.aws.test_faults import nothing_is_left
from tests.support.aws import Bridge
from tests.support.gang import lose_one_of_two, write_gang
from tests.support.waiting import eventually


class Gang:
    """The machines of one distributed run."""

    def __init__(self, cloud: AwsCloud) -> None:
        self.cloud = cloud
        run = f"g-{secrets.token_hex(4)}"
        self.names = [run, f"{run}-n1", f"{run}-n2"]
        self.labels = {LABEL_WORKSPACE: secrets.token_hex(4), LABEL_RUN: run, LABEL_ATTEMPT: "1"}

    def launch(self, *, spot: bool = True) -> list[Machine]:
        offer = self.cloud.offers(Requirements(type="c6i.large", spot=spot))[0]
        boot = Boot(script="sleep 1000\n", metadata={"outlast-nodes": "3"}, peers=True)
        return list(self.cloud.launch_all(offer, self.names, boot=boot, labels=self.labels))

    def named(self) -> list[str]:
        return sorted(one.name for one in self.cloud.machines(self.labels))


@pytest.fixture
def gang(cloud: AwsCloud, bridge: Bridge) -> Iterator[Gang]:
    own = Gang(cloud)
    yield own
    bridge.rules()
    bridge.conditions()
    for name in own.names:
        cloud.delete(name)
    nothing_is_left(cloud)


@pytest.mark.parametrize("spot", [True, False])
def test_all_machines_come_from_one_fleet_and_a_repeated_launch_adds_none(
    gang: Gang, cloud: AwsCloud, bridge: Bridge, spot: bool
) -> None:
    made = gang.launch(spot=spot)
    # Refused calls included: the fleet does not know its new launch template at first.
    before = bridge.send("calls", {}).count("CreateFleet")
    assert [(one.name, one.type, one.spot) for one in made] == [(name, "c6i.large", spot) for name in gang.names]
    assert len({one.zone for one in made}) == 1
    gang.launch(spot=spot)
    assert bridge.send("calls", {}).count("CreateFleet") == before
    assert gang.named() == gang.names
    docs = [cloud.home.instances.find(name) for name in gang.names]
    assert len({read_tags(doc["Tags"])[machines.TAG_FLEET] for doc in docs}) == 1
    assert [read_tags(doc["Tags"])[machines.TAG_MACHINE] for doc in docs] == gang.names
    # One of them is lost and replaced; the others stay.
    cloud.delete(gang.names[0])
    gang.launch(spot=spot)
    assert gang.named() == gang.names
    after = [cloud.home.instances.find(name)["InstanceId"] for name in gang.names]
    assert after[1:] == [doc["InstanceId"] for doc in docs[1:]]
    assert after[0] != docs[0]["InstanceId"]


def test_room_for_a_part_launches_none(gang: Gang, bridge: Bridge) -> None:
    bridge.conditions(room=2)
    with pytest.raises(NoCapacity):
        gang.launch()
    assert gang.named() == []


def test_a_lost_answer_leads_to_no_second_set_of_machines(gang: Gang, bridge: Bridge) -> None:
    bridge.rules({"action": "CreateFleet", "code": "InternalError", "status": 500, "times": 1, "after": True})
    with pytest.raises(CloudUnreachable):
        gang.launch()
    gang.launch()
    assert gang.named() == gang.names


class Killed(BaseException):
    """The process dies here."""


@pytest.mark.full
@pytest.mark.parametrize("named", [0, 1, 2])
def test_a_launch_that_died_before_it_named_all_machines_is_continued(gang: Gang, named: int) -> None:
    launch_and_die(gang, named)
    again(gang).launch()
    assert gang.named() == gang.names


def test_a_launch_that_died_and_is_given_up_leaves_nothing(gang: Gang) -> None:
    launch_and_die(gang, 1)
    # Lists lag behind; the reaper deletes what they show later.
    eventually(lambda: len(gang.cloud.home.instances.docs(gang.labels)) == 3, what="a list with all instances")
    # The fixture deletes the names, as the release of the attempt does, and checks that no instance is left.


def again(gang: Gang) -> Gang:
    """Return the same machines for another process."""
    other = Gang(AwsCloud())
    other.names, other.labels = gang.names, gang.labels
    return other


def launch_and_die(gang: Gang, number: int) -> None:
    """Launch, and die when so many machines are named."""
    done: list[str] = []
    name_one = FleetsOfMany._named

    def dies(self: FleetsOfMany, doc: object, name: str) -> object:
        if len(done) == number:
            raise Killed
        done.append(name)
        return name_one(self, doc, name)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FleetsOfMany, "_named", dies)
        with pytest.raises(Killed):
            gang.launch()


@pytest.mark.full
def test_a_distributed_run_loses_one_machine_and_replaces_only_this_one(
    cloud: AwsCloud, bridge: Bridge, tmp_path: Path
) -> None:
    bridge.grace(6.0)
    with at_home(tmp_path, bridge, cloud) as home:
        write_gang(home, "aws", 'type = "c6i.large"')
        lose_one_of_two(home)
        assert cloud.machines() == []
        assert left(cloud.client) == {}
