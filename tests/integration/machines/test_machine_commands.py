"""`outlast machine` as a real command, with a real sshd and a temporary home."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlast.clouds.cloud import LABEL_RUN, LABEL_WORKSPACE, Boot, Requirements
from outlast.machines.create import MachineRequest, create_machine
from outlast.records.machines import MachineRecord
from outlast.store.lease import host_name
from tests.support.machines import Bench, needs_ssh
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def _ssh_is_there() -> None:
    needs_ssh()


def listed(bench: Bench, *argv: str) -> dict[str, Any]:
    answer = bench.outlast("machine", "list", "--json", *argv)
    assert answer.returncode == 0, answer.stderr
    return {machine["name"]: machine for machine in json.loads(answer.stdout)}


@pytest.mark.full
def test_a_day_with_a_machine(bench: Bench) -> None:
    """Create it, log in, copy files, list it, change it."""
    startup = bench.root / "startup.sh"
    startup.write_text("#!/bin/sh\necho hello from the startup script\n")
    made = bench.outlast(
        "machine",
        "create",
        "box",
        "--spot",
        "--label",
        "team=ada",
        "--metadata",
        "colour=blue",
        "--startup",
        startup.name,
    )
    assert made.returncode == 0, made.stderr
    assert "box runs in " in made.stdout
    # The exit code, and arguments that need correct quoting.
    ran = bench.outlast(
        "machine", "ssh", "box", "--", "sh", "-c", 'printf "%s|" "$@"; exit 3', "sh", "a  b", "it's", "$HOME"
    )
    assert (ran.returncode, ran.stdout) == (3, "a  b|it's|$HOME|")
    assert bench.outlast("machine", "ssh", "box", "echo $((2 * 3)); cat", typed="in").stdout == "6\nin"
    # Plain ssh knows it: by the one line in the user's own config.
    plain = ["ssh", "-F", str(bench.home / ".ssh" / "config"), "outlast-box", "hostname"]
    assert subprocess.run(plain, capture_output=True, text=True, check=True).stdout == "box\n"
    # Folders there and back.
    (bench.root / "data" / "deep").mkdir(parents=True)
    (bench.root / "data" / "deep" / "file name").write_text("content")
    assert bench.outlast("machine", "cp", "data", "box:").returncode == 0
    assert bench.outlast("machine", "cp", "box:data", "back").returncode == 0
    assert (bench.root / "back" / "deep" / "file name").read_text() == "content"
    eventually(lambda: "hello from the startup script" in bench.outlast("machine", "serial", "box").stdout)
    # It has no drift until it is changed.
    assert listed(bench)["box"]["drift"] == []
    assert bench.outlast("machine", "set", "box", "colour=red", "size=big").returncode == 0
    assert bench.outlast("machine", "resize", "box", "--disk", "20GB").returncode == 0
    refused = bench.outlast("machine", "resize", "box", "--type", "local-2")
    assert refused.returncode == 5
    assert "--restart" in refused.stderr
    assert bench.outlast("machine", "resize", "box", "--type", "local-2", "--restart").returncode == 0
    drifted = listed(bench)["box"]
    assert drifted["drift"] == [
        "type: local-1 → local-2",
        "disk: 10 GB → 20 GB",
        "metadata colour: blue → red",
        "metadata size: added",
    ]
    assert drifted["status"] in ("pending", "running")
    assert "drifted: type" in bench.outlast("machine", "list").stdout
    shown = bench.outlast("machine", "show", "box", "--packages")
    assert "4 changes since creation" in shown.stdout, shown.stdout + shown.stderr


@pytest.mark.full
def test_a_machine_becomes_an_image_and_the_image_another_machine(bench: Bench) -> None:
    assert bench.outlast("machine", "create", "box", "--spot", "--label", "team=ada").returncode == 0
    assert bench.outlast("machine", "ssh", "box", "echo content > file").returncode == 0
    # An image of it, for another one.
    torn = bench.outlast("machine", "snapshot", "box", "--family", "fam")
    assert torn.returncode == 5
    assert "--stop" in torn.stderr
    image = bench.outlast("machine", "snapshot", "box", "--family", "fam", "--image-name", "fam-1", "--stop")
    assert (image.returncode, image.stdout) == (0, "fam-1\n")
    assert listed(bench)["box"]["status"] in ("pending", "running")
    assert bench.outlast("machine", "stop", "box").returncode == 0
    stopped = listed(bench)["box"]
    assert stopped["billed_while_stopped"]
    assert 0 < stopped["usd_per_hour"] < stopped["price_usd_per_hour"]
    assert "its disk is billed" in bench.outlast("machine", "list").stdout
    assert bench.outlast("machine", "create", "two", "--like", "box", "--image", "fam").returncode == 0
    two = listed(bench)["two"]
    assert (two["type"], two["spot"], two["image"], two["labels"]["team"]) == ("local-1", True, "fam-1", "ada")
    assert bench.outlast("machine", "ssh", "two", "cat file").stdout == "content\n"
    assert bench.outlast("machine", "start", "box").returncode == 0
    assert bench.outlast("machine", "ssh", "box", "cat file").stdout == "content\n"
    config = (bench.home / ".outlast" / "ssh" / "config").read_text()
    sockets = [Path(line.split('"')[1]) for line in config.splitlines() if "ControlPath" in line]
    assert [path.exists() for path in sockets] == [True, True]
    assert bench.outlast("machine", "delete", "box", "tow", "--yes").returncode != 0
    assert set(listed(bench)) == {"box", "two"}, "a misspelled name is an error before anything is deleted"
    deleted = bench.outlast("machine", "delete", "box", "two", typed="y\ny\n").stdout
    assert deleted.endswith("deleted two\n")
    assert "deleted box\n" in deleted
    assert listed(bench) == {}
    assert "Host " not in (bench.home / ".outlast" / "ssh" / "config").read_text()
    for path in sockets:
        assert not path.exists(), "the connection to a deleted machine"
    assert bench.machine_records.all() == []
    assert list(bench.machine_records.bucket.list("packages/")) == []


@pytest.mark.full
def test_bad_input_is_reported_with_the_next_step_and_nothing_is_created(bench: Bench) -> None:
    bench.machine()
    rows = [
        (("create", "box"), 2, "machine `box` already exists"),
        (("create", "two words"), 2, "invalid machine name"),
        (("create", "b", "--type", "local-3"), 5, "did you mean"),
        (("create", "b", "--image", "gone"), 5, "outlast image list"),
        (("create", "b", "--zone", "mars-1"), 5, "mars-1"),
        (("create", "b", "--cpus", "many"), 2, "--cpus"),
        (("create", "b", "--type", "local-1", "--cpus", "2"), 2, "`--type` cannot be combined with"),
        (("create", "b", "--label", "outlast-run=x"), 2, "labels that begin with `outlast-`"),
        (("create", "b", "--startup", "nowhere.sh"), 2, "--startup: `nowhere.sh` does not exist"),
        (("create", "b", "--cloud", "moon"), 2, "unknown cloud `moon`"),
        (("create", "b", "--like", "bax"), 5, "did you mean `box`"),
        (("create", "b", "--disk", "-1"), 2, "--disk"),
        (("ssh", "bax"), 5, "did you mean `box`"),
        (("ssh", "a b"), 2, "invalid machine name"),
        (("cp", "box:x"), 2, "expected SOURCE and DEST"),
        (("cp", "a", "b"), 2, "NAME:path"),
        (("cp", "nowhere", "box:"), 2, "no such file: `nowhere`"),
        (("resize", "box"), 2, "nothing to change"),
        (("resize", "box", "--disk", "1GB"), 5, "cannot shrink"),
        (("set", "box", "novalue"), 2, "expected NAME=VALUE"),
        (("delete", "box"), 2, "--yes"),
        (("keep", "box", "--halt-after", "soon"), 2, "--halt-after"),
        (("keep", "box", "--budget", "-3"), 2, "--budget"),
        (("keep", "box", "--halt-after", "5m"), 2, "need --command"),
    ]
    for argv, code, message in rows:
        answer = bench.outlast("machine", *argv)
        assert (answer.returncode, message in answer.stderr) == (code, True), (
            f"{argv}: {answer.returncode} {answer.stderr}"
        )
        assert "Traceback" not in answer.stderr
    assert [machine.name for machine in bench.cloud.machines()] == ["box"]
    assert [machine_record.name for machine_record in bench.machine_records.all()] == ["box"]


def test_a_stopped_machine_and_one_deleted_outside_of_outlast(bench: Bench) -> None:
    bench.machine()
    bench.cloud.stop("box")
    answer = bench.outlast("machine", "ssh", "box", "true")
    assert answer.returncode == 5
    assert "box is stopped" in answer.stderr
    assert "outlast machine start box" in answer.stderr
    bench.cloud.delete("box")
    for argv in (("ssh", "box"), ("start", "box"), ("serial", "box"), ("keep", "box"), ("show", "box")):
        answer = bench.outlast("machine", *argv)
        assert answer.returncode == 5
        assert "machine `box` was deleted outside outlast" in answer.stderr, answer.stderr
    assert listed(bench)["box"]["status"] == "gone"
    assert "was already deleted" in bench.outlast("machine", "delete", "box").stdout
    assert listed(bench) == {}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGTERM], ids=lambda number: number.name)
def test_ctrl_c_or_a_closed_terminal_while_it_boots_leaves_nothing(
    bench: Bench, tmp_path: Path, number: signal.Signals
) -> None:
    # An ssh that never gets through, so that there is time to press the key.
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "ssh").write_text("#!/bin/sh\ntouch $0.called\nexec sleep 60\n")
    (programs / "ssh").chmod(0o755)
    bench.environment["PATH"] = f"{programs}:{os.environ['PATH']}"
    process = bench.start("machine", "create", "box")
    eventually((programs / "ssh.called").exists, within_s=20)
    os.killpg(process.pid, number)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 130, output
    assert "deleting box again" in output
    assert "may still start" not in output
    assert bench.cloud.machines() == []
    assert bench.machine_records.all() == []


def test_leftovers_of_a_killed_creation_are_listed_and_reaped(bench: Bench) -> None:
    """A kill before the launch leaves a record, and after it a machine."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    killed = f"{host_name()}:{gone.pid}"
    _, box = create_machine(
        bench.cloud, bench.machine_records, MachineRequest(name="box", needs=Requirements(), boot=Boot())
    )
    for machine_record in (box, MachineRecord(name="never", id="n", cloud="local")):
        body = msgspec.json.encode(msgspec.structs.replace(machine_record, by=killed))
        bench.machine_records.bucket.put(f"machines/{machine_record.name}.json", body)
    listing = bench.outlast("machine", "list").stdout
    assert listing.count("the process that was creating it has died; `outlast reap` deletes it") == 2, listing
    assert "remove the record never: the machine does not exist" in bench.outlast("reap", "--dry-run").stdout
    assert len(bench.machine_records.all()) == 2
    assert bench.outlast("reap").returncode == 0
    assert (list(bench.machine_records.all()), list(bench.cloud.machines())) == ([], [])


