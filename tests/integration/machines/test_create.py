"""Creation of machines: nothing remains after a failure, an interrupt, or a kill at any moment."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from outlast.clouds.cloud import LABEL_MACHINE, LABEL_WORKSPACE, Boot, InteractiveCloud, Machine, Requirements
from outlast.clouds.local.cloud import LocalCloud
from outlast.errors import BadRequest, CloudUnreachable, NoCapacity, UsageError
from outlast.machines import lifecycle
from outlast.machines.create import MachineRequest, create_machine, finish
from outlast.records.machines import MachineRecord, MachineRecords, MachineRecordView
from outlast.supervisor.loop import Supervisor
from outlast.workspace import Workspace, open_workspace
from tests.integration.machines.crash_points import Doomed, Point, points_passed
from tests.support.machines import Bench


def request(name: str = "box", **needs: Any) -> MachineRequest:
    return MachineRequest(
        name=name, needs=Requirements(type="local-1", **needs), boot=Boot(image=needs.get("image", ""))
    )


def reaped(bench: Bench) -> list[str]:
    supervisor = Supervisor(open_workspace(str(bench.root / "workspace")), {"local": bench.cloud})
    supervisor.round()
    return [machine.name for machine in bench.cloud.machines()]


def test_its_labels_distinguish_it_from_an_orphan(bench: Bench) -> None:
    made, machine_record = create_machine(bench.cloud, bench.machine_records, request())
    assert made.labels == {LABEL_WORKSPACE: bench.machine_records.workspace.id, LABEL_MACHINE: machine_record.id}
    assert reaped(bench) == ["box"], "it is being made"
    finish(bench.machine_records, machine_record)
    assert reaped(bench) == ["box"], "it is made"
    bench.machine_records.remove("box")
    assert reaped(bench) == [], "it has no owner"


def life(bench: Bench, point: Point) -> None:
    """Create and delete a machine in another process, which dies at the given point."""
    cloud: Any = Doomed(LocalCloud(bench.cloud.root), {"launch", "delete"}, point)
    bucket: Any = Doomed(bench.machine_records.bucket, {"create", "put", "delete"}, point)
    machine_records = MachineRecords(Workspace(bucket))
    _, machine_record = create_machine(cloud, machine_records, request())
    finish(machine_records, machine_record)
    lifecycle.delete(cloud, machine_records, "box")


def died_at(bench: Bench, at: int) -> list[str]:
    return points_passed(lambda point: life(bench, point), at)


@pytest.mark.full
def test_killed_at_any_moment_it_leaves_nothing_that_the_reaper_does_not_find(bench: Bench) -> None:
    assert bench.machine_records.workspace.id
    points = died_at(bench, -1)
    assert {"before launch", "after launch", "before create", "after delete"} <= set(points)
    assert bench.cloud.machines() == []
    ready = points.index("before launch")
    for at in range(len(points)):
        died_at(bench, at)
        left = reaped(bench)
        machine_record = bench.machine_records.find("box")
        # Only complete machines with an owner remain.
        assert left == [] or (machine_record is not None and machine_record.phase == "ready"), (
            f"died at {at} ({points[at]}): {left}"
        )
        assert at >= ready or left == []
        lifecycle.delete(bench.cloud, bench.machine_records, "box")


def test_after_a_killed_creation_the_name_is_free_again(bench: Bench) -> None:
    points = died_at(bench, -1)
    died_at(bench, points.index("after launch"))
    assert [machine.name for machine in bench.cloud.machines()] == ["box"]
    with pytest.raises(UsageError, match="machine `box` already exists"):
        create_machine(bench.cloud, bench.machine_records, request())
    assert reaped(bench) == []
    create_machine(bench.cloud, bench.machine_records, request())


class Stubborn:
    """A real cloud with one fault: what a call of that name does instead, the first `times`."""

    def __init__(self, real: LocalCloud, **faults: Callable[..., Any]) -> None:
        self.real = real
        self.faults = faults
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.real, name)
        if name not in self.faults:
            return method

        def call(*arguments: Any, **options: Any) -> Any:
            self.calls.append(name)
            return self.faults[name](len(self.calls), method, *arguments, **options)

        return call


def lost_answer(times: int) -> Callable[..., Any]:
    def fault(call: int, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        answer = method(*arguments, **options)
        if call <= times:
            raise CloudUnreachable("the answer was lost")
        return answer

    return fault


def test_a_lost_answer_creates_no_second_machine(bench: Bench) -> None:
    cloud: Any = Stubborn(bench.cloud, launch=lost_answer(1))
    made, _ = create_machine(cloud, bench.machine_records, request())
    assert [machine.name for machine in bench.cloud.machines()] == [made.name]


def test_a_cloud_that_never_answers_leaves_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlast.machines.create._PAUSE_S", 0.001)
    cloud: Any = Stubborn(bench.cloud, launch=lost_answer(100))
    with pytest.raises(CloudUnreachable):
        create_machine(cloud, bench.machine_records, request())
    assert bench.cloud.machines() == []
    assert bench.machine_records.all() == []


def test_a_suspended_process_does_not_delete_a_later_machine_of_that_name(bench: Bench) -> None:
    def sleeps(_call: int, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        bench.machine_records.remove("box")
        finish(bench.machine_records, create_machine(bench.cloud, bench.machine_records, request())[1])
        return method(*arguments, **options)

    cloud: Any = Stubborn(bench.cloud, launch=sleeps)
    with pytest.raises(UsageError, match="another process created machine `box`"):
        create_machine(cloud, bench.machine_records, request())
    assert reaped(bench) == ["box"], "the other one has its record, and stays"


def test_a_suspended_process_does_not_mark_a_later_machine_as_ready(bench: Bench) -> None:
    _, slept = create_machine(bench.cloud, bench.machine_records, request())
    lifecycle.delete(bench.cloud, bench.machine_records, "box")
    finish(bench.machine_records, create_machine(bench.cloud, bench.machine_records, request())[1])
    with pytest.raises(UsageError, match="`box` now names another machine"):
        finish(bench.machine_records, slept)
    assert reaped(bench) == ["box"]


def test_ctrl_c_in_the_middle_leaves_nothing(bench: Bench) -> None:
    def interrupted(_call: int, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        method(*arguments, **options)
        raise KeyboardInterrupt

    cloud: Any = Stubborn(bench.cloud, launch=interrupted)
    with pytest.raises(KeyboardInterrupt):
        create_machine(cloud, bench.machine_records, request())
    assert bench.cloud.machines() == []
    assert bench.machine_records.all() == []


def test_a_failed_rollback_is_reported(bench: Bench) -> None:
    def broken(_call: int, _method: Callable[..., Any], *_arguments: Any, **_options: Any) -> Any:
        raise CloudUnreachable("the line is down")

    cloud: Any = Stubborn(bench.cloud, metadata=broken, delete=broken)
    reports: list[str] = []
    with pytest.raises(CloudUnreachable):
        create_machine(cloud, bench.machine_records, request(), report=reports.append)
    assert any("`outlast reap` deletes it" in line for line in reports), reports
    assert bench.machine_records.find("box") is not None, "the record stays: it is how the reaper knows"


def test_full_zones_are_skipped_and_named_if_all_are_full(bench: Bench) -> None:
    bench.cloud.set_zone("local1-a", capacity=0)
    made, machine_record = create_machine(
        bench.cloud, bench.machine_records, request(spot=False, zones=("local1-a", "local1-b"))
    )
    assert made.zone == "local1-b"
    finish(bench.machine_records, machine_record)
    bench.cloud.set_zone("local1-b", capacity=0)
    with pytest.raises(NoCapacity, match=r"local1-a: .*; local1-b: "):
        create_machine(bench.cloud, bench.machine_records, request("two", spot=False, zones=("local1-a", "local1-b")))
    assert [machine_record.name for machine_record in bench.machine_records.all()] == ["box"]


def test_two_concurrent_requests_for_a_name_get_one_machine(bench: Bench) -> None:
    results: list[Machine | UsageError] = []

    def want() -> None:
        try:
            results.append(
                create_machine(
                    bench.cloud, MachineRecords(open_workspace(bench.machine_records.workspace.url)), request()
                )[0]
            )
        except UsageError as problem:
            results.append(problem)

    threads = [threading.Thread(target=want) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(result, Machine) for result in results) == 1, results
    assert len(bench.cloud.machines()) == 1


def test_a_machine_of_another_workspace_with_that_name_is_neither_used_nor_deleted(bench: Bench) -> None:
    """It is created between our check and our launch: the launch finds it, and it is not ours."""
    other = MachineRecords(open_workspace(str(bench.root / "other")))

    def late(_call: int, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        create_machine(bench.cloud, other, request())
        return method(*arguments, **options)

    cloud: Any = Stubborn(bench.cloud, launch=late)
    with pytest.raises(UsageError, match="another process created machine `box`"):
        create_machine(cloud, bench.machine_records, request())
    assert [machine.name for machine in bench.cloud.machines()] == ["box"]
    assert bench.machine_records.all() == []


@pytest.mark.parametrize("name", ["two words", "Big", "9lives", "a_b", "", "x" * 64, "-x", "a;b"])
def test_an_invalid_name_is_refused_before_anything_is_written(bench: Bench, name: str) -> None:
    with pytest.raises(UsageError, match="invalid machine name"):
        create_machine(bench.cloud, bench.machine_records, request(name))
    assert bench.machine_records.all() == []


def test_a_deleted_image_is_reported_with_the_next_step(bench: Bench) -> None:
    bench.machine()
    lifecycle.stop(bench.cloud, bench.machine_records, "box")
    bench.cloud.snapshot("box", "old-1", family="old")
    bench.cloud.delete_image("old-1")
    with pytest.raises(BadRequest, match="no image and no family of images `old`") as raised:
        create_machine(bench.cloud, bench.machine_records, request("two", image="old"))
    assert "outlast image list" in raised.value.hint


def test_the_silence_of_an_owner_is_measured_by_the_stores_clock(bench: Bench) -> None:
    machine_record = bench.machine_records.create(MachineRecord(name="box", id="i", cloud="local"))
    view = bench.machine_records.view("box")
    assert view is not None
    assert not view.abandoned
    assert MachineRecordView(id="i", phase="creating", owner_silent_s=1000.0).abandoned
    assert not MachineRecordView(id="i", phase="ready", owner_silent_s=1000.0).abandoned
    assert f":{os.getpid()}." in machine_record.by


def test_the_local_cloud_is_an_interactive_cloud(bench: Bench) -> None:
    cloud: InteractiveCloud = bench.cloud
    assert cloud.name == "local"
