"""Races and losses found by the simulation, each as a minimal story."""

from __future__ import annotations

from collections.abc import Callable

from outlast.code.bundle import CodeRecord
from outlast.runs import events as ev
from outlast.spec.parse import parse
from outlast.store.bucket import Entry
from outlast.submit.prepare import prepare
from outlast.submit.write import write_run
from outlast.supervisor.loop import Supervisor
from outlast.supervisor.plan import plan
from outlast.supervisor.world import Launch, MarkLost, Reap, Step
from outlast.testing.faults import NONE
from outlast.testing.scheduler import Actor, CrashPlan
from outlast.testing.simagent import SimAgent
from outlast.testing.simulate import Simulation, WorldResult
from outlast.workspace import Heartbeat, Workspace


class Absent(SimAgent):
    """The test plays the agent."""

    def boot(self) -> None:
        pass


class Interrupted(Workspace):
    """Something happens right after the heartbeats are listed."""

    then: Callable[[], None] | None = None

    def heartbeats(self) -> dict[str, Entry]:
        found = super().heartbeats()
        then, self.then = self.then, None
        if then is not None:
            then()
        return found


class Played(Simulation):
    agent_type = Absent
    workspace_type = Interrupted


class Player:
    """A run whose first attempt is placed after one round, and launched after two; the test goes on from here."""

    def __init__(self, world: Simulation, actor: Actor, *, rounds: int) -> None:
        self.world, self.actor = world, actor
        self.workspace = world.workspace_of(actor)
        assert isinstance(self.workspace, Interrupted)
        clouds = {"local": world.cloud_view_type(world.cloud, actor)}
        spec = parse({"name": "run", "command": "train"})
        prepared = prepare(self.workspace, clouds, spec, CodeRecord(kind="none"), environment={})
        self.run = write_run(self.workspace, clouds, prepared).run
        self.supervisor: Supervisor = world._make_supervisor(actor)
        self.supervisor.observer.workspace = self.workspace
        for _ in range(rounds):
            self.supervisor.round()

    def report(self, event: ev.Event) -> None:
        assert self.workspace.story(self.run).append(event, nonce=self.world.scheduler.id())

    def start(self) -> None:
        self.workspace.write_heartbeat(self.run, Heartbeat(attempt=1))
        self.report(ev.Started(attempt=1))

    def plan(self) -> tuple[Step, ...]:
        return plan(self.supervisor.observer.observe(self.actor.time()))


def play(scene: Callable[[Player], None], *, rounds: int = 2) -> None:
    world = Played(1, faults=NONE)
    actor = Actor(world.scheduler, "player", "player")
    done: list[bool] = []

    def act() -> None:
        scene(Player(world, actor, rounds=rounds))
        done.append(True)

    world.scheduler.spawn(actor, act)
    world.scheduler.run(lambda: bool(done), limit_s=3600.0)
    assert done


def test_an_attempt_that_started_after_the_heartbeats_were_listed_is_not_silent() -> None:
    """Its machine took twenty seconds to boot: longer than a command may be silent, shorter than a boot may last."""

    def scene(player: Player) -> None:
        player.actor.sleep(20.0)
        player.workspace.then = player.start  # type: ignore[attr-defined]
        assert not any(isinstance(step, MarkLost) for step in player.plan())

    play(scene)


def test_an_attempt_that_is_over_is_not_launched_again_without_a_wakeup() -> None:
    """The answer to its launch was lost, and its machine has gone by now."""

    def scene(player: Player) -> None:
        player.start()
        player.report(ev.Finished(attempt=1))
        assert not any(isinstance(step, Launch) for step in player.plan())

    play(scene, rounds=1)


def test_the_machine_of_a_run_with_a_lost_request_is_left_alone() -> None:
    def scene(player: Player) -> None:
        player.start()
        player.world.store.damage(f"runs/{player.run}/spec.json", None)
        fresh = player.world._make_supervisor(player.actor)
        assert not any(isinstance(step, Reap) for step in plan(fresh.observer.observe(player.actor.time())))
        assert list(fresh.observer.damaged) == [player.run]

    play(scene)


def checked(result: WorldResult) -> WorldResult:
    assert not result.problem, "\n".join([*result.trace, result.problem])
    return result


def cut_off(at_s: float) -> WorldResult:
    """A power cut at that time; the supervisor comes after twenty seconds."""
    world = Simulation(1, faults=NONE, storm_s=60.0)
    world.add_user(steps=6, pace_s=2.0, at_s=1.0)
    world.add_supervisor(after_s=20.0)
    world.keep_supervised()
    fate = Actor(world.scheduler, "fate", "fate")

    world.scheduler.spawn(fate, world.storms.cut_power, after_s=at_s)
    return checked(world.run())


def test_a_power_cut_before_any_supervisor_saw_a_run_does_not_lose_it() -> None:
    assert cut_off(10.0).endings == {"finished": 1}


def test_a_power_cut_between_the_wakeup_and_the_first_machine_does_not_lose_the_run() -> None:
    for tenths in range(200, 240):
        assert cut_off(tenths / 10).endings == {"finished": 1}, tenths


def cancelled_unseen(crash: CrashPlan) -> WorldResult:
    """A run with a secret that is cancelled before any supervisor has seen it."""
    world = Simulation(1, faults=NONE, crash=crash, storm_s=60.0)
    world.add_user(steps=6, pace_s=2.0, at_s=1.0, cancel_after_s=1.0, secret="hush")
    world.add_supervisor(after_s=20.0)
    world.keep_supervised()
    return world.run()


def test_the_secrets_of_a_run_cancelled_before_its_first_supervisor_are_deleted() -> None:
    counted = CrashPlan("supervisor", 10**9)
    checked(cancelled_unseen(counted))
    for number in range(min(60, len(counted.labels))):
        checked(cancelled_unseen(CrashPlan("supervisor", number)))