def test_the_record_of_a_live_process_is_not_reaped(bench: Bench) -> None:
    bench.machine_records.create(MachineRecord(name="box", id="b", cloud="local"))
    assert bench.outlast("reap").stdout == "no machines to delete\n"
    assert bench.machine_records.find("box") is not None


@pytest.mark.full
def test_a_machine_that_refuses_login_stays_and_is_reported(bench: Bench, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "ssh").write_text("#!/bin/sh\necho ssh: no way >&2\nexit 255\n")
    (programs / "ssh").chmod(0o755)
    bench.environment["PATH"] = f"{programs}:{os.environ['PATH']}"
    answer = bench.outlast("machine", "create", "box", "--wait", "10s")
    assert answer.returncode == 5
    assert "the machine runs and is billed, but login fails" in answer.stderr
    assert "ssh: no way" in answer.stderr
    machine_record = bench.machine_records.find("box")
    assert machine_record is not None
    assert machine_record.phase == "ready"


def test_the_list_shows_the_owner_of_each_machine(bench: Bench) -> None:
    bench.machine()
    offer = bench.cloud.offers(Requirements(type="local-1"))[0]
    own = bench.machine_records.workspace.id
    bench.cloud.launch(offer, "run-1", boot=Boot(), labels={LABEL_WORKSPACE: own, LABEL_RUN: "census-7"})
    bench.cloud.launch(offer, "foreign", boot=Boot(), labels={LABEL_WORKSPACE: "another"})
    bench.cloud.launch(offer, "plain", boot=Boot(), labels={})
    assert set(listed(bench)) == {"box", "run-1"}
    whose = {name: machine["whose"] for name, machine in listed(bench, "--all").items()}
    assert whose["run-1"] == "census-7 attempt ?"
    assert whose["foreign"] == "another workspace"
    assert whose["plain"] == "not ours"


