"""Disks in modes `root` and `userns`: no snapshot, complete or interrupted, loses files."""

from __future__ import annotations

import json
import os
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from outlast.clouds.cloud import Boot
from outlast.clouds.local.cloud import LocalCloud
from outlast.clouds.local.probe import why_not
from outlast.errors import BadRequest
from outlast.testing.cloud_conformance import MachineFactory, eventually

SCRIPT = "cat /srv/kept; grep -c ^ada: /etc/passwd; echo the-end"
FIRST = f"echo kept > /srv/kept; echo ada:x:1234:1234::/srv:/bin/sh >> /etc/passwd; {SCRIPT}"


@pytest.fixture(params=["root", "userns"])
def mode(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if reason := why_not(request.param, root=str(tmp_path)):
        pytest.skip(f"mode {request.param} does not work here: {reason}")
    return str(request.param)


@pytest.fixture
def stopped(fleet: MachineFactory, cloud: LocalCloud) -> str:
    """A machine that wrote a file and an account, and is off."""
    # At the second boot it prints the file and the account.
    name = fleet.launch(script=f"test -e /srv/kept || {{ {FIRST}; exit; }}; {SCRIPT}").name
    fleet.wait_serial(name, "the-end")
    cloud.stop(name)
    fleet.wait(name, "stopped")
    return name


def says_at_boot(fleet: MachineFactory, cloud: LocalCloud, name: str) -> list[str]:
    before = cloud.serial(name).count("the-end")
    cloud.start(name)
    eventually("its script ran again", lambda: cloud.serial(name).count("the-end") > before)
    return cloud.serial(name).split("the-end")[before].splitlines()[-2:]


def test_two_images_of_a_disk_without_a_boot_between_keep_its_files(
    fleet: MachineFactory, cloud: LocalCloud, stopped: str
) -> None:
    cloud.snapshot(stopped, "first", family="pair")
    cloud.snapshot(stopped, "second", family="pair")
    assert says_at_boot(fleet, cloud, stopped) == ["kept", "1"]
    boot = Boot(script=SCRIPT, image="second")
    twin = cloud.launch(fleet.offer(), fleet.name(), boot=boot, labels=fleet.labels).name
    assert fleet.wait_serial(twin, "the-end").split("the-end")[0].splitlines()[-2:] == ["kept", "1"]


def test_a_snapshot_killed_before_it_moved_the_disk_loses_no_file(
    fleet: MachineFactory, cloud: LocalCloud, stopped: str, tmp_path: Path
) -> None:
    facts = tmp_path / "cloud" / "machines" / stopped / "machine.json"
    facts.write_text(json.dumps({**json.loads(facts.read_text()), "layers": ["never-made"]}))
    assert says_at_boot(fleet, cloud, stopped) == ["kept", "1"]
    cloud.stop(stopped)
    fleet.wait(stopped, "stopped")
    cloud.snapshot(stopped, "after-all", family="pair")
    assert says_at_boot(fleet, cloud, stopped) == ["kept", "1"]


def test_a_machine_with_a_missing_layer_reports_it(
    fleet: MachineFactory, cloud: LocalCloud, stopped: str, tmp_path: Path
) -> None:
    cloud.snapshot(stopped, "first", family="pair")
    shutil.rmtree(tmp_path / "cloud" / "layers")
    cloud.start(stopped)
    machine = fleet.wait(stopped, "broken")
    assert "layers of its disk are missing" in machine.why


def test_an_address_that_another_machine_had_is_reached_at_once(
    fleet: MachineFactory, cloud: LocalCloud, mode: str
) -> None:
    if mode != "root":
        pytest.skip("only in mode root does this computer reach machines over the network")
    serve = "echo serving; exec python3 -m http.server 80 >/dev/null 2>&1"
    first = fleet.launch(script="echo up")
    fleet.wait_serial(first.name, "up")
    spoken_with: list[tuple[str, str]] = []
    for _ in range(2):
        name = fleet.launch(script=serve).name
        fleet.wait_serial(name, "serving")
        address = fleet.wait(name, "running").address
        eventually("it answers", partial(_connects, address))
        spoken_with.append((address, _mac(address)))
        cloud.delete(name)
    assert spoken_with[0] == spoken_with[1]


def test_a_family_with_the_name_of_an_image_is_refused(cloud: LocalCloud, stopped: str) -> None:
    with pytest.raises(BadRequest, match="invalid family `base`"):
        cloud.snapshot(stopped, "mine", family="base")
    assert [image.name for image in cloud.images()] == ["base"]


def _connects(address: str) -> bool:
    try:
        socket.create_connection((address, 80), timeout=0.5).close()
    except OSError:
        return False
    return True


def _mac(address: str) -> str:
    with open("/proc/net/arp", encoding="ascii") as file:
        return next(line.split()[3] for line in file if line.split()[0] == address)


def test_only_the_image_refers_to_its_layers(cloud: LocalCloud, stopped: str, tmp_path: Path) -> None:
    cloud.snapshot(stopped, "first", family="pair")
    cloud.snapshot(stopped, "second", family="pair")
    assert len(os.listdir(tmp_path / "cloud" / "layers")) == 1
    cloud.delete(stopped)
    cloud.delete_image("first")
    cloud.delete_image("second")
    assert os.listdir(tmp_path / "cloud" / "layers") == []


def test_concurrent_shares_of_an_image_are_all_recorded(plain_fleet: MachineFactory, plain_cloud: LocalCloud) -> None:
    name = plain_fleet.launch(script="echo up").name
    plain_fleet.wait_serial(name, "up")
    plain_cloud.stop(name)
    plain_cloud.snapshot(name, "ours")
    friends = [f"friend-{number}" for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda friend: plain_cloud.share_image("ours", friend), friends))
    record = json.loads(Path(plain_cloud.root, "images", "ours.json").read_text())
    assert record["shared"] == sorted(friends)
