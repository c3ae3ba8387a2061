"""The faults that hit processes, machines and objects of a simulated world."""

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

# Prefixes of objects that may be damaged. Outputs, code and the ledger have no second copy and stay intact.
_BREAKABLE = ("heartbeats/", "leases/", "runs/")
_OF_RUNS = ("checkpoints", "parts", "ran")
_STORIES = ("story", "spec.json")


class Storm:
    """The faults of one world, at random times with the configured means."""

    def __init__(self, world: Simulation) -> None:
        self.world = world
        self.scheduler = world.scheduler
        self.cloud = world.cloud

    def begin(self) -> None:
        faults = self.world.faults
        faults_by_mean: list[tuple[float, Callable[[], None]]] = [
            (faults.preempt_every_s, self._preempt_one),
            (faults.stockout_every_s, self._stock_out),
            (faults.kill_supervisor_every_s, self._kill_supervisor),
            (faults.kill_agent_every_s, self._kill_agent),
            (faults.pause_every_s, self._pause_one),
            (faults.damage_every_s, self._damage_one),
            (faults.power_cut_every_s, self.cut_power),
        ]
        for every_s, inject in faults_by_mean:
            if every_s:
                self._repeat(every_s, inject)
        if faults.stale_writer_every_s:
            self._write_stale_events(faults.stale_writer_every_s)

    def _repeat(self, every_s: float, inject: Callable[[], None]) -> None:
        actor = Actor(self.scheduler, "fault", inject.__name__)

        def repeat() -> None:
            while True:
                actor.sleep(self.scheduler.rng.expovariate(1.0 / every_s))
                if self.scheduler.now > self.world.storm_over:
                    return
                inject()

        self.scheduler.spawn(actor, repeat)

    # Machines and processes

    def _preempt_one(self) -> None:
        machines = self.world.running()
        if machines:
            notice = self.scheduler.rng.random() < self.world.faults.notice
            self.cloud.preempt(self.scheduler.rng.choice(machines), notice=notice)

    def _stock_out(self) -> None:
        zone = self.scheduler.rng.choice(ZONES)
        self.cloud.out_until[zone] = self.scheduler.now + self.scheduler.rng.uniform(5.0, 120.0)

    def _kill_supervisor(self) -> None:
        if self.world.supervisors:
            self.scheduler.rng.choice(self.world.supervisors).kill()

    def _kill_agent(self) -> None:
        machines = [m for m in self.world.running() if m.agent is not None]
        if machines:
            machine = self.scheduler.rng.choice(machines)
            assert machine.agent is not None
            machine.agent.kill()
            machine.incidents.append("agent killed")
            # Either the boot script switches the machine off, or it was killed, too.
            if self.scheduler.rng.random() < 0.5:
                self.cloud.stop(machine, "powered off by itself")

    def _pause_one(self) -> None:
        """Cut a process off from the network, for up to longer than every lease."""
        agents = {m.agent: m for m in self.world.running() if m.agent is not None}
        actors = [*self.world.supervisors, *agents]
        if actors:
            actor = self.scheduler.rng.choice(actors)
            actor.cut_until = self.scheduler.now + self.scheduler.rng.uniform(5.0, 200.0)
            if actor in agents:
                agents[actor].incidents.append("cut off")

    # Objects

    def _damage_one(self) -> None:
        keys = [key for prefix in _BREAKABLE for key in self.world.store.keys(prefix) if self._may_break(key)]
        if not keys:
            return
        # Choose the kind first: there are many parts and few leases.
        kinds = sorted({_kind(key) for key in keys})
        kind = self.scheduler.rng.choice(kinds)
        key = self.scheduler.rng.choice([key for key in keys if _kind(key) == kind])
        body = self._broken(self.world.store.objects[key][0])
        if body is None and "/story/" in key and key == self.world.store.keys(key.rpartition("/")[0] + "/")[-1]:
            return  # readers cannot detect the loss of the last event; only the store can prevent it
        self.scheduler.log(f"damage {key}: {'lost' if body is None else f'{len(body)} bytes left'}")
        self.world.store.damage(key, body)
        self._blame(key)

    def _may_break(self, key: str) -> bool:
        if not key.startswith("runs/"):
            return True
        place = key.split("/")[2]
        return place in _OF_RUNS or (self.world.faults.damage_stories and place in _STORIES)

    def _broken(self, body: bytes) -> bytes | None:
        """Return the body with a flipped bit, truncated or emptied; None if it is lost."""
        how = self.scheduler.rng.choice(["flip", "truncate", "empty", "lose"])
        if how == "lose":
            return None
        if how == "empty" or not body:
            return b""
        at = self.scheduler.rng.randrange(len(body))
        if how == "truncate":
            return body[:at]
        return body[:at] + bytes([body[at] ^ (1 << self.scheduler.rng.randrange(8))]) + body[at + 1 :]

    def _blame(self, key: str) -> None:
        """Record the damage for the machines of the run: it explains why a healthy one is given up."""
        run = key.split("/")[1]
        for machine in self.cloud.alive():
            if machine.facts.labels.get("outlast-run") == run:
                machine.incidents.append(f"damaged: {key}")

    def cut_power(self) -> None:
        """Cut the power of the one computer that runs everything. Writes that are not durable are lost."""
        self.scheduler.log("power cut")
        for machine in self.cloud.alive():
            machine.incidents.append("power cut")
            if machine.agent is not None:
                machine.agent.kill()
            self.cloud.stop(machine, "power cut")
        for actor in [*self.world.supervisors, *self.world.users]:
            actor.kill()
        self.world.store.cut_power()

    # Writers

    def _write_stale_events(self, every_s: float) -> None:
        """Append illegal events through a stale view; the story must refuse them."""
        actor = Actor(self.scheduler, "stale writer", "stale writer")

        def write() -> None:
            while True:
                actor.sleep(self.scheduler.rng.expovariate(1.0 / every_s))
                if self.scheduler.now > self.world.storm_over:
                    return
                run = self.scheduler.rng.choice(sorted(self.world.witness.runs) or [""])
                if not run:
                    continue
                try:
                    story = self.world.workspace_of(actor).story(run)
                    state = story.refresh()
                    for attempt in state.attempts[-2:]:
                        event = _illegal_event(attempt, alive=state.alive)
                        # Only if the rules fail to reject it: a moment later it may be legal.
                        if not story.why_illegal(state, event):
                            story.append(event, nonce=self.scheduler.id())
                except OutlastError:
                    pass

        self.scheduler.spawn(actor, write)


def _illegal_event(attempt: Attempt, *, alive: bool) -> Event:
    """Return an event that is illegal now."""
    if attempt.phase == "over" or not alive:
        return ev.Saved(attempt=attempt.number, checkpoint="stale", step=None, bytes=0)
    return ev.Released(attempt=attempt.number, cost_usd=0.0)


def _kind(key: str) -> str:
    return key.split("/")[2] if key.startswith("runs/") else key.split("/")[0]
