"""A run with a crash before and after every effect: all guarantees hold after the restart."""

from __future__ import annotations

import inspect
import random

import pytest

from outlast.clouds.cloud import Cloud, Requirements
from outlast.store.bucket import Bucket
from outlast.supervisor.world import Step
from outlast.testing.faults import NONE
from outlast.testing.scheduler import Actor, CrashPlan, Scheduler
from outlast.testing.sim_store import SimBucket, SimStore
from outlast.testing.simcloud import SimCloud, SimCloudView
from outlast.testing.simulate import Simulation, WorldResult

NEVER = 10**9


def play(crash: CrashPlan) -> tuple[Simulation, WorldResult]:
    """A run with a secret that is preempted twice, once with and once without notice, a run that is cancelled, and one
    whose budget is spent before it is done."""
    world = Simulation(5, faults=NONE, crash=crash, storm_s=150.0)
    world.add_user(steps=14, pace_s=3.0, at_s=1.0, secret="hush")
    world.add_user(steps=40, pace_s=2.0, at_s=2.0, cancel_after_s=70.0)
    world.add_user(steps=12, pace_s=20.0, at_s=3.0, cost_usd=0.05)
    world.add_supervisor()
    world.keep_supervised()
    injector = Actor(world.scheduler, "injector", "injector")

    def inject() -> None:
        for after_s, notice in ((35.0, True), (45.0, False)):
            injector.sleep(after_s)
            for machine in world.running()[:1]:
                world.cloud.preempt(machine, notice=notice)

    world.scheduler.spawn(injector, inject)
    return world, world.run()


def points_of(kind: str) -> list[str]:
    crash = CrashPlan(kind, NEVER)
    _, result = play(crash)
    assert result.problem == ""
    assert result.endings == {"finished": 1, "cancelled": 1, "failed": 1}
    return crash.labels


def survive(kind: str, *numbers: int) -> None:
    crash = CrashPlan(kind, *numbers)
    world, result = play(crash)
    struck = ", ".join(crash.crashed)
    story = "\n".join(result.trace)
    assert not result.problem, f"{kind} died at {numbers} ({struck}):\n{story}\n{result.problem}"
    if kind != "submit":  # a submit that died may have asked for nothing; the others lose nothing
        assert result.endings.get("finished") == 1, f"{kind} died at {numbers} ({struck}): {result.endings}"
    assert not world.cloud.secrets, f"{kind} died at {numbers} ({struck}): secrets are left"


# A third of them in every run of the tests, all of them in `make soak`.
@pytest.mark.parametrize("kind", ["submit", "agent"])
@pytest.mark.parametrize("third", [0, *(pytest.param(third, marks=pytest.mark.soak) for third in (1, 2))])
def test_survives_a_crash_at_every_point(kind: str, third: int) -> None:
    labels = points_of(kind)
    assert len(labels) > 10
    for number in range(third, len(labels), 3):
        survive(kind, number)


@pytest.mark.full
@pytest.mark.parametrize("quarter", range(4))
def test_survives_a_crash_of_the_supervisor_at_every_point(quarter: int) -> None:
    labels = points_of("supervisor")
    # Rounds in which nothing happens renew the lease and no more: one in ten of those points stands for the rest.
    telling = [n for n, label in enumerate(labels) if not label.endswith(" put") or n % 10 == 0]
    for number in telling[quarter::4]:
        survive("supervisor", number)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["submit", "agent", "supervisor"])
def test_survives_pairs_of_crashes(kind: str) -> None:
    count = len(points_of(kind))
    rng = random.Random(kind)
    for _ in range(60):
        first = rng.randrange(count)
        survive(kind, first, first + rng.randrange(1, 30))


def test_every_kind_of_step_has_a_crash() -> None:
    world, _ = play(CrashPlan("supervisor", NEVER))
    applied = {type(step).__name__ for step in world.steps_applied}
    # The story's append, and a deletion: the other steps die in them. Distributed runs and fleets have separate worlds.
    harmless = {"Wait", "Move", "ReleaseMember", "Reap", "LoseNode", "RetireNodes", "Locate"}
    assert applied | harmless == {kind.__name__ for kind in Step.__args__}


# Methods that change nothing. Whatever else a protocol offers is an effect and must have its two points.
READS = {
    Bucket: {"get", "read_into", "head", "list", "children", "download", "get_range", "now"},
    Cloud: {"offers", "machines", "machine", "serial", "images"},
}


def calls() -> dict[tuple[type, str], object]:
    """Each effect once, on a world with one machine."""
    scheduler = Scheduler(1)
    actor = Actor(scheduler, "tester", "tester")
    store, cloud = SimStore(scheduler), SimCloud(scheduler)
    bucket, view = SimBucket(store, actor), SimCloudView(cloud, actor)
    from outlast.clouds.cloud import Boot

    offer = view.offers(Requirements())[0]

    def launch() -> None:
        view.launch(offer, "m", boot=Boot(), labels={"outlast-run": "r", "outlast-attempt": "1"})

    return {
        (Bucket, "put"): lambda: bucket.put("a", b"1"),
        (Bucket, "create"): lambda: bucket.create("b", b"1"),
        (Bucket, "write"): lambda: bucket.write("d", b"1"),
        (Bucket, "make_durable"): lambda: bucket.make_durable(["d"]),
        (Bucket, "remove_stale_writes"): lambda: bucket.remove_stale_writes(older_s=1.0),
        (Bucket, "upload"): lambda: bucket.upload("c", __file__),
        (Bucket, "delete"): lambda: bucket.delete("a"),
        (Bucket, "delete_many"): lambda: bucket.delete_many(["b"]),
        (Cloud, "launch"): launch,
        (Cloud, "set_metadata"): lambda: view.set_metadata("m", {"a": "b"}),
        (Cloud, "preempt"): lambda: view.preempt("m"),
        (Cloud, "stop"): lambda: view.stop("m"),
        (Cloud, "start"): lambda: view.start("m"),
        (Cloud, "delete"): lambda: view.delete("m"),
        (Cloud, "put_secrets"): lambda: view.put_secrets("s", {"a": "b"}),
        (Cloud, "drop_secrets"): lambda: view.drop_secrets("s"),
        "scheduler": scheduler,
        "actor": actor,
    }  # type: ignore[dict-item]


def test_a_new_effect_must_have_points() -> None:
    known = calls()
    scheduler, actor = known.pop("scheduler"), known.pop("actor")  # type: ignore[call-overload]
    for protocol, reads in READS.items():
        methods = {name for name, _ in inspect.getmembers(protocol, inspect.isfunction) if not name.startswith("_")}
        effects = methods - reads
        assert effects == {name for kind, name in known if kind is protocol}, "an effect without points"
    plan = CrashPlan("tester", NEVER)
    scheduler.crash = plan

    def life() -> None:
        for call in known.values():
            before = len(plan.labels)
            call()  # type: ignore[operator]
            seen = plan.labels[before:]
            assert [label.split()[0] for label in seen] == ["before", "after"], seen

    scheduler.spawn(actor, life)
    scheduler.run(lambda: False, limit_s=60.0)
    assert len(plan.labels) == 2 * len(known)
