"""Machines that no run owns: which of them the supervisor deletes."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.plan.worlds import machine, view, world

from outlast.clouds.cloud import LABEL_MACHINE, LABEL_WORKSPACE, Machine
from outlast.records.machines import MachineRecordView
from outlast.supervisor.plan import plan
from outlast.supervisor.world import Reap, RunView


def manual_machine(label: str = "id1") -> Machine:
    return msgspec.structs.replace(
        machine(1), name="box", labels={LABEL_WORKSPACE: world().workspace_id, LABEL_MACHINE: label}
    )


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (MachineRecordView(id="id1", phase="ready"), ""),
        (MachineRecordView(id="id1", phase="creating", owner_silent_s=10.0), ""),
        (
            MachineRecordView(id="id1", phase="creating", owner_silent_s=float("inf")),
            "the process that was creating it has died",
        ),
        (
            MachineRecordView(id="id1", phase="creating", owner_silent_s=901.0),
            "the process that was creating it has died",
        ),
        (
            MachineRecordView(id="id1", phase="deleting", owner_silent_s=float("inf")),
            "the process that was deleting it has died",
        ),
        (MachineRecordView(id="id1", phase="deleting", owner_silent_s=10.0), ""),
        (MachineRecordView(id="id2", phase="ready"), "it has no record"),
        (None, "it has no record"),
    ],
)
def test_a_machine_without_a_run_is_reaped_only_without_a_valid_record(
    record: MachineRecordView | None, why: str
) -> None:
    seen = msgspec.structs.replace(world(machines=[manual_machine()]), machine_records={"box": record})
    wanted = (Reap(cloud="local", machine="box", why=why, machine_record="id1"),) if why else ()
    assert plan(seen) == wanted


@pytest.mark.parametrize(
    ("age_s", "until_idle", "supervisor_vm", "runs", "gone"),
    [
        (1000.0, True, "", [], True),
        (1000.0, False, "", [], False),
        (100.0, True, "", [], False),  # it waits for the first run
        (1000.0, True, "box", [], False),  # it deletes itself after another check
        (1000.0, True, "", [view()], False),
    ],
)
def test_a_supervisor_machine_with_until_idle_is_reaped_when_no_run_is_alive(
    age_s: float, until_idle: bool, supervisor_vm: str, runs: list[RunView], gone: bool
) -> None:
    box = msgspec.structs.replace(manual_machine(), created_at=50.0, seen_at=50.0 + age_s)
    record = MachineRecordView(id="id1", phase="ready", until_idle=until_idle)
    seen = msgspec.structs.replace(
        world(*runs, machines=[box]), machine_records={"box": record}, supervisor_vm=supervisor_vm
    )
    assert any(isinstance(step, Reap) for step in plan(seen)) is gone


def test_a_machine_with_an_unreadable_record_is_left_alone() -> None:
    assert plan(world(machines=[manual_machine()])) == ()
