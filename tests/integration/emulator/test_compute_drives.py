"""Data disks on machines of mode `root`: formatted, mounted, moved, resized and copied."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.clouds.local.probe import why_not
from tests.integration.emulator.compute import SPOT, ZONE, Client, ComputeServer, Doc, compute_server, machine
from tests.integration.emulator.discovery import Watching
from tests.support.waiting import eventually

# As in Google's documentation and in common scripts.
MOUNT = """
DISK=/dev/disk/by-id/google-data
blkid $DISK || sudo mkfs.ext4 -q -m 0 -E lazy_itable_init=1,lazy_journal_init=1,discard $DISK
sudo mkdir -p /mnt/disks/data
mountpoint -q /mnt/disks/data || sudo mount -o discard,defaults $DISK /mnt/disks/data
echo boot >> /mnt/disks/data/boots
echo boots=$(wc -l < /mnt/disks/data/boots)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, watching: Watching) -> Iterator[ComputeServer]:
    folder = tmp_path_factory.mktemp("drives")
    if reason := why_not("root", root=str(folder)):
        pytest.skip(f"disks beside the boot disk need machines of mode root: {reason}")
    if not os.path.exists("/dev/loop-control"):
        pytest.skip("data disks need loop devices: /dev/loop-control is missing")
    with compute_server(folder, watching, mode="root") as opened:
        opened.cloud.set_zone("us-central1-a", grace_s=1.0)
        yield opened
    eventually(lambda: held(opened) == [], what="the release of all devices")


def held(server: ComputeServer) -> list[str]:
    """Return the files of this cloud behind loop devices."""
    found = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            found.append(path.read_text().strip())
        except OSError:
            continue  # it was removed meanwhile
    return [path for path in found if path.startswith(server.cloud.root)]


def is_held(client: Client) -> bool:
    return any(path.endswith(f"/{client.get('Z/disks/data')['id']}") for path in held(client.server))


def with_data(name: str, script: str = MOUNT, *, disk: str = "data", scheduling: Doc | None = None, **how: Any) -> Doc:
    """Return an instance with a data disk that is attached with these options."""
    made = machine(name, script=script, scheduling=scheduling or {})
    made["disks"].append({"source": f"{ZONE}/disks/{disk}", "deviceName": "data", **how})
    return made


def files(server: ComputeServer) -> list[str]:
    folder = Path(server.cloud.root) / "drives"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


@pytest.mark.full
def test_a_data_disk_survives_preemptions_and_machines(server: ComputeServer) -> None:
    client = Client(server, "kept")
    client.do("POST Z/disks", {"name": "data", "sizeGb": "10"})
    client.do("POST Z/instances", with_data("one", scheduling=SPOT))
    client.prints("one", "boots=1")
    client.do("POST Z/instances/one/simulateMaintenanceEvent")
    client.comes("one", "TERMINATED")
    client.do("POST Z/instances/one/start")
    client.prints("one", "boots=2")
    assert client.refused("POST Z/instances", with_data("two"))[1] == "resourceInUseByAnotherResource"
    client.do("DELETE Z/instances/one")
    client.do("POST Z/instances", with_data("two"))
    client.prints("two", "boots=3")
    client.do("DELETE Z/instances/two")
    client.do("DELETE Z/disks/data")
    assert client.names("Z/disks") == []


def test_a_disk_is_attached_resized_and_detached_while_the_machine_runs(server: ComputeServer) -> None:
    client = Client(server, "hot")
    client.do("POST Z/disks", {"name": "data", "sizeGb": "1"})
    watch = """
    for i in $(seq 400); do
        now=$(test -b /dev/sdb && sudo blockdev --getsize64 /dev/disk/by-id/google-data || echo none)
        test "$now" = "$last" || echo "size=$now"
        last=$now; sleep 0.05
    done
    """
    client.create("one", script=watch)
    client.prints("one", "size=none")
    client.do("POST Z/instances/one/attachDisk", {"source": f"{ZONE}/disks/data", "deviceName": "data"})
    client.prints("one", f"size={2**30}")
    client.do("POST Z/disks/data/resize", {"sizeGb": "3"})
    client.prints("one", f"size={3 * 2**30}")
    client.do("POST Z/instances/one/detachDisk?deviceName=data")
    eventually(lambda: client.serial("one").count("size=none") == 2, within_s=20, what="the removal of the disk")
    eventually(lambda: not is_held(client), what="the release of the device")


