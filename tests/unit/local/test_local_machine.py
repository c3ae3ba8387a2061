"""The environment of a machine, its power commands, and launches whose process dies."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from outlast.clouds.cloud import Boot
from outlast.clouds.local.cloud import LocalCloud
from outlast.clouds.local.files import remove_tree
from outlast.testing.cloud_conformance import MachineFactory, eventually

# Waits for the metadata `go`.
WAIT_FOR_GO = """
url="http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance/attributes/go"
until curl -s -f -o /dev/null -H 'Metadata-Flavor: Google' "$url"; do sleep 0.01; done
"""


def make_image(fleet: MachineFactory, cloud: LocalCloud, name: str, script: str) -> None:
    """Return an image of a deleted machine that ran this script."""
    origin = fleet.launch(script=f"{script}; echo set up").name
    fleet.wait_serial(origin, "set up")
    cloud.stop(origin)
    cloud.snapshot(origin, name)
    cloud.delete(origin)


def test_the_environment_of_the_launcher_does_not_leak(
    fleet: MachineFactory, cloud: LocalCloud, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_LAUNCHER", "hunter2-in-the-environment")
    script = "env; cat /proc/1/environ /proc/$PPID/environ 2>&1 | tr '\\0' '\\n'; pwd; echo the end"
    name = fleet.launch(script=script).name
    serial = fleet.wait_serial(name, "the end")
    assert "hunter2-in-the-environment" not in serial
    if mode in ("root", "userns"):
        for line in ("HOME=/root\n", "\n/root\n", f"PATH={os.path.dirname(sys.executable)}:/usr/local/sbin:"):
            assert line in serial
        return
    disk = cloud.disk_path(name)
    for line in (f"HOME={disk}/home", f"TMPDIR={disk}/tmp", f"\n{disk}/home\n", "GCE_METADATA_HOST=127."):
        assert line in serial
    assert f"PATH={os.path.dirname(disk)}/bin:" in serial


def test_the_startup_script_needs_no_interpreter_line_but_may_have_one(fleet: MachineFactory) -> None:
    shell = fleet.launch(script="[[ a == a ]] && echo this is $BASH_VERSION\nexit 3").name
    assert "startup-script exit status 3" in fleet.wait_serial(shell, "exit status")
    assert "this is " in fleet.cloud.serial(shell)
    python = fleet.launch(script=f"#!{sys.executable}\nprint('six is', 2 * 3)\n").name
    fleet.wait_serial(python, "six is 6")


@pytest.mark.parametrize("command", ["shutdown -h now", "poweroff", "halt -p"])
def test_a_machine_can_power_itself_off(fleet: MachineFactory, command: str) -> None:
    name = fleet.launch(script=f"{command}; sleep 1000").name
    assert fleet.wait(name, "stopped").why == "powered off by itself"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can switch the computer off by such a path, or make one")
def test_a_machine_cannot_power_off_the_computer(fleet: MachineFactory, mode: str) -> None:
    if mode != "pidns":
        pytest.skip("mode plain shares the file system as it is, and the others do not have this file at all")
    switch = Path("/run/initctl")
    made = not switch.exists()
    if made:
        switch.touch()
    try:
        name = fleet.launch(script=f"test -c {switch} && echo masked || echo reached; sleep 1000").name
        assert "masked" in fleet.wait_serial(name, "ed\n")
    finally:
        if made:
            switch.unlink()


def test_a_machine_that_powers_itself_off_after_the_notice_counts_as_preempted(
    fleet: MachineFactory, cloud: LocalCloud
) -> None:
    name = fleet.launch(script=f"{WAIT_FOR_GO} poweroff").name
    fleet.wait(name, "running")
    cloud.preempt(name)
    fleet.wait_serial(name, "notice: preempted, 30 s left")
    assert cloud.machine(name).status == "running"
    cloud.set_metadata(name, {"go": "now"})
    assert fleet.wait(name, "stopped").why == "preempted"


def test_a_disk_is_a_copy_of_its_image(fleet: MachineFactory, cloud: LocalCloud) -> None:
    make_image(fleet, cloud, "tools", "echo from the image > ~/tool")
    assert [each.name for each in cloud.images()] == ["base", "tools"]
    boot = Boot(script="cat ~/tool; echo changed > ~/tool; echo the end", image="tools")
    for name in ("one", "two"):
        cloud.launch(fleet.offer(), name, boot=boot, labels={})
        assert "from the image" in fleet.wait_serial(name, "the end")


def test_a_machine_can_delete_itself_with_its_token_only(
    fleet: MachineFactory, cloud: LocalCloud, mode: str, ask: Any
) -> None:
    if mode in ("root", "userns"):
        pytest.skip("only the machine reaches its metadata server; see test_local_namespaces.py")
    name = fleet.launch(script="sleep 1000").name
    fleet.wait(name, "running")
    host = cloud.metadata_host(name)
    path, google = "/outlast/v1/self/delete", {"Metadata-Flavor": "Google"}
    assert ask(host, path, method="POST").status == 403
    assert ask(host, path, method="POST", headers={**google, "Authorization": "Bearer x"}).status == 403
    token = ask(host, "/computeMetadata/v1/instance/attributes/outlast-self-token").body
    assert ask(host, path, headers={**google, "Authorization": f"Bearer {token}"}).status == 405
    assert ask(host, path, method="POST", headers={**google, "Authorization": f"Bearer {token}"}).status == 200
    eventually("the machine is gone", lambda: cloud.machines() == [])
    eventually("its disk is gone", lambda: os.listdir(f"{cloud.root}/trash") == [])


def test_secrets_are_private_files_and_for_the_machine_that_names_them(
    plain_fleet: MachineFactory, plain_cloud: LocalCloud, ask: Any
) -> None:
    cloud = plain_cloud
    cloud.put_secrets("mine", {"KEY": "value"})
    cloud.put_secrets("other", {"KEY": "other"})
    assert stat.S_IMODE(os.stat(f"{cloud.root}/secrets").st_mode) == 0o700
    assert stat.S_IMODE(os.stat(f"{cloud.root}/secrets/mine.json").st_mode) == 0o600
    name = plain_fleet.launch().name
    plain_fleet.wait(name, "running")
    host = cloud.metadata_host(name)
    token = ask(host, "/computeMetadata/v1/instance/attributes/outlast-self-token").body
    known = {"Metadata-Flavor": "Google", "Authorization": f"Bearer {token}"}
    assert ask(host, "/outlast/v1/secrets/mine", headers=known).status == 403
    cloud.set_metadata(name, {"outlast-secrets": "mine"})
    assert ask(host, "/outlast/v1/secrets/mine", headers=known).json() == {"KEY": "value"}
    assert ask(host, "/outlast/v1/secrets/mine").status == 403
    assert ask(host, "/outlast/v1/secrets/other", headers=known).status == 403
    cloud.drop_secrets("mine")
    assert ask(host, "/outlast/v1/secrets/mine", headers=known).status == 404


def test_a_machine_ends_at_its_maximum_age(plain_fleet: MachineFactory, plain_cloud: LocalCloud) -> None:
    boot = Boot(script="sleep 1000", life_max_s=0.3)
    plain_cloud.launch(plain_fleet.offer(), "m", boot=boot, labels={})
    eventually("the machine is gone", lambda: plain_cloud.machines() == [])


_LAUNCHER = """
import os, sys
from outlast.clouds.cloud import Boot, Requirements
from outlast.clouds.local import power
from outlast.clouds.local.cloud import LocalCloud
cloud = LocalCloud(sys.argv[1], mode=sys.argv[2])
if sys.argv[3] == "half":
    power.switch_on = lambda *_, **__: os._exit(9)
