"""The machine that supervises, killed while it makes sure that nothing is left to do."""

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


def supervisor_vm_location(name: str) -> Machine:
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
        pytest.param("", True, True, id="by one that died here while it looked a last time"),
        pytest.param("laptop:7.1", True, False, id="by somebody who called it off from elsewhere"),
        pytest.param("", False, False, id="though it was to stay until it is called off"),
    ],
)
def test_a_supervisor_that_finds_its_machine_about_to_go_stays_if_that_may_have_been_taken_back(
    tmp_path: Path, by: str, until_idle: bool, stays: bool
) -> None:
    workspace = open_workspace(str(tmp_path / "workspace"))
    machine_records, name = MachineRecords(workspace), supervisor_name(workspace)
    machine_record = MachineRecord(name=name, id="1", cloud="local", phase="deleting", until_idle=until_idle)
    machine_record = msgspec.structs.replace(machine_record, by=by or process_identity())
    workspace.bucket.put(f"machines/{name}.json", msgspec.json.encode(machine_record))
    machine = supervisor_vm_location(name)
    clouds = {"local": LocalCloud(str(tmp_path / "cloud"))}
    told_to_stop = threading.Event()
    told_to_stop.set()
    assert SupervisorVm(workspace, clouds, machine, report=lambda _: None).serve(told_to_stop) is stays
    found = machine_records.find(name)
    assert found is not None
    assert found.phase == ("ready" if stays else "deleting")


def test_whoever_takes_up_a_last_look_waits_for_no_first_run_again(tmp_path: Path) -> None:
    workspace = open_workspace(str(tmp_path / "workspace"))
    name = supervisor_name(workspace)
    machine_record = MachineRecord(
        name=name, id="1", cloud="local", phase="deleting", until_idle=True, by=process_identity()
    )
    workspace.bucket.put(f"machines/{name}.json", msgspec.json.encode(machine_record))
    clouds = {"local": LocalCloud(str(tmp_path / "cloud"))}
    given_up = threading.Event()
    patience = threading.Timer(30.0, given_up.set)
    patience.start()
    stays = SupervisorVm(workspace, clouds, supervisor_vm_location(name), report=lambda _: None).serve(given_up)
    patience.cancel()
    assert not stays, "it is done at once"