def test_entries_of_fstab_are_mounted_at_the_next_boot(server: ComputeServer) -> None:
    client = Client(server, "fstab")
    client.do("POST Z/disks", {"name": "data", "sizeGb": "1"})
    script = """
    if mountpoint -q /data; then echo found $(cat /data/kept); exit; fi
    sudo mkfs.ext4 -q /dev/sdb; sudo mkdir /data; sudo mount /dev/sdb /data; echo precious > /data/kept
    echo UUID=$(sudo blkid -s UUID -o value /dev/sdb) /data ext4 discard,defaults,nofail 0 2 | sudo tee -a /etc/fstab
    sudo shutdown -h now
    """
    client.do("POST Z/instances", with_data("one", script))
    client.comes("one", "TERMINATED")
    client.do("POST Z/instances/one/start")
    client.prints("one", "found precious")


def test_snapshots_and_images_of_a_data_disk_contain_its_files(server: ComputeServer) -> None:
    client = Client(server, "copies")
    client.do("POST Z/disks", {"name": "data", "sizeGb": "1"})
    before = set(files(server))
    client.do("POST Z/instances", with_data("one", MOUNT + "sync -f /mnt/disks/data; echo written"))
    client.prints("one", "written")
    client.do("POST Z/disks/data/createSnapshot", {"name": "snap"})
    assert client.refused("POST global/images", {"name": "img", "sourceDisk": f"{ZONE}/disks/data"})[0] == 400
    client.do("POST global/images?forceCreate=true", {"name": "img", "sourceDisk": f"{ZONE}/disks/data"})
    assert int(client.get("global/snapshots/snap")["storageBytes"]) > 0
    client.do("POST Z/disks", {"name": "second", "sizeGb": "2", "sourceSnapshot": "global/snapshots/snap"})
    client.do("POST Z/disks", {"name": "third", "sizeGb": "2", "sourceImage": "global/images/img"})
    assert client.refused("POST Z/disks", {"name": "less", "sizeGb": "0", "sourceImage": "global/images/img"})[0] == 400
    client.do("DELETE global/snapshots/snap")
    client.do("DELETE global/images/img")
    for name in ("second", "third"):
        client.do("POST Z/instances", with_data(f"on-{name}", disk=name))
        client.prints(f"on-{name}", "boots=2")
        client.do(f"DELETE Z/instances/on-{name}")
        client.do(f"DELETE Z/disks/{name}")
    client.do("DELETE Z/instances/one")
    client.do("DELETE Z/disks/data")
    assert set(files(server)) <= before


def test_a_disk_is_cloned_while_mounted_and_imaged_after_its_machine_stopped(server: ComputeServer) -> None:
    client = Client(server, "cloned")
    client.do("POST Z/disks", {"name": "data", "sizeGb": "1", "type": f"{ZONE}/diskTypes/pd-ssd"})
    client.do("POST Z/instances", with_data("one", MOUNT + "sync -f /mnt/disks/data; echo written"))
    client.prints("one", "written")
    client.do("POST Z/disks", {"name": "copy", "sourceDisk": f"{ZONE}/disks/data"})
    copy = client.get("Z/disks/copy")
    assert (copy["sizeGb"], copy["type"].rpartition("/")[2]) == ("1", "pd-ssd")
    client.do("POST Z/instances", with_data("two", disk="copy"))
    client.prints("two", "boots=2")
    image = {"name": "img", "sourceDisk": f"{ZONE}/disks/data"}
    assert client.refused("POST global/images", image)[1] == "resourceInUseByAnotherResource"
    client.do("POST Z/instances/one/stop")
    client.do("POST global/images", image)
    for name in ("one", "two"):
        client.do(f"DELETE Z/instances/{name}")


def test_many_machines_can_read_a_disk_and_none_can_write_it_meanwhile(server: ComputeServer) -> None:
    client = Client(server, "many")
    client.do("POST Z/disks", {"name": "data", "sizeGb": "1"})
    client.do("POST Z/instances", with_data("writer"))
    client.prints("writer", "boots=1")
    client.do("DELETE Z/instances/writer")
    read = """
    sudo mkdir -p /data; sudo mount -o ro /dev/disk/by-id/google-data /data; echo boots=$(wc -l < /data/boots)
    sudo dd if=/dev/zero of=/dev/sdb count=1 2>/dev/null || echo refused
    """
    for name in ("one", "two"):
        client.do("POST Z/instances", with_data(name, read, mode="READ_ONLY"))
        client.prints(name, "refused")
        assert "boots=1" in client.serial(name)
    assert client.refused("POST Z/instances", with_data("three"))[1] == "resourceInUseByAnotherResource"


