"""A supervisor machine on Google Cloud: the laptop submits and sleeps, the machine supervises and is deleted."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from outlast.clouds.gcp.cloud import GcpCloud
from outlast.clouds.local.folder import Folder
from outlast.records.machines import MachineRecords, supervisor_name
from outlast.runs.story import event_key
from outlast.store.lease import Lease, host_name
from outlast_gcp_emulator.environment import PROJECT
from tests.integration.gcp.home import at_home
from tests.support.gcp import Rehearsal
from tests.support.home import Home, kill_9, processes_mentioning
from tests.support.programs import WAITS
from tests.support.waiting import eventually


@pytest.fixture
def home(rehearsal: Rehearsal, gcp: GcpCloud, tmp_path: Path) -> Iterator[Home]:
    with at_home(tmp_path, rehearsal, gcp) as own:
        own.write("wait.py", WAITS)
        yield own


def holder(home: Home) -> str:
    found = Lease(home.workspace.bucket, "supervisor", who="", ttl_s=6.0).holder()
    return found.who if found else ""


@pytest.mark.full
def test_a_supervisor_machine_is_deleted_after_the_last_run(home: Home, gcp: GcpCloud) -> None:
    name = supervisor_name(home.workspace)
    up = home.outlast("supervise", "--on", "gcp", "--until-idle", timeout_s=120)
    assert up.returncode == 0, up.stderr
    assert up.stdout.startswith(f"{name} on gcp (e2-micro in us-")
    again = home.outlast("supervise", "--on", "gcp", "--until-idle", timeout_s=120)
    assert again.returncode == 0, again.stderr
    assert "already exists" in again.stderr
    assert [machine.name for machine in gcp.machines()] == [name]
    argv = ["submit", "--cloud", "gcp", "--type", "e2-standard-2", "--name", "count", "--checkpoint", "ckpt"]
    submitted = home.outlast(*argv, "--", "python3", "wait.py")
    assert submitted.returncode == 0, submitted.stderr
    story = home.workspace.story("count-1")
    eventually(lambda: story.refresh().checkpoints, within_s=90, what="a checkpoint")
    assert holder(home).startswith(f"{name} on gcp")
    listed = home.outlast("ps")
    assert f"supervisor: {name} on gcp (e2-micro in us-" in listed.stdout
    machines = json.loads(home.outlast("machine", "list", "--json").stdout)
    assert [one["usd_per_hour"] > 0 for one in machines if one["name"] == name] == [True]
    assert home.outlast("reap").stdout == "no machines to delete\n"
    assert home.outlast("preempt", "count-1").returncode == 0
    eventually(lambda: story.refresh().ending == "finished", within_s=120, what="the run's end")
    state = story.state
    assert len(state.attempts) == 2
    # Only the machine has supervised: the supervisor that `submit` started has left at once.
    events = [msgspec.json.decode(home.workspace.bucket.get(event_key("count-1", n))) for n in range(1, state.length)]
    assert {event["by"] for event in events if event["event"] in ("placed", "lost", "released")} == {name}
    eventually(lambda: gcp.machines() == [], within_s=60, what="every machine being gone")
    assert MachineRecords(home.workspace).find(name) is None
    assert holder(home) == ""


@pytest.mark.soak
def test_a_supervisor_that_ends_is_restarted_until_it_is_switched_off(
    home: Home, gcp: GcpCloud, rehearsal: Rehearsal
) -> None:
    name = supervisor_name(home.workspace)
    up = home.outlast("supervise", "--on", "gcp", "--zone", "us-central1-b", timeout_s=120)
    assert up.returncode == 0, up.stderr
    assert "in us-central1-b" in holder(home)
    instance = gcp.client.compute("GET", f"zones/us-central1-b/instances/{name}").doc
    assert instance["scheduling"]["automaticRestart"] is True
    assert instance["scheduling"]["provisioningModel"] == "STANDARD"
    (account,) = instance["serviceAccounts"]
    assert account["email"] == f"outlast-supervisor@{PROJECT}.iam.gserviceaccount.com"
    # Killed: the boot script starts the next.
    (process,) = processes_mentioning(f"gcp/{name}")
    kill_9(process)
    eventually(lambda: "restarting it" in gcp.serial(name), within_s=30, what="the boot script noticing")
    eventually(lambda: holder(home).startswith(name), within_s=60, what="the next supervisor")
    # Its host fails: the cloud boots it again.
    shim = (Folder(f"{rehearsal.local.root}/machines/{name}").state() or {})["shim_pid"]
    kill_9(shim)
    log = 'operationType="compute.instances.automaticRestart"'
    eventually(
        lambda: any(gcp.client.compute("GET", "zones/us-central1-b/operations", query={"filter": log}).doc["items"]),
        within_s=30,
        what="the cloud reviving it",
    )
    eventually(lambda: holder(home).startswith(name), within_s=60, what="the supervisor of its next boot")
    # Stopped: the next request starts the same machine.
    gcp.stop(name)
    again = home.outlast("supervise", "--on", "gcp", timeout_s=120)
    assert again.returncode == 0, again.stderr
    assert "is stopped; starting it" in again.stderr
    assert [machine.name for machine in gcp.machines()] == [name]
    # That machine does not touch runs on the local cloud.
    here = home.outlast("run", "--cloud", "local", "--name", "here", "--", "echo", "done here", timeout_s=90)
    assert here.returncode == 0, here.stdout + here.stderr
    eventually(lambda: holder(home).startswith(name), within_s=30, what="the machine supervising on")
    off = home.outlast("supervise", "--off")
    assert off.returncode == 0, off.stderr
    assert gcp.machines() == []
    assert MachineRecords(home.workspace).find(name) is None
    assert "no supervisor machine" in home.outlast("supervise", "--off").stderr


@pytest.mark.full
def test_a_supervisor_machine_without_a_record_deletes_itself(home: Home, gcp: GcpCloud) -> None:
    name = supervisor_name(home.workspace)
    assert home.outlast("supervise", "--on", "gcp", timeout_s=100).returncode == 0
    MachineRecords(home.workspace).remove(name)
    eventually(lambda: gcp.machines() == [], within_s=60, what="the machine deleting itself")


@pytest.mark.full
def test_reap_deletes_the_machine_of_a_command_that_was_killed(home: Home, gcp: GcpCloud) -> None:
    name = supervisor_name(home.workspace)
    assert home.outlast("supervise", "--on", "gcp", "--no-wait", timeout_s=100).returncode == 0
    machine_records = MachineRecords(home.workspace)
    machine_record = machine_records.find(name)
    assert machine_record is not None
    # The record as it is between the launch and the end of the command, whose process is dead.
    dead = subprocess.Popen(["true"])
    dead.wait()
    killed = msgspec.structs.replace(machine_record, phase="creating", by=f"{host_name()}:{dead.pid}")
    home.workspace.bucket.put(f"machines/{name}.json", msgspec.json.encode(killed))
    assert f"delete {name} on gcp" in home.outlast("reap").stdout
    assert gcp.machines() == []
    # The next command creates another machine despite the record of the first.
    assert home.outlast("supervise", "--on", "gcp", "--no-wait", timeout_s=100).returncode == 0
    assert home.outlast("supervise", "--off").returncode == 0


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (("--on", "local"), "no machine of `local` can supervise while this computer sleeps"),
        (("--on", "gcp", "--workspace", "/tmp/here"), "machines of gcp cannot see the workspace"),
        (("--on", "nowhere"), "no machine of `nowhere`"),
        (("--zone", "us-central1-a"), "--zone needs --on CLOUD"),
        (("--on", "gcp", "--zone", "mars"), "unknown zone on Google Cloud: `mars`"),
    ],
)
def test_an_invalid_request_is_refused_before_anything_is_created(
    home: Home, gcp: GcpCloud, argv: tuple[str, ...], error: str
) -> None:
    answer = home.outlast("supervise", *argv)
    assert answer.returncode != 0
    assert error in answer.stderr
    assert gcp.machines() == []
    assert MachineRecords(home.workspace).all() == []