def test_the_ssh_config_follows_the_machines(bench: Bench) -> None:
    bench.machine()
    bench.machine("two")
    answer = bench.outlast("machine", "ssh-config")
    assert answer.stdout.splitlines() == ["ssh outlast-box", "ssh outlast-two"]
    again = bench.outlast("machine", "ssh-config")
    assert "added a line" in answer.stderr
    assert "added a line" not in again.stderr
    bench.cloud.delete("two")
    assert bench.outlast("machine", "ssh-config").stdout == "ssh outlast-box\n"
    assert "Host outlast-box\n" in bench.outlast("machine", "ssh-config", "--print").stdout


def test_the_cost_under_an_earlier_type_is_kept(bench: Bench) -> None:
    bench.machine()
    bench.cloud.stop("box")
    before = listed(bench)["box"]["cost_usd"]
    assert bench.outlast("machine", "resize", "box", "--type", "local-64").returncode == 0
    after = listed(bench)["box"]["cost_usd"]
    assert before <= after < before * 3, "64 times the price is not for the time before"


def test_packages_installed_since_creation_are_listed(bench: Bench) -> None:
    assert bench.outlast("machine", "create", "box").returncode == 0
    remembered = json.loads(bench.machine_records.bucket.get("packages/box.json"))
    assert remembered["pip"], "the Python there has packages"
    name = sorted(remembered["pip"])[0]
    version = remembered["pip"].pop(name)
    bench.machine_records.bucket.put("packages/box.json", json.dumps(remembered).encode())
    shown = bench.outlast("machine", "show", "box", "--packages", "--json")
    assert json.loads(shown.stdout)["packages_changed"] == [f"pip {name} {version}: installed"]


