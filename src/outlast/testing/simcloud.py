"""The cloud of the simulated world: it keeps the protocol, and nothing that the protocol does not promise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from outlast.clouds.cloud import Boot, Image, Machine, Offer, Requirements
from outlast.clouds.traits import BUILT_IN, DEFAULT_CLOUD
from outlast.errors import BadRequest, CloudUnreachable, Denied, NoCapacity, NotFound, Throttled
from outlast.testing.faults import WorldFaults
from outlast.testing.scheduler import Actor, Scheduler
from outlast.testing.simgang import SimCollective

T = TypeVar("T")
ZONES = ("east-a", "east-b", "west-a")
_PRICE = {"east-a": 1.0, "east-b": 1.1, "west-a": 1.2}
GRACE_S = 30.0


class SimMachine:
    """The true state of one machine."""

    def __init__(self, facts: Machine, boot: Boot) -> None:
        self.facts = facts
        self.boot = boot
        self.agent: Actor | None = None
        self.noticed_at = 0.0
        # Sends a notice to its agent.
        self.notify: Callable[[], None] = lambda: None
        # The faults that hit it or its agent, which explain why it did not finish.
        self.incidents: list[str] = []
        self.deleted_at = 0.0
        # The supervisor that deleted it; empty if its agent or its cloud did.
        self.deleted_by = ""
        self.listed_from = 0.0
        self.listed_until = 0.0

    @property
    def exists(self) -> bool:
        return not self.deleted_at

    def set(self, **changes: object) -> None:
        self.facts = msgspec.structs.replace(self.facts, **changes)

    def seen(self, now: float) -> Machine:
        return msgspec.structs.replace(self.facts, seen_at=now)

    def billed_s(self, now: float) -> float:
        """Return the seconds that the machine ran."""
        until = min(t for t in (self.facts.stopped_at or now, self.deleted_at or now))
        return max(0.0, until - self.facts.created_at)


class SimCloud:
    """All machines of a world. `launched` boots an agent; the other callbacks are for the witness."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.faults = WorldFaults()
        self.history: list[SimMachine] = []
        self.by_name: dict[str, SimMachine] = {}
        self.out_until: dict[str, float] = {}
        # The number of machines that a zone has room for; without an entry, any number.
        self.capacity: dict[str, int] = {}
        # The exchange between the ranks of a distributed training, by run and attempt.
        self.collectives: dict[tuple[str, int], SimCollective] = {}
        self.denied = ""
        self.calls: dict[str, int] = {}
        self.launched: Callable[[SimMachine], None] = lambda _: None
        self.created: Callable[[SimMachine], None] = lambda _: None
        # Called before a process deletes a machine; when an attempt begins to train; after each step.
        self.deleting: Callable[[SimMachine, Actor], None] = lambda _machine, _actor: None
        self.began: Callable[[str, int, str], None] = lambda _run, _attempt, _checkpoint: None
        self.worked: Callable[[str], None] = lambda _run: None
        self.secrets: dict[str, dict[str, str]] = {}

    def alive(self) -> list[SimMachine]:
        return [machine for machine in self.by_name.values() if machine.exists]

    def create(self, offer: Offer, name: str, boot: Boot, labels: Mapping[str, str]) -> SimMachine:
        existing = self.by_name.get(name)
        if existing is not None and existing.exists:
            return existing
        if self.scheduler.now < self.out_until.get(offer.zone, 0.0):
            raise NoCapacity(f"{offer.zone} has no capacity for {offer.type}")
        self.check_room(offer.zone, 1)
        rng, faults = self.scheduler.rng, self.faults
        machine = SimMachine(
            Machine(
                name=name,
                cloud=DEFAULT_CLOUD,
                zone=offer.zone,
                type=offer.type,
                spot=offer.spot,
                status="pending",
                labels=dict(labels),
                created_at=self.scheduler.now,
                price_usd_per_hour=offer.price_usd_per_hour,
            ),
            boot,
        )
        machine.listed_from = self.scheduler.now + rng.uniform(0, faults.listing_lag_s)
        self.by_name[name] = machine
        self.history.append(machine)
        self.created(machine)
        self._end_of_life(machine)
        if rng.random() < faults.launch_half_done:
            machine.incidents.append("half created")
            return machine  # it exists and is billed, but never boots
        if rng.random() < faults.dies_booting:
            machine.incidents.append("died booting")
            self.stop(machine, "preempted")
            return machine
        machine.set(status="running")
        self.launched(machine)
        return machine

    def check_room(self, zone: str, count: int) -> None:
        used = sum(m.facts.zone == zone and m.facts.status != "stopped" for m in self.alive())
        if used + count > self.capacity.get(zone, used + count):
            raise NoCapacity(f"{zone} has room for {self.capacity[zone]} machines, {used} are used")

    def _end_of_life(self, machine: SimMachine) -> None:
        """Delete a machine after its `life_max_s`, as a cloud does."""

        def expire() -> None:
            if machine.exists and self.by_name[machine.facts.name] is machine:
                machine.incidents.append("end of life")
                self.remove(machine.facts.name)

        # Longer lives outlast the world.
        if 0 < machine.boot.life_max_s < 86400.0:
            clock = Actor(self.scheduler, "cloud", f"life of {machine.facts.name}")
            self.scheduler.spawn(clock, expire, after_s=machine.boot.life_max_s)

    def stop(self, machine: SimMachine, why: str) -> None:
        """Stop a machine; it still exists."""
        if machine.exists and machine.facts.status != "stopped":
            machine.set(status="stopped", why=why, stopped_at=self.scheduler.now)
            self._unplug(machine)

    def remove(self, name: str, *, by: str = "") -> None:
        machine = self.by_name.get(name)
        if machine is None or not machine.exists:
            return
        machine.deleted_at, machine.deleted_by = self.scheduler.now, by
        machine.listed_until = self.scheduler.now + self.scheduler.rng.uniform(0, self.faults.listing_lag_s)
        self._unplug(machine)

    def _unplug(self, machine: SimMachine) -> None:
        """Kill the agent of a machine, or make it a zombie: it is cut off, trains on, and comes back later."""
        agent = machine.agent
        if agent is None or agent.dead:
            return
        if self.scheduler.rng.random() < self.faults.zombie:
            agent.cut_until = self.scheduler.now + self.scheduler.rng.uniform(0, 120.0)
            self.scheduler.log(f"{agent.name} is a zombie")
        else:
            agent.kill()

    def preempt(self, machine: SimMachine, *, notice: bool) -> None:
        if machine.facts.status != "running":
            return
        self.scheduler.log(f"preempt {machine.facts.name} {'with' if notice else 'without'} notice")
        machine.incidents.append("preempted")
        if not notice:
            self.stop(machine, "preempted")
            return
        if not machine.noticed_at:
            machine.noticed_at = self.scheduler.now
            machine.notify()
            power = Actor(self.scheduler, "cloud", f"power of {machine.facts.name}")

            def cut() -> None:
                self.stop(machine, "preempted")

            late_s = 0.0
            if self.faults.late_power_s and machine.agent is not None:
                late_s = self.scheduler.rng.uniform(0, self.faults.late_power_s)
                machine.agent.slowness = 10.0
            self.scheduler.spawn(power, cut, after_s=GRACE_S + late_s)