cloud.launch(cloud.offers(Requirements())[0], "m", boot=Boot(script="echo up; sleep 1000"), labels={})
os.kill(os.getpid(), 9)
"""


def run_launcher(cloud: LocalCloud, how: str) -> None:
    subprocess.run([sys.executable, "-c", _LAUNCHER, cloud.root, cloud.mode, how], check=False, timeout=30)


def test_a_machine_outlives_its_launcher(cloud: LocalCloud, fleet: MachineFactory) -> None:
    run_launcher(cloud, "whole")
    fleet.wait_serial("m", "up\n")
    assert cloud.machine("m").status == "running"


def test_an_interrupted_launch_is_listed_and_completed_by_the_next(cloud: LocalCloud, fleet: MachineFactory) -> None:
    run_launcher(cloud, "half")
    assert (cloud.machine("m").status, cloud.machine("m").why) == ("broken", "half created")
    created_at = cloud.machine("m").created_at
    assert fleet.launch("m").created_at == created_at
    fleet.wait_serial("m", "up\n")
    assert len(cloud.machines()) == 1


def test_an_interrupted_launch_can_be_deleted(cloud: LocalCloud) -> None:
    run_launcher(cloud, "half")
    cloud.delete("m")
    assert cloud.machines() == []


@pytest.mark.full
def test_a_new_machine_is_pending_until_it_runs_and_nothing_else(cloud: LocalCloud, fleet: MachineFactory) -> None:
    for _ in range(5):
        name = fleet.launch().name
        seen = {cloud.machine(name).status}
        while "running" not in seen:
            seen.add(cloud.machine(name).status)
        assert seen <= {"pending", "running"}
        cloud.stop(name)
        cloud.start(name)
        seen = {cloud.machine(name).status}
        while "running" not in seen:
            seen.add(cloud.machine(name).status)
        assert seen <= {"pending", "running"}


def test_a_failed_boot_reports_why(cloud: LocalCloud, fleet: MachineFactory, mode: str) -> None:
    make_image(fleet, cloud, "odd", "true")
    (layer,) = Path(cloud.root, "layers").iterdir()
    if mode in ("root", "userns"):
        shutil.rmtree(layer)
    else:
        # The disk needs a folder of this name, and the image has a file.
        shutil.rmtree(layer / "home")
        (layer / "home").write_text("in the way")
    cloud.launch(fleet.offer(), "m", boot=Boot(image="odd"), labels={})
    assert "boot failed" in fleet.wait("m", "broken").why


def test_read_only_folders_are_removed(tmp_path: Path) -> None:
    inner = tmp_path / "folder" / "inner"
    inner.mkdir(parents=True)
    (inner / "file").write_text("x")
    (tmp_path / "folder" / "link").symlink_to(tmp_path)
    inner.chmod(0o500)
    remove_tree(str(tmp_path / "folder"))
    assert list(tmp_path.iterdir()) == []
    remove_tree(str(tmp_path / "folder"))


def test_the_mode_is_explained(cloud: LocalCloud, mode: str) -> None:
    assert f"`{mode}`" in cloud.explain()
    assert list(cloud.modes()) == ["root", "userns", "pidns", "plain"]


@pytest.mark.parametrize("file", ["machine.json", "state.json"])
def test_a_damaged_machine_is_listed_and_deleted_and_hides_no_other(
    plain_cloud: LocalCloud, plain_fleet: MachineFactory, file: str
) -> None:
    damaged, whole = plain_fleet.launch().name, plain_fleet.launch().name
    for name in (damaged, whole):
        plain_fleet.wait(name, "running")
    plain_cloud.stop(damaged)
    Path(plain_cloud.root, "machines", damaged, file).write_text("")
    statuses = {machine.name: machine.status for machine in plain_cloud.machines()}
    assert statuses == {damaged: "broken", whole: "running"}
    plain_cloud.delete(damaged)
    assert [machine.name for machine in plain_cloud.machines()] == [whole]


def test_a_machine_can_be_deleted_while_its_disk_is_copied(
    cloud: LocalCloud, fleet: MachineFactory, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mode in ("root", "userns"):
        pytest.skip("these modes copy no disk")
    make_image(fleet, cloud, "huge", "true")
    slow = tmp_path / "bin" / "cp"
    slow.parent.mkdir()
    slow.write_text(f"#!/bin/sh\ntouch {tmp_path}/copying\nexec sleep 1000\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    cloud.launch(fleet.offer(), "m", boot=Boot(image="huge"), labels={})
    eventually("the disk is being copied", (tmp_path / "copying").exists)
    assert cloud.machine("m").status == "pending"
    cloud.delete("m")
    assert cloud.machines() == []
