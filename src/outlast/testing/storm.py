"""Everything that a simulated world does to the processes, machines and objects in it, from the seed's dice."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from outlast.errors import OutlastError
from outlast.runs import events as ev
from outlast.runs.events import Event
from outlast.runs.state import Attempt
from outlast.testing.scheduler import Actor
from outlast.testing.simcloud import ZONES

if TYPE_CHECKING:
    from outlast.testing.simulate import Simulation

# What breaks, by where it is. Outputs, code and the ledger are left alone: no second copy of them exists.
_BREAKABLE = ("heartbeats/", "leases/", "runs/")
_OF_RUNS = ("checkpoints", "parts", "ran")
_STORIES = ("story", "spec.json")


class Storm:
    """The blows of one world, each at random times with the mean that its faults give."""

    def __init__(self, world: Simulation) -> None:
        self.world = world
        self.hub = world.hub
        self.cloud = world.cloud

    def begin(self) -> None:
        faults = self.world.faults
        blows: list[tuple[float, Callable[[], None]]] = [
            (faults.preempt_every_s, self._preempt_one),
            (faults.stockout_every_s, self._stock_out),
            (faults.kill_supervisor_every_s, self._kill_supervisor),
            (faults.kill_agent_every_s, self._kill_agent),
            (faults.pause_every_s, self._pause_one),
            (faults.damage_every_s, self._damage_one),
            (faults.power_cut_every_s, self.cut_power),
        ]
        for every_s, blow in blows:
            if every_s:
                self._strike(every_s, blow)
        if faults.meddler_every_s:
            self._meddle(faults.meddler_every_s)

    def _strike(self, every_s: float, blow: Callable[[], None]) -> None:
        actor = Actor(self.hub, "fate", blow.__name__)

        def strike() -> None:
            while True:
                actor.sleep(self.hub.dice.expovariate(1.0 / every_s))
                if self.hub.now > self.world.storm_over:
                    return
                blow()

        self.hub.spawn(actor, strike)

    # Machines and processes

    def _preempt_one(self) -> None:
        machines = self.world.running()
        if machines:
            notice = self.hub.dice.random() < self.world.faults.notice
            self.cloud.preempt(self.hub.dice.choice(machines), notice=notice)

    def _stock_out(self) -> None:
        zone = self.hub.dice.choice(ZONES)
        self.cloud.out_until[zone] = self.hub.now + self.hub.dice.uniform(5.0, 120.0)

    def _kill_supervisor(self) -> None:
        if self.world.supervisors:
            self.hub.dice.choice(self.world.supervisors).kill()

    def _kill_agent(self) -> None:
        machines = [m for m in self.world.running() if m.agent is not None]
        if machines:
            machine = self.hub.dice.choice(machines)
            assert machine.agent is not None
            machine.agent.kill()
            machine.blows.append("agent killed")
            # Either the boot script sees it and switches the machine off, or that process was killed, too.
            if self.hub.dice.random() < 0.5:
                self.cloud.stop(machine, "powered off by itself")

    def _pause_one(self) -> None:
        """Cut a process off for longer than every lease: SIGSTOP, a sleeping laptop, a cut cable."""
        agents = {m.agent: m for m in self.world.running() if m.agent is not None}
        actors = [*self.world.supervisors, *agents]
        if actors:
            actor = self.hub.dice.choice(actors)
            actor.cut_until = self.hub.now + self.hub.dice.uniform(5.0, 200.0)
            if actor in agents:
                agents[actor].blows.append("cut off")

    # Objects

    def _damage_one(self) -> None:
        keys = [key for prefix in _BREAKABLE for key in self.world.store.keys(prefix) if self._may_break(key)]
        if not keys:
            return
        # First the kind of object, then one of them: there are many parts and few leases.
        kinds = sorted({_kind(key) for key in keys})
        kind = self.hub.dice.choice(kinds)
        key = self.hub.dice.choice([key for key in keys if _kind(key) == kind])
        body = self._broken(self.world.store.objects[key][0])
        if body is None and "/story/" in key and key == self.world.store.keys(key.rpartition("/")[0] + "/")[-1]:
            return  # no reader can tell that a story had one more event: only the store can promise that
        self.hub.log(f"damage {key}: {'lost' if body is None else f'{len(body)} bytes left'}")
        self.world.store.damage(key, body)
        self._blame(key)

    def _may_break(self, key: str) -> bool:
        if not key.startswith("runs/"):
            return True
        place = key.split("/")[2]
        return place in _OF_RUNS or (self.world.faults.damage_stories and place in _STORIES)

    def _broken(self, body: bytes) -> bytes | None:
        """Return the body with a bit flipped, cut short or emptied; None if it is lost."""
        how = self.hub.dice.choice(["flip", "truncate", "empty", "lose"])
        if how == "lose":
            return None
        if how == "empty" or not body:
            return b""
        at = self.hub.dice.randrange(len(body))
        if how == "truncate":
            return body[:at]
        return body[:at] + bytes([body[at] ^ (1 << self.hub.dice.randrange(8))]) + body[at + 1 :]

    def _blame(self, key: str) -> None:
        """A lost heartbeat and an unreadable story explain why a run gives up a healthy machine."""
        run = key.split("/")[1]
        for machine in self.cloud.alive():
            if machine.facts.labels.get("outlast-run") == run:
                machine.blows.append(f"damaged: {key}")

    def cut_power(self) -> None:
        """Cut the power of the one computer that everything runs on. Writes that were not synced are lost."""
        self.hub.log("power cut")
        for machine in self.cloud.alive():
            machine.blows.append("power cut")
            if machine.agent is not None:
                machine.agent.kill()
            self.cloud.stop(machine, "power cut")
        for actor in [*self.world.supervisors, *self.world.people]:
            actor.kill()
        self.world.store.cut_power()

    # Writers

    def _meddle(self, every_s: float) -> None:
        """A writer with a stale view tries to append events that the story must refuse."""
        actor = Actor(self.hub, "meddler", "meddler")

        def meddle() -> None:
            while True:
                actor.sleep(self.hub.dice.expovariate(1.0 / every_s))
                if self.hub.now > self.world.storm_over:
                    return
                run = self.hub.dice.choice(sorted(self.world.witness.runs) or [""])
                if not run:
                    continue
                try:
                    story = self.world.workspace_of(actor).story(run)
                    state = story.refresh()
                    for attempt in state.attempts[-2:]:
                        event = _unlawful(attempt, alive=state.alive)
                        # Only if the story's own rules let it pass: a moment later it may be lawful.
                        if not story.why_illegal(state, event):
                            story.append(event, nonce=self.hub.id())
                except OutlastError:
                    pass

        self.hub.spawn(actor, meddle)


def _unlawful(attempt: Attempt, *, alive: bool) -> Event:
    """Return an event that is illegal now."""
    if attempt.phase == "over" or not alive:
        return ev.Saved(attempt=attempt.number, checkpoint="stale", step=None, bytes=0)
    return ev.Released(attempt=attempt.number, cost_usd=0.0)


def _kind(key: str) -> str:
    return key.split("/")[2] if key.startswith("runs/") else key.split("/")[0]