def machines_of(placed: dict[str, Any]) -> list[str]:
    """Return the machines of a `Placed` event, in the order of their ranks."""
    return list(placed["members"]) or [placed["machine"]]


class SimCloudView:
    """One actor's view of the cloud: the `Cloud` protocol."""

    name = DEFAULT_CLOUD
    traits = BUILT_IN[DEFAULT_CLOUD]

    def __init__(self, cloud: SimCloud, actor: Actor) -> None:
        self.cloud = cloud
        self.actor = actor

    def _read(self, label: str, act: Callable[[], T]) -> T:
        return self._effect(label, act, points=False)

    def _effect(self, label: str, act: Callable[[], T], *, points: bool = True) -> T:
        scheduler, faults, actor = self.cloud.scheduler, self.cloud.faults, self.actor
        self.cloud.calls[label] = self.cloud.calls.get(label, 0) + 1
        if points:
            scheduler.point(actor, f"before {label}")
        actor.sleep(scheduler.rng.expovariate(1.0 / max(0.05, faults.store_slow_s)))
        if actor.cut_off or scheduler.rng.random() < faults.cloud_fails:
            raise CloudUnreachable(f"the cloud did not answer {label}")
        if scheduler.rng.random() < faults.cloud_throttles:
            raise Throttled(f"too many requests: {label}")
        result = act()
        if points:
            scheduler.point(actor, f"after {label}")
        if scheduler.rng.random() < faults.cloud_loses_answers:
            raise CloudUnreachable(f"the response to {label} was lost")
        return result

    def _slowly(self, act: Callable[[], T]) -> T:
        """Apply a change that takes the cloud a while to begin, and longer to confirm."""
        if not self.cloud.faults.effects_slow_s:
            return act()
        slow_s = self.cloud.scheduler.rng.expovariate(1.0 / self.cloud.faults.effects_slow_s)
        self.actor.sleep(slow_s / 4)
        result = act()
        self.actor.sleep(slow_s * 3 / 4)
        return result

    def offers(self, needs: Requirements) -> Sequence[Offer]:
        zones = [zone for zone in ZONES if not needs.zones or zone in needs.zones]
        factor = 1.0 if needs.spot else 3.0
        return [
            Offer(
                cloud=DEFAULT_CLOUD,
                region=zone.split("-")[0],
                zone=zone,
                type="m1",
                cpus=4,
                memory_gb=16,
                spot=needs.spot,
                price_usd_per_hour=_PRICE[zone] * factor,
                on_demand_usd_per_hour=_PRICE[zone] * 3.0,
            )
            for zone in zones
        ]

    def launch(self, offer: Offer, name: str, *, boot: Boot, labels: Mapping[str, str]) -> Machine:
        def act() -> Machine:
            if self.cloud.denied:
                raise Denied(self.cloud.denied)
            return self.cloud.create(offer, name, boot, labels).seen(self.cloud.scheduler.now)

        return self._effect("launch", lambda: self._slowly(act))

    def launch_all(
        self, offer: Offer, names: Sequence[str], *, boot: Boot, labels: Mapping[str, str]
    ) -> Sequence[Machine]:
        """Create all or none. A request that fails on the way leaves some, which the next one completes."""

        def act() -> Sequence[Machine]:
            known = self.cloud.by_name
            new = [name for name in names if name not in known or not known[name].exists]
            if new and self.cloud.scheduler.now < self.cloud.out_until.get(offer.zone, 0.0):
                raise NoCapacity(f"{offer.zone} has no capacity for {offer.type}")
            self.cloud.check_room(offer.zone, len(new))
            rng = self.cloud.scheduler.rng
            if len(new) > 1 and rng.random() < self.cloud.faults.launch_partial:
                for name in new[: rng.randrange(1, len(new))]:
                    self.cloud.create(offer, name, boot, labels)
                raise CloudUnreachable("the connection broke while the machines were created")
            return [self.cloud.create(offer, name, boot, labels).seen(self.cloud.scheduler.now) for name in names]

        return self._effect("launch", lambda: self._slowly(act))

    def machines(self, labels: Mapping[str, str] | None = None) -> Sequence[Machine]:
        def act() -> Sequence[Machine]:
            now, rng = self.cloud.scheduler.now, self.cloud.scheduler.rng
            seen = [
                machine.seen(now)
                for machine in self.cloud.by_name.values()
                if (machine.exists and machine.listed_from <= now) or now < machine.listed_until
            ]
            if self.cloud.faults.listing_partial and rng.random() < self.cloud.faults.listing_partial:
                seen = [machine for machine in seen if rng.random() < 0.7]
            required = (labels or {}).items()
            return [machine for machine in seen if all(machine.labels.get(k) == v for k, v in required)]

        return self._read("machines", act)

    def machine(self, name: str) -> Machine:
        def act() -> Machine:
            machine = self.cloud.by_name.get(name)
            if machine is None or not machine.exists:
                raise NotFound(f"no machine `{name}`")
            return machine.seen(self.cloud.scheduler.now)

        return self._read("machine", act)

    def delete(self, name: str) -> None:
        def act() -> None:
            machine = self.cloud.by_name.get(name)
            if machine is not None and machine.exists:
                self.cloud.deleting(machine, self.actor)
            self.cloud.remove(name, by=self.actor.name)

        self._effect("delete machine", lambda: self._slowly(act))

    def stop(self, name: str) -> None:
        self._effect("stop", lambda: self.cloud.stop(self._known(name), "stopped"))

    def _known(self, name: str) -> SimMachine:
        machine = self.cloud.by_name.get(name)
        if machine is None or not machine.exists:
            raise NotFound(f"no machine `{name}`")
        return machine

    def start(self, name: str) -> None:
        def act() -> None:
            machine = self._known(name)
            if machine.facts.status == "stopped":
                machine.set(status="running", why="", stopped_at=0.0)
                self.cloud.launched(machine)

        self._effect("start", act)

    def preempt(self, name: str, *, notice: bool = True) -> None:
        def act() -> None:
            machine = self._known(name)
            if machine.facts.status != "running":
                raise BadRequest(f"`{name}` is {machine.facts.status}")
            self.cloud.preempt(machine, notice=notice)

        self._effect("preempt", act)

    def set_metadata(self, name: str, items: Mapping[str, str]) -> None:
        self._effect("set metadata", lambda: self._known(name).boot.metadata.update(items))

    def serial(self, name: str) -> str:
        return self._read("serial", lambda: f"{self._known(name).facts.name} booted\n")

    def images(self) -> Sequence[Image]:
        return [Image(name="base", cloud=DEFAULT_CLOUD)]

    def put_secrets(self, name: str, values: Mapping[str, str], *, supervisors: bool = False) -> None:
        self._effect("put secrets", lambda: self.cloud.secrets.update({name: dict(values)}))

    def drop_secrets(self, name: str) -> None:
        self._effect("drop secrets", lambda: self.cloud.secrets.pop(name, None) and None)


class SimChoosingView(SimCloudView):
    """A cloud that chooses among several pools itself: the last one with capacity, which a supervisor expects least."""

    def launch_any(self, offers: Sequence[Offer], name: str, *, boot: Boot, labels: Mapping[str, str]) -> Machine:
        now, out_until = self.cloud.scheduler.now, self.cloud.out_until
        free = [offer for offer in offers if now >= out_until.get(offer.zone, 0.0)]
        return self.launch((free or list(offers))[-1], name, boot=boot, labels=labels)