@pytest.mark.full
def test_a_machine_that_died_with_this_computer_is_started_again_with_its_files(bench: Bench) -> None:
    assert bench.outlast("machine", "create", "box").returncode == 0
    assert bench.outlast("machine", "ssh", "box", "echo precious > ~/work; sync").returncode == 0
    state = Path(bench.cloud.root) / "machines" / "box" / "state.json"
    os.kill(json.loads(state.read_text())["shim_pid"], signal.SIGKILL)
    eventually(lambda: listed(bench)["box"]["status"] == "broken", what="its death")
    listing = bench.outlast("machine", "ssh", "box", "true")
    assert (listing.returncode, "`outlast machine start box`" in listing.stderr) == (5, True)
    started = bench.outlast("machine", "start", "box")
    assert started.returncode == 0, started.stderr
    assert bench.outlast("machine", "ssh", "box", "cat ~/work").stdout == "precious\n"


def test_preempt_takes_a_machine_of_a_user_and_rejects_unknown_names(bench: Bench) -> None:
    bench.machine()
    unknown = bench.outlast("preempt", "none-such")
    assert unknown.returncode == 3
    assert "no run and no machine `none-such`" in unknown.stderr
    answer = bench.outlast("preempt", "box", "--no-notice")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("preempted box in local")
    eventually(lambda: bench.cloud.machine("box").status == "stopped", within_s=20, what="it lost its power")
    again = bench.outlast("preempt", "box")
    assert again.returncode == 5
    assert "only running machines" in again.stderr
