"""A supervisor machine that crashes during its last check for runs."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from outlast.clouds.cloud import LABEL_MACHINE, Machine
from outlast.clouds.local.cloud import LocalCloud
from outlast.records.machines import MachineRecord, MachineRecords, supervisor_name
from outlast.store.lease import process_identity
from outlast.supervisor.supervisor_vm import SupervisorVm
from outlast.workspace import open_workspace


def supervisor_machine(name: str) -> Machine:
    return Machine(
        name=name,
        cloud="local",
        zone="local1-a",
        type="local-1",
        spot=False,
        status="running",
        labels={LABEL_MACHINE: "1"},
        created_at=0.0,
        price_usd_per_hour=0.01,
    )


@pytest.mark.parametrize(
    ("by", "until_idle", "stays"),
    [
        pytest.param("", True, True, id="by a supervisor that crashed here during its last check"),
        pytest.param("laptop:7.1", True, False, id="by a user on another computer"),
        pytest.param("", False, False, id="without until_idle"),
    ],
)
def test_a_restarted_supervisor_takes_back_its_own_deletion_but_not_a_users(
    tmp_path: Path, by: str, until_idle: bool, stays: bool
) -> None:
    workspace = open_workspace(str(tmp_path / "workspace"))
    machine_records, name = MachineRecords(workspace), supervisor_name(workspace)
    machine_record = MachineRecord(name=name, id="1", cloud="local", phase="deleting", until_idle=until_idle)
    machine_record = msgspec.structs.replace(machine_record, by=by or process_identity())
    workspace.bucket.put(f"machines/{name}.json", msgspec.json.encode(machine_record))
    machine = supervisor_machine(name)
    clouds = {"local": LocalCloud(str(tmp_path / "cloud"))}
    stop = threading.Event()
    stop.set()
    assert SupervisorVm(workspace, clouds, machine, report=lambda _: None).serve(stop) is stays
    found = machine_records.find(name)
    assert found is not None
    assert found.phase == ("ready" if stays else "deleting")


def test_a_restarted_supervisor_machine_does_not_wait_for_a_first_run_again(tmp_path: Path) -> None:
    workspace = open_workspace(str(tmp_path / "workspace"))
    name = supervisor_name(workspace)
    machine_record = MachineRecord(
        name=name, id="1", cloud="local", phase="deleting", until_idle=True, by=process_identity()
    )
    workspace.bucket.put(f"machines/{name}.json", msgspec.json.encode(machine_record))
    clouds = {"local": LocalCloud(str(tmp_path / "cloud"))}
    given_up = threading.Event()
    deadline = threading.Timer(30.0, given_up.set)
    deadline.start()
    stays = SupervisorVm(workspace, clouds, supervisor_machine(name), report=lambda _: None).serve(given_up)
    deadline.cancel()
    assert not stays, "it is done at once"
