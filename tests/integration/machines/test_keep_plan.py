"""The decisions of `machine keep`: rows of view → next step, without a cloud, a clock or ssh."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from outlast.clouds.cloud import Machine, Offer
from outlast.machines.keepalive.plan import plan
from outlast.machines.keepalive.world import (
    Arrive,
    Copy,
    Count,
    End,
    KeepaliveOptions,
    KeepaliveView,
    KeptJob,
    Kill,
    Leave,
    Memory,
    Relaunch,
    Relocation,
    Rest,
    StartJob,
    StartMachine,
    Step,
    StopUnresponsive,
)
from outlast.records.machines import MachineRecord

NOW = 1000.0
ALIVE = KeptJob(number=2, went=True, alive=True)


def machine(status: str = "running", *, zone: str = "here-a", why: str = "", image: str = "base") -> Machine:
    facts = {"name": "box", "cloud": "local", "zone": zone, "type": "small", "spot": True, "status": status}
    facts |= {"labels": {}, "created_at": 0.0, "price_usd_per_hour": 1.0, "why": why, "image": image}
    return msgspec.convert(facts, Machine)


def offer(zone: str, price: float = 1.0) -> Offer:
    return Offer(
        cloud="local",
        region=zone[:-2],
        zone=zone,
        type="small",
        cpus=1,
        memory_gb=4,
        spot=True,
        price_usd_per_hour=price,
    )


OFFERS = (offer("here-a"), offer("here-b", 2.0), offer("there-a", 3.0))
MOVE = Relocation(image="box-m-1", stage="copying", zone="here-a", type="small", spot=True, disk_gb=10.0)


def sight(job: KeptJob | None = ALIVE, status: str = "running", **changes: Any) -> KeepaliveView:
    options = KeepaliveOptions(command="train", **changes.pop("options", {}))
    memory = Memory(id="aabbccddeeff", options=options, **changes.pop("memory", {}))
    machine_record = MachineRecord(
        name="box", id="i", cloud="local", phase="ready", **changes.pop("machine_record", {})
    )
    seen = KeepaliveView(now=NOW, memory=memory, machine=machine(status), machine_record=machine_record, job=job)
    return msgspec.structs.replace(seen, **changes)


def ended(**facts: Any) -> KeptJob:
    return KeptJob(number=2, went=True, **facts)


def test_a_command_that_runs_is_left_alone() -> None:
    step = plan(sight())
    assert isinstance(step, Rest)
    assert step.steady


@pytest.mark.parametrize(
    ("job", "number"),
    [
        (KeptJob(), 1),
        (ended(this_boot=False), 3),
        (ended(exit_code=143, this_boot=False), 3),
        (ended(exit_code=0, noticed=True), 3),
        (ended(exit_code=1, noticed=True, this_boot=False), 3),
        (KeptJob(number=2, went=False, claimed_s=16.0), 3),
        (KeptJob(number=2, went=False, this_boot=False), 3),
    ],
    ids=["never", "power cut", "terminated", "zero at the notice", "noticed", "claimed long ago", "claimed before"],
)
def test_an_unfinished_command_is_started_again(job: KeptJob, number: int) -> None:
    step = plan(sight(job))
    assert isinstance(step, StartJob)
    assert step.number == number


def test_a_start_that_is_under_way_is_waited_for() -> None:
    assert isinstance(plan(sight(KeptJob(number=2, went=False, claimed_s=3.0))), Rest)


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (ended(exit_code=7), "it ended with 7"),
        (ended(exit_code=7, last_line="no data"), "it ended with 7: no data"),
        (ended(exit_code=143), "it ended with 143"),
        (ended(), "it was killed"),
        (ended(halted=True), "it made no progress"),
        (ended(halted=True, exit_code=0), "it made no progress"),
    ],
)
def test_a_failure_is_counted_and_retried_until_the_limit(job: KeptJob, why: str) -> None:
    assert plan(sight(job)) == Count(number=2, why=why)
    counted = plan(sight(job, memory={"counted": 2, "crashes": 1}))
    assert isinstance(counted, StartJob)
    assert counted.number == 3
    enough = plan(sight(job, memory={"counted": 2, "crashes": 3}))
    assert isinstance(enough, End)
    assert (enough.ending, enough.exit_code, enough.then) == ("failed", job.exit_code, "stop")


@pytest.mark.parametrize("then", ["leave", "stop", "delete"])
def test_a_finished_command_ends_with_the_requested_action(then: str) -> None:
    step = plan(sight(ended(exit_code=0, this_boot=False), options={"then": then}))
    assert step == End(ending="finished", why="the command ended with 0", exit_code=0, then=then)  # type: ignore[arg-type]


@pytest.mark.parametrize(("then", "really"), [("delete", "stop"), ("stop", "stop"), ("leave", "leave")])
def test_a_failed_command_never_deletes_the_disk(then: str, really: str) -> None:
    step = plan(sight(ended(exit_code=1), options={"then": then}, memory={"counted": 2, "crashes": 3}))
    assert isinstance(step, End)
    assert step.then == really


def test_a_command_without_progress_is_killed() -> None:
    busy, idle = ended(alive=True, idle_s=59.0), ended(alive=True, idle_s=61.0)
    assert isinstance(plan(sight(busy, options={"halt_after_s": 60.0})), Rest)
    assert isinstance(plan(sight(idle)), Rest)
    assert isinstance(plan(sight(idle, options={"halt_after_s": 60.0})), Kill)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, StartMachine),
        ({"memory": {"refusals": 1, "refused_until": NOW + 5}}, Rest),
        ({"memory": {"refusals": 2, "refused_until": NOW - 5}, "elsewhere": OFFERS}, StartMachine),
        ({"memory": {"refusals": 3, "refused_until": NOW - 5}, "elsewhere": OFFERS}, Copy),
        ({"memory": {"refusals": 3, "refused_until": NOW - 5}, "elsewhere": OFFERS[:1]}, StartMachine),
        ({"machine_record": {"wanted": "stopped"}}, Rest),
    ],
    ids=["revived", "refused lately", "tried again", "moves", "nowhere to go", "stopped on purpose"],
)
def test_a_stopped_machine(changes: dict[str, Any], kind: type[Step]) -> None:
    assert isinstance(plan(sight(None, "stopped", **changes)), kind)


@pytest.mark.parametrize(
    ("stage", "seen", "kind"),
    [
        ("copying", machine("stopped"), Copy),
        ("copying", machine("running"), Arrive),
        ("copying", None, End),
        ("leaving", machine("stopped"), Leave),
        ("leaving", None, Relaunch),
        ("relaunching", None, Relaunch),
        ("relaunching", machine("running", zone="there-a", image="box-m-1"), Arrive),
        ("relaunching", machine("stopped", zone="there-a", image="box-m-1"), Arrive),
        ("relaunching", machine("pending", zone="there-a", image="box-m-1"), Rest),
        ("relaunching", machine("broken", zone="there-a", image="box-m-1"), Leave),
    ],
)
def test_an_interrupted_move_resumes_at_its_stage(stage: str, seen: Machine | None, kind: type[Step]) -> None:
    move = msgspec.structs.replace(MOVE, stage=stage)
    step = plan(sight(None, machine=seen, memory={"move": move}, elsewhere=OFFERS))
    assert isinstance(step, kind)
    if isinstance(step, Copy):
        assert step.image == "box-m-1", "the image of this very move, not another one"


def test_zones_are_tried_in_turn_and_the_old_one_last() -> None:
    move = msgspec.structs.replace(MOVE, stage="relaunching")
    zones = []
    for refusals in range(3, 6):
        step = plan(sight(None, machine=None, memory={"move": move, "refusals": refusals}, elsewhere=OFFERS))
        assert isinstance(step, Relaunch)
        zones.append(step.offer.zone)
    assert zones == ["here-b", "there-a", "here-a"]


def test_a_budget_ends_it_and_keeps_the_disk() -> None:
    step = plan(sight(options={"budget_usd": 2.0, "then": "delete"}, cost_usd=2.0))
    assert isinstance(step, End)
    assert (step.ending, step.then) == ("budget", "stop")
    assert isinstance(plan(sight(options={"budget_usd": 2.0}, cost_usd=1.99)), Rest)


@pytest.mark.parametrize("changes", [{"machine_record": None}, {"machine": None}], ids=["record", "machine"])
def test_a_machine_deleted_outside_of_outlast_is_not_created_again(changes: dict[str, Any]) -> None:
    step = plan(msgspec.structs.replace(sight(), **changes))
    assert isinstance(step, End)
    assert step.ending == "gone"


def test_an_unreachable_cloud_means_waiting() -> None:
    step = plan(msgspec.structs.replace(sight(), unreachable="the cloud is away", machine=None, machine_record=None))
    assert isinstance(step, Rest)
    assert step.trouble


@pytest.mark.parametrize(("unresponsive_s", "trouble"), [(1.0, False), (59.0, False), (61.0, True)])
def test_a_machine_that_boots_is_asked_again_without_longer_pauses(unresponsive_s: float, trouble: bool) -> None:
    step = plan(sight(None, unresponsive="no route", unresponsive_s=unresponsive_s))
    assert isinstance(step, Rest)
    assert step.trouble is trouble


@pytest.mark.parametrize(("unresponsive_s", "kind"), [(5.0, Rest), (599.0, Rest), (601.0, StopUnresponsive)])
def test_a_machine_that_refuses_ssh_for_long_is_restarted(unresponsive_s: float, kind: type[Step]) -> None:
    assert isinstance(plan(sight(None, unresponsive="no route", unresponsive_s=unresponsive_s)), kind)


def test_a_broken_machine_is_reported() -> None:
    step = plan(sight(None, machine=machine("broken", why="its host died")))
    assert isinstance(step, End)
    assert "its host died" in step.why
