"""`up` and `down` killed on their way: nothing is left that `reap` does not find, and both can be repeated."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from outlast.cluster.record import NodeState
from tests.support.cluster import Bench
from tests.support.waiting import eventually


def head_says_something(bench: Bench) -> bool:
    return any(bench.clusters.each(cluster.name, "state", NodeState) for cluster in bench.clusters.all())


MOMENTS: dict[str, Callable[[Bench], object]] = {
    "the record is written": lambda bench: bench.clusters.all(),
    "the token is a secret": lambda bench: list((bench.root / "cloud" / "secrets").glob("*")),
    "the head's own record is written": lambda bench: bench.clusters.machine_records.all(),
    "the head is launched": lambda bench: bench.cloud.machines(),
    "the head has said something": head_says_something,
}


def kill_up(bench: Bench, moment: str) -> None:
    process = bench.start("cluster", "up")
    eventually(lambda: MOMENTS[moment](bench), within_s=60, what=moment)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def without_broker(left: list[str]) -> list[str]:
    """What is left but the broker, which sees by itself that it has no head any more."""
    return [each for each in left if "outlast.cluster.broker" not in each]


def reaped_whole(bench: Bench) -> None:
    """Machines, token and record; what is seen to be there is told before."""
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
def test_what_a_killed_up_has_left_is_taken_down(bench: Bench, moment: str) -> None:
    kill_up(bench, moment)
    bench.good("cluster", "down")
    eventually(lambda: not bench.left(), within_s=20, what="nothing left")


@pytest.mark.cluster
@pytest.mark.parametrize("moment", ["the head is launched", "the head has said something"])
def test_the_reaper_finds_what_a_killed_up_has_left(bench: Bench, moment: str) -> None:
    kill_up(bench, moment)
    reaped_whole(bench)


@pytest.mark.cluster
@pytest.mark.timeout(240)
def test_up_goes_on_where_it_was_killed_and_down_where_it_was_killed(bench: Bench) -> None:
    kill_up(bench, "the head has said something")
    machines = [machine.name for machine in bench.cloud.machines()]
    bench.good("cluster", "up")
    assert [machine.name for machine in bench.cloud.machines()] == machines
    # The name in the file is another one since; the file is the same.
    path = bench.project / "outlast.toml"
    path.write_text(path.read_text().replace('name = "small"', 'name = "other"'))
    process = bench.start("cluster", "down", "outlast.toml")
    eventually(lambda: bench.clusters.all()[0].phase == "deleting", within_s=30, what="the beginning of the end")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    reaped_whole(bench)
