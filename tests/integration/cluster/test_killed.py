"""A killed `up` or `down` leaves only things that `reap` finds, and both can be repeated."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from outlast.cluster.record import NodeState
from tests.support.cluster import Bench
from tests.support.waiting import eventually


def head_has_state(bench: Bench) -> bool:
    return any(bench.clusters.each(cluster.name, "state", NodeState) for cluster in bench.clusters.all())


MOMENTS: dict[str, Callable[[Bench], object]] = {
    "the record is written": lambda bench: bench.clusters.all(),
    "the token is a secret": lambda bench: list((bench.root / "cloud" / "secrets").glob("*")),
    "the head's own record is written": lambda bench: bench.clusters.machine_records.all(),
    "the head is launched": lambda bench: bench.cloud.machines(),
    "the head has reported its state": head_has_state,
}


def kill_up(bench: Bench, moment: str) -> None:
    process = bench.start("cluster", "up")
    eventually(lambda: MOMENTS[moment](bench), within_s=60, what=moment)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def without_broker(left: list[str]) -> list[str]:
    """Return leftovers except the broker, which ends by itself without a head."""
    return [each for each in left if "outlast.cluster.broker" not in each]


def reaped_whole(bench: Bench) -> None:
    """Check that `reap` lists and deletes machines, token and record."""
    (name,) = bench.clusters.names()
    assert f"take down {name}: " in bench.good("reap", "--dry-run")
    bench.good("reap")
    assert [machine.name for machine in bench.cloud.machines()] == []
    assert bench.clusters.names() == []
    eventually(lambda: not bench.left(), within_s=20, what="nothing left")


def test_a_token_without_a_machine_is_found_by_the_reaper(bench: Bench) -> None:
    kill_up(bench, "the token is a secret")
    reaped_whole(bench)
    assert list((bench.root / "cloud" / "secrets").glob("*")) == []


@pytest.mark.cluster
@pytest.mark.parametrize("moment", MOMENTS)
def test_down_deletes_the_leftovers_of_a_killed_up(bench: Bench, moment: str) -> None:
    kill_up(bench, moment)
    bench.good("cluster", "down", "--yes")
    eventually(lambda: not bench.left(), within_s=20, what="nothing left")


@pytest.mark.cluster
@pytest.mark.parametrize("moment", ["the head is launched", "the head has reported its state"])
def test_reap_finds_the_leftovers_of_a_killed_up(bench: Bench, moment: str) -> None:
    kill_up(bench, moment)
    reaped_whole(bench)


@pytest.mark.cluster
def test_a_killed_up_and_a_killed_down_can_be_repeated(bench: Bench) -> None:
    kill_up(bench, "the head has reported its state")
    machines = [machine.name for machine in bench.cloud.machines()]
    bench.good("cluster", "up")
    assert [machine.name for machine in bench.cloud.machines()] == machines
    # The name in the file is another one since; the file is the same.
    path = bench.project / "outlast.toml"
    path.write_text(path.read_text().replace('name = "small"', 'name = "other"'))
    process = bench.start("cluster", "down", "outlast.toml", "--yes")
    eventually(lambda: bench.clusters.all()[0].phase == "deleting", within_s=30, what="the start of the deletion")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    reaped_whole(bench)
