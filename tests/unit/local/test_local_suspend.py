"""Suspended machines keep their memory and continue where they stopped."""

from __future__ import annotations

import pytest

from outlast.clouds.cloud import Machine
from outlast.clouds.local.cloud import LocalCloud
from outlast.errors import BadRequest
from outlast.testing.cloud_conformance import MachineFactory

TICKS = "i=0; while true; do i=$((i+1)); echo tick $i.; sleep 0.02; done"
# With job control, as in a terminal: a shell that sees its job stopped continues with the next line.
JOB = f"set -m\n(kill -STOP $BASHPID; echo continued by others) &\nsh -c '{TICKS}'\necho put aside"


def launch_ticking(fleet: MachineFactory, script: str = TICKS) -> Machine:
    name = fleet.launch(script=script).name
    fleet.wait_serial(name, "tick 3.")
    return fleet.wait(name, "running")


def last_tick(cloud: LocalCloud, name: str) -> int:
    return int(cloud.serial(name).rpartition("tick ")[2].partition(".")[0])


def test_a_suspended_machine_stops_and_continues_where_it_was(fleet: MachineFactory, cloud: LocalCloud) -> None:
    name = launch_ticking(fleet, JOB).name
    cloud.suspend(name)
    cloud.suspend(name)
    stood_at = last_tick(cloud, name)
    other = fleet.launch(script=TICKS).name
    fleet.wait_serial(other, "tick 5.")
    assert last_tick(cloud, name) == stood_at
    assert cloud.machine(name).why == "suspended"
    cloud.resume(name)
    serial = fleet.wait_serial(name, f"tick {stood_at + 3}.")
    assert cloud.machine(name).why == ""
    assert "put aside" not in serial
    assert "continued by others" not in serial
    assert "boot 2" not in serial


def test_a_suspended_machine_cannot_be_entered_or_preempted_but_deleted(
    fleet: MachineFactory, cloud: LocalCloud
) -> None:
    machine = launch_ticking(fleet)
    name = machine.name
    cloud.set_metadata(name, {"shutdown-script": "echo shutdown ran"})
    cloud.suspend(name)
    cloud.set_zone(machine.zone, mean_life_s=0.001, grace_s=0.1)
    for attempt in (lambda: cloud.access(name), lambda: cloud.preempt(name)):
        with pytest.raises(BadRequest, match="suspended"):
            attempt()
    other = fleet.launch(script=TICKS).name
    fleet.wait(other, "stopped")
    assert cloud.machine(name).why == "suspended"
    cloud.stop(name)
    assert cloud.machine(name).status == "stopped"
    assert "shutdown ran" not in cloud.serial(name)
    with pytest.raises(BadRequest, match="only running machines"):
        cloud.suspend(name)
    with pytest.raises(BadRequest, match="only suspended machines"):
        cloud.resume(name)
    cloud.set_zone(machine.zone, mean_life_s=None)
    cloud.start(name)
    fleet.wait_serial(name, "tick 1.", times=2)
    fleet.wait(name, "running")
    cloud.suspend(name)
    cloud.delete(name)


def test_a_spot_machine_is_preempted_after_it_resumes(fleet: MachineFactory, cloud: LocalCloud) -> None:
    machine = launch_ticking(fleet)
    cloud.suspend(machine.name)
    cloud.set_zone(machine.zone, mean_life_s=0.001, grace_s=0.1)
    cloud.resume(machine.name)
    assert fleet.wait(machine.name, "stopped").why == "preempted"
