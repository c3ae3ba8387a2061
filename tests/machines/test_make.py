"""Machines made by hand: nothing is left of one whose making failed, was interrupted, or was killed at any moment."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from outlast.clouds.cloud import LABEL_HAND, LABEL_WORKSPACE, Boot, Machine, Needs, Workshop
from outlast.clouds.local.cloud import LocalCloud
from outlast.errors import BadRequest, CloudUnreachable, NoCapacity, UsageError
from outlast.machines import care
from outlast.machines.make import Wish, finish, make
from outlast.supervisor.loop import Supervisor
from outlast.workspace.hand import Hand, Hands, HandView
from outlast.workspace.workspace import Workspace, open_workspace
from tests.machines.conftest import Bench
from tests.machines.doom import Doomed, Point, points_passed


def wish(name: str = "box", **needs: Any) -> Wish:
    return Wish(name=name, needs=Needs(type="local-1", **needs), boot=Boot(image=needs.get("image", "")))


def reaped(bench: Bench) -> list[str]:
    supervisor = Supervisor(open_workspace(str(bench.root / "workspace")), {"local": bench.cloud})
    supervisor.round()
    return [machine.name for machine in bench.cloud.machines()]


def test_it_carries_the_labels_by_which_it_is_told_from_an_orphan(bench: Bench) -> None:
    made, hand = make(bench.cloud, bench.hands, wish())
    assert made.labels == {LABEL_WORKSPACE: bench.hands.workspace.id, LABEL_HAND: hand.id}
    assert reaped(bench) == ["box"], "it is being made"
    finish(bench.hands, hand)
    assert reaped(bench) == ["box"], "it is made"
    bench.hands.remove("box")
    assert reaped(bench) == [], "nobody stands for it"


def life(bench: Bench, point: Point) -> None:
    """Make a machine and delete it, dying at the given point. In a process of its own."""
    cloud: Any = Doomed(LocalCloud(bench.cloud.root), {"launch", "delete"}, point)
    bucket: Any = Doomed(bench.hands.bucket, {"create", "put", "delete"}, point)
    hands = Hands(Workspace(bucket))
    _, hand = make(cloud, hands, wish())
    finish(hands, hand)
    care.delete(cloud, hands, "box")


def died_at(bench: Bench, at: int) -> list[str]:
    return points_passed(lambda point: life(bench, point), at)


def test_killed_at_any_moment_it_leaves_nothing_that_the_reaper_does_not_find(bench: Bench) -> None:
    assert bench.hands.workspace.id
    points = died_at(bench, -1)
    assert {"before launch", "after launch", "before create", "after delete"} <= set(points)
    assert bench.cloud.machines() == []
    ready = points.index("before launch")
    for at in range(len(points)):
        died_at(bench, at)
        left = reaped(bench)
        hand = bench.hands.find("box")
        # Left is only what is whole, and known as somebody's.
        assert left == [] or (hand is not None and hand.phase == "ready"), f"died at {at} ({points[at]}): {left}"
        assert at >= ready or left == []
        care.delete(bench.cloud, bench.hands, "box")


def test_after_a_killed_maker_the_name_is_free_again(bench: Bench) -> None:
    points = died_at(bench, -1)
    died_at(bench, points.index("after launch"))
    assert [machine.name for machine in bench.cloud.machines()] == ["box"]
    with pytest.raises(UsageError, match="there is a machine `box`"):
        make(bench.cloud, bench.hands, wish())
    assert reaped(bench) == []
    make(bench.cloud, bench.hands, wish())


class Stubborn:
    """A real cloud with one fault: what a call of that name does instead, the first `times`."""

    def __init__(self, real: LocalCloud, **faults: Callable[..., Any]) -> None:
        self.real = real
        self.faults = faults
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.real, name)
        if name not in self.faults:
            return method

        def call(*arguments: Any, **options: Any) -> Any:
            self.calls.append(name)
            return self.faults[name](len(self.calls), method, *arguments, **options)

        return call


def lost_answer(times: int) -> Callable[..., Any]:
    def fault(call: int, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        answer = method(*arguments, **options)
        if call <= times:
            raise CloudUnreachable("the answer was lost")
        return answer

    return fault


def test_a_lost_answer_doubles_nothing(bench: Bench) -> None:
    cloud: Any = Stubborn(bench.cloud, launch=lost_answer(1))
    made, _ = make(cloud, bench.hands, wish())
    assert [machine.name for machine in bench.cloud.machines()] == [made.name]


def test_a_cloud_that_never_answers_leaves_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlast.machines.make._PAUSE_S", 0.001)
    cloud: Any = Stubborn(bench.cloud, launch=lost_answer(100))
    with pytest.raises(CloudUnreachable):
        make(cloud, bench.hands, wish())
    assert bench.cloud.machines() == []
    assert bench.hands.all() == []


def test_a_maker_that_slept_until_it_was_given_up_takes_nothing_from_whoever_made_another(bench: Bench) -> None:
    def sleeps(_call: int, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        bench.hands.remove("box")
        finish(bench.hands, make(bench.cloud, bench.hands, wish())[1])
        return method(*arguments, **options)

    cloud: Any = Stubborn(bench.cloud, launch=sleeps)
    with pytest.raises(UsageError, match="somebody else made a machine `box`"):
        make(cloud, bench.hands, wish())
    assert reaped(bench) == ["box"], "the other one has its record, and stays"


def test_a_maker_that_slept_before_its_last_word_does_not_say_it_of_another_machine(bench: Bench) -> None:
    _, slept = make(bench.cloud, bench.hands, wish())
    care.delete(bench.cloud, bench.hands, "box")
    finish(bench.hands, make(bench.cloud, bench.hands, wish())[1])
    with pytest.raises(UsageError, match="`box` is another machine by now"):
        finish(bench.hands, slept)
    assert reaped(bench) == ["box"]


def test_ctrl_c_in_the_middle_leaves_nothing(bench: Bench) -> None:
    def interrupted(_call: int, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        method(*arguments, **options)
        raise KeyboardInterrupt

    cloud: Any = Stubborn(bench.cloud, launch=interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(cloud, bench.hands, wish())
    assert bench.cloud.machines() == []
    assert bench.hands.all() == []


def test_what_cannot_be_taken_back_is_told(bench: Bench) -> None:
    def broken(_call: int, _method: Callable[..., Any], *_arguments: Any, **_options: Any) -> Any:
        raise CloudUnreachable("the line is down")

    cloud: Any = Stubborn(bench.cloud, metadata=broken, delete=broken)
    said: list[str] = []
    with pytest.raises(CloudUnreachable):
        make(cloud, bench.hands, wish(), say=said.append)
    assert any("`outlast reap` deletes it" in line for line in said), said
    assert bench.hands.find("box") is not None, "the record stays: it is how the reaper knows"


def test_full_zones_are_passed_over_and_named_when_all_are_full(bench: Bench) -> None:
    bench.cloud.set_zone("local1-a", capacity=0)
    made, hand = make(bench.cloud, bench.hands, wish(spot=False, zones=("local1-a", "local1-b")))
    assert made.zone == "local1-b"
    finish(bench.hands, hand)
    bench.cloud.set_zone("local1-b", capacity=0)
    with pytest.raises(NoCapacity, match=r"local1-a: .*; local1-b: "):
        make(bench.cloud, bench.hands, wish("two", spot=False, zones=("local1-a", "local1-b")))
    assert [hand.name for hand in bench.hands.all()] == ["box"]


def test_two_who_want_the_same_name_at_once_get_one_machine(bench: Bench) -> None:
    results: list[Machine | UsageError] = []

    def want() -> None:
        try:
            results.append(make(bench.cloud, Hands(open_workspace(bench.hands.workspace.url)), wish())[0])
        except UsageError as problem:
            results.append(problem)

    threads = [threading.Thread(target=want) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(result, Machine) for result in results) == 1, results
    assert len(bench.cloud.machines()) == 1


def test_a_namesake_of_another_workspace_is_neither_taken_nor_deleted(bench: Bench) -> None:
    """Made between our look and our launch: the launch finds it, and it is not ours."""
    other = Hands(open_workspace(str(bench.root / "other")))

    def late(_call: int, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        make(bench.cloud, other, wish())
        return method(*arguments, **options)

    cloud: Any = Stubborn(bench.cloud, launch=late)
    with pytest.raises(UsageError, match="somebody else made a machine `box`"):
        make(cloud, bench.hands, wish())
    assert [machine.name for machine in bench.cloud.machines()] == ["box"]
    assert bench.hands.all() == []


@pytest.mark.parametrize("name", ["two words", "Big", "9lives", "a_b", "", "x" * 64, "-x", "a;b"])
def test_what_cannot_be_a_name_is_refused_before_anything_is_written(bench: Bench, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name of a machine"):
        make(bench.cloud, bench.hands, wish(name))
    assert bench.hands.all() == []


def test_an_image_that_was_deleted_is_told_with_the_next_step(bench: Bench) -> None:
    bench.machine()
    care.stop(bench.cloud, bench.hands, "box")
    bench.cloud.snapshot("box", "old-1", family="old")
    bench.cloud.delete_image("old-1")
    with pytest.raises(BadRequest, match="no image and no family of images `old`") as raised:
        make(bench.cloud, bench.hands, wish("two", image="old"))
    assert "outlast image list" in raised.value.hint


def test_the_supervisor_tells_by_the_store_how_long_a_maker_was_quiet(bench: Bench) -> None:
    hand = bench.hands.create(Hand(name="box", id="i", cloud="local"))
    view = bench.hands.view("box")
    assert view is not None
    assert not view.abandoned
    assert HandView(id="i", phase="making", quiet_s=1000.0).abandoned
    assert not HandView(id="i", phase="ready", quiet_s=1000.0).abandoned
    assert f":{os.getpid()}." in hand.by


def test_the_local_cloud_is_a_workshop(bench: Bench) -> None:
    cloud: Workshop = bench.cloud
    assert cloud.name == "local"