def test_a_local_ssd_is_empty_after_a_stop(server: ComputeServer) -> None:
    client = Client(server, "scratch")
    script = """
    for d in /dev/disk/by-id/google-local-nvme-ssd-*; do readlink -f $d; blkid $d || mkfs.ext4 -q $d; done
    echo over
    """
    made = machine("one", script=script)
    made["disks"] += [{"type": "SCRATCH", "interface": "NVME", "autoDelete": True}] * 2
    client.do("POST Z/instances", made)
    client.prints("one", "over")
    assert "/dev/nvme0n1" in client.serial("one")
    assert "/dev/nvme0n2" in client.serial("one")
    client.do("POST Z/instances/one/reset")
    client.comes("one", "RUNNING")
    eventually(lambda: client.serial("one").count("over") == 2, within_s=20, what="the second boot")
    assert "TYPE=" not in client.serial("one")
    assert [disk["type"] for disk in client.get("Z/instances/one")["disks"]] == ["PERSISTENT", "SCRATCH", "SCRATCH"]
    client.do("DELETE Z/instances/one")
    assert client.names("Z/disks") == []


def test_a_killed_shim_leaves_no_loop_devices(server: ComputeServer) -> None:
    client = Client(server, "killed")
    client.do("POST Z/disks", {"name": "data", "sizeGb": "1"})
    client.do("POST Z/instances", with_data("doomed", scheduling={"automaticRestart": False}))
    client.prints("doomed", "boots=1")
    assert is_held(client)
    state = server.cloud._folder("doomed").state() or {}
    os.kill(state["shim_pid"], signal.SIGKILL)
    eventually(lambda: not is_held(client), within_s=20, what="the release of the device")


def test_a_data_disk_survives_a_failed_launch(server: ComputeServer) -> None:
    client = Client(server, "nocapacity")
    client.do("POST Z/disks", {"name": "data", "sizeGb": "1"})
    server.cloud.set_zone("us-central1-a", capacity=0)
    try:
        wanted = with_data("one", autoDelete=True)
        assert client.fails("POST Z/instances", wanted) == "ZONE_RESOURCE_POOL_EXHAUSTED"
    finally:
        server.cloud.set_zone("us-central1-a", capacity=None)
    assert client.names("Z/disks") == ["data"]


def test_a_symlink_on_the_machine_cannot_redirect_its_devices(server: ComputeServer, tmp_path: Path) -> None:
    """The host creates device nodes, while root on the machine controls /dev/disk."""
    client = Client(server, "links")
    client.do("POST Z/disks", {"name": "data", "sizeGb": "1"})
    client.create("one", script=f"ln -s {tmp_path} /dev/disk; echo laid")
    client.prints("one", "laid")
    client.do("POST Z/instances/one/attachDisk", {"source": f"{ZONE}/disks/data", "deviceName": "data"})
    client.prints("one", "could not attach its disks")
    assert list(tmp_path.iterdir()) == []


def test_a_machine_without_data_disks_logs_the_reason(tmp_path: Path, watching: Watching) -> None:
    with compute_server(tmp_path, watching) as opened:
        client = Client(opened, "plain")
        client.do("POST Z/disks", {"name": "data", "sizeGb": "1"})
        client.do("POST Z/instances", with_data("one", "echo started"))
        client.prints("one", "started")
        why = "only machines of mode `root` can have data disks"
        assert client.serial("one").count(f"could not attach disk google-data: {why}") == 1


@pytest.mark.full
def test_a_machine_image_contains_all_disks(server: ComputeServer) -> None:
    client, before = Client(server, "whole-machine"), files(server)
    client.do("POST Z/disks", {"name": "data", "sizeGb": "10"})
    client.do("POST Z/instances", with_data("one"))
    client.prints("one", "boots=1")
    client.do("POST Z/instances/one/stop")
    source = f"projects/{client.project}/{ZONE}/instances/one"
    client.do("POST global/machineImages", {"name": "all", "sourceInstance": source})
    client.do("DELETE Z/instances/one")
    client.do("DELETE Z/disks/data")
    client.do("POST Z/instances", {"name": "two", "sourceMachineImage": "global/machineImages/all"})
    client.prints("two", "boots=2")
    client.do("DELETE global/machineImages/all")
    client.do("DELETE Z/instances/two")
    for name in client.names("Z/disks"):
        client.do(f"DELETE Z/disks/{name}")
    assert files(server) == before
