"""`machine keep` that is killed at any moment, also during a move: the next process completes it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlast.clouds.local.cloud import LocalCloud
from outlast.machines import lifecycle
from outlast.machines.keepalive.loop import KeepaliveLoop
from outlast.machines.keepalive.world import KeepaliveOptions
from outlast.records.machines import MachineRecords
from outlast.supervisor.loop import Supervisor
from outlast.workspace import Workspace
from tests.integration.machines.crash_points import Doomed, Point, points_passed
from tests.support.machines import Bench

ZONE = "local1-a"
EFFECTS = {"launch", "start", "stop", "delete", "snapshot", "delete_image", "set_metadata", "admit"}


def strand(bench: Bench) -> None:
    """Return a preempted machine with data on its disk, in a zone without capacity."""
    bench.cloud.set_zone(ZONE, capacity=None)
    bench.machine(zones=(ZONE,))
    bench.cloud.set_zone(ZONE, capacity=0)
    bench.cloud.stop("box")
    (Path(bench.cloud.home_path("box")) / "precious").write_text("kept")


def precious(bench: Bench) -> str:
    """Return the content of the machine's disk, or of a layer below it."""
    folder = Path(bench.cloud.root, "machines", "box")
    layers = json.loads((folder / "machine.json").read_text())["layers"]
    homes = [
        Path(bench.cloud.home_path("box")),
        *(Path(bench.cloud.root, "layers", layer, "top/root") for layer in layers),
    ]
    return next(((home / "precious").read_text() for home in homes if (home / "precious").exists()), "")


def life(bench: Bench, point: Point) -> None:
    cloud: Any = Doomed(LocalCloud(bench.cloud.root), EFFECTS, point)
    bucket: Any = Doomed(bench.machine_records.bucket, {"create", "put", "delete"}, point)
    KeepaliveLoop(cloud, MachineRecords(Workspace(bucket)), "box").keep(
        KeepaliveOptions(), stop=threading.Event(), once=True
    )


def check(bench: Bench, where: str) -> None:
    machine = bench.cloud.machine("box")
    assert (machine.status, machine.zone != ZONE) == ("running", True), where
    assert precious(bench) == "kept", where
    assert [image.name for image in bench.cloud.images()] == ["base"], where
    machine_record = bench.machine_records.find("box")
    assert machine_record is not None
    assert 0 < machine_record.extra_usd < 0.001, f"{where}: the cost of its former life, once"
    supervisor = Supervisor(bench.machine_records.workspace, {"local": bench.cloud})
    assert supervisor.round() == (), where


# A third of the points is enough for every day; the soak dies at all of them.
@pytest.mark.full
@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in (1, 2))])
def test_killed_at_any_moment_of_a_move_it_keeps_the_disk_and_leaves_nothing_billed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    fast = msgspec.structs.replace(LocalCloud.traits, refused_s=0.001, keepalive_poll_s=0.02)
    monkeypatch.setattr(LocalCloud, "traits", fast)
    strand(bench)
    points = points_passed(lambda point: life(bench, point), -1)
    wanted = {"before start", "after snapshot", "after delete", "after launch", "after delete_image", "before put"}
    assert wanted <= set(points), points
    check(bench, "undisturbed")
    for at in range(len(points))[part::3]:
        lifecycle.delete(bench.cloud, bench.machine_records, "box")
        strand(bench)
        points_passed(lambda point, at=at: life(bench, point), at)  # type: ignore[misc]
        KeepaliveLoop(bench.cloud, bench.machine_records, "box").keep(
            KeepaliveOptions(), stop=threading.Event(), once=True
        )
        check(bench, f"died at {at} ({points[at]})")
