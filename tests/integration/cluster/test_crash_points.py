"""`up` and `down` are killed before and after every effect. The workspace, the local cloud's machines and the broker
are real; the test writes the head's `ready` state itself.

`test_killed.py` has the same with real Ray, at fewer moments.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from outlast.cli.app import call
from outlast.clouds.local.cloud import LocalCloud
from outlast.cluster import boot, broker
from outlast.cluster.down import take_down
from outlast.cluster.machines import ClusterMachines
from outlast.cluster.record import Cluster, Clusters, HeadAddress, NodeState
from outlast.cluster.up import ClusterOptions, Up
from outlast.errors import UsageError
from outlast.spec.cluster import parse_cluster
from outlast.workspace import Workspace
from tests.integration.cluster.traces import Traces
from tests.integration.machines.crash_points import Doomed, Point, points_passed
from tests.support.cluster import Bench, benched
from tests.support.waiting import eventually

SPEC = parse_cluster(
    {"cluster": {"name": "small", "head": {"type": "local-1"}, "workers": {"cpu": {"type": "local-1"}}}},
    name="small",
    source="here",
)
EFFECTS = {"launch", "delete", "put_secrets", "drop_secrets", "set_metadata", "admit"}
BROKER = b"outlast.cluster.broker"
STORED = {"create", "put", "delete", "write", "upload"}


class DoomedCloud(LocalCloud):
    """The real one, whose effects are points at which its caller may die."""

    point: Point

    def __getattribute__(self, name: str) -> Any:
        if name in EFFECTS:
            return getattr(Doomed(super(), EFFECTS, self.point), name)
        return super().__getattribute__(name)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with benched(tmp_path_factory.mktemp("points")) as bench, pytest.MonkeyPatch.context() as patch:
        for name in ("OUTLAST_WORKSPACE", "OUTLAST_LOCAL_CLOUD", "OUTLAST_LOCAL_MODE"):
            patch.setenv(name, bench.environment[name])
        # In the place of the node's program, which would start Ray.
        patch.setattr(boot, "_SCRIPT", "#!/bin/sh\nexec sleep 1000\n")
        yield bench


def order() -> ClusterOptions:
    return ClusterOptions(spec=SPEC, source="here", file="host:/here", who="ada")


class Talkative(Clusters):
    """Reports the head as ready as soon as its state is read."""

    def get(self, cluster: str, part: str, name: str, kind: type[Any]) -> Any:
        if part == "state":
            self.write_head(cluster, HeadAddress(machine=name, address="10.0.0.1"))
            return NodeState(machine=name, phase="ready")
        return super().get(cluster, part, name, kind)


def doomed(bench: Bench, point: Point) -> tuple[Clusters, LocalCloud]:
    cloud = DoomedCloud(bench.cloud.root, mode=bench.cloud.mode)
    cloud.point = point
    bucket: Any = Doomed(bench.clusters.bucket, STORED, point)
    for name in ("start", "stop"):
        real = getattr(broker, name)

        def between(*argv: Any, real: Callable[..., Any] = real, name: str = name) -> Any:
            point(f"before {name} of the broker")
            found = real(*argv)
            point(f"after {name} of the broker")
            return found

        setattr(broker, name, between)  # this process is a child that is about to end
    return Talkative(Workspace(bucket)), cloud


def life_of_up(bench: Bench, point: Point) -> None:
    clusters, cloud = doomed(bench, point)
    Up(clusters, cloud, order(), report=lambda _: None).run()


def life_of_down(bench: Bench, point: Point) -> None:
    clusters, cloud = doomed(bench, point)
    (found,) = clusters.all()
    take_down(clusters, {"local": cloud}, found, report=lambda _: None)


def up(bench: Bench) -> Cluster:
    return Up(Talkative(bench.clusters.workspace), bench.cloud, order(), report=lambda _: None).run()


def end(bench: Bench, where: str) -> None:
    """Take down whatever exists, and check that nothing remains."""
    traces = Traces(bench.root / "cloud")
    traces.remember()
    for found in bench.clusters.all():
        take_down(bench.clusters, {"local": bench.cloud}, found, report=lambda _: None)
        assert not os.path.exists(broker.folder(found.id)), where
    eventually(lambda: not bench.left() and not traces.left(), within_s=20, what=f"nothing left, {where}")


def reap(bench: Bench, where: str) -> None:
    traces = Traces(bench.root / "cloud")
    traces.remember()
    assert call(["reap"]) == 0
    assert [machine.name for machine in bench.cloud.machines()] == [], where
    # A broker sees by itself that it has no head any more.
    eventually(lambda: not traces.left(BROKER), within_s=20, what=f"no trace of machines, {where}")


def some(points: list[str], part: int, parts: int) -> list[int]:
    return [number for number in range(len(points)) if number % parts == part]


# One of them is in every run of the tests, all of them in `make clusters`.
PARTS = 6


@pytest.mark.full
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.cluster) for part in range(1, PARTS))])
def test_after_a_killed_up_everything_is_reaped_or_continues(bench: Bench, part: int) -> None:
    points = points_passed(lambda point: life_of_up(bench, point), -1)
    assert len(points) > 20
    end(bench, "without a crash")
    for number in some(points, part, PARTS):
        where = f"after a death at {number}, {points[number]}"
        points_passed(lambda point: life_of_up(bench, point), number)
        # A cluster whose record is `ready` has an owner, even if its `up` died before it reported that.
        if number // PARTS % 2 and [found.phase for found in bench.clusters.all()] != ["ready"]:
            reap(bench, where)
            assert bench.clusters.names() == [], where
        else:
            made = up(bench)
            assert (made.phase, [machine.name for machine in bench.cloud.machines()]) == ("ready", [made.head]), where
        end(bench, where)


@pytest.mark.full
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.cluster) for part in range(1, PARTS))])
def test_after_a_killed_down_everything_is_reaped_or_deleted(bench: Bench, part: int) -> None:
    up(bench)
    points = points_passed(lambda point: life_of_down(bench, point), -1)
    assert len(points) > 10
    end(bench, "without a crash")
    for number in some(points, part, PARTS):
        where = f"after a death at {number}, {points[number]}"
        up(bench)
        points_passed(lambda point: life_of_down(bench, point), number)
        if number // PARTS % 2 and [found.phase for found in bench.clusters.all()] == ["deleting"]:
            with pytest.raises(UsageError, match="being taken down"):
                up(bench)
            reap(bench, where)
            assert bench.clusters.names() == [], where
        end(bench, where)


def silence(bench: Bench, head: str, seconds: float) -> None:
    """Set the age of the head's last state, by the store's clock."""
    path = bench.root / "workspace" / "clusters" / "small" / "state" / head
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def test_workers_whose_head_is_gone_are_reaped_long_before_their_lease_ends(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    made = up(bench)
    bench.clusters.put("small", "state", made.head, NodeState(machine=made.head, phase="ready"))
    worker = ClusterMachines(bench.clusters, made, bench.cloud).launch("cpu", {})
    # A live head counts, even if it has been silent for long.
    silence(bench, made.head, 3000.0)
    assert call(["reap", "--dry-run"]) == 0
    assert "no machines to delete" in capsys.readouterr().out
    bench.cloud.delete(made.head)
    bench.clusters.put("small", "state", made.head, NodeState(machine=made.head, phase="ready"))
    assert call(["reap", "--dry-run"]) == 0
    assert "no machines to delete" in capsys.readouterr().out, "it spoke just now: `up` may be on its way"

    silence(bench, made.head, 40.0)
    assert call(["plan"]) == 0
    assert "nothing to do" in capsys.readouterr().out, "a supervisor waits as long as the workers do"
    assert call(["reap", "--dry-run"]) == 0
    assert f"{worker.name}" in (output := capsys.readouterr().out)
    assert "the head of its cluster `small` is gone" in output
    silence(bench, made.head, SPEC.orphan_s)
    assert call(["plan"]) == 0
    assert worker.name in capsys.readouterr().out
    reap(bench, "after the head died")
    end(bench, "after the head died")
