"""Time and actors of the simulated world: one thread, one seed, any order of events.

Actors run the real, synchronous code as greenlets. They yield at every effect, so that anything may happen between two
of them. After an actor died, every call of its code raises.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from greenlet import getcurrent, greenlet

Check = Callable[[], None]
# A world must end within this many switches, about fifty times as many as the busiest one needs. A limit in real
# seconds would fail on a slow computer.
STEPS_MAX = 10_000_000
M = TypeVar("M")


class Died(BaseException):
    """The process was killed. A BaseException, so that no handler of the code under test catches it."""


class Actor:
    """A process of the simulated world: a supervisor, an agent on its machine, or a user."""

    def __init__(self, scheduler: Scheduler, kind: str, name: str) -> None:
        self.scheduler = scheduler
        self.kind = kind
        self.name = name
        self.dead = False
        # Clocks of different machines differ; no decision may depend on comparing them.
        self.skew_s = scheduler.rng.uniform(-300.0, 300.0)
        self.cut_until = 0.0
        # The factor by which the store is slower for it.
        self.slowness = 1.0
        self.points = 0
        # Called when a crash plan kills the actor.
        self.crashed: Callable[[], None] = lambda: None

    def time(self) -> float:
        return self.scheduler.now + self.skew_s

    def monotonic(self) -> float:
        return self.scheduler.now

    def sleep(self, seconds: float) -> None:
        self.scheduler.sleep(seconds)
        if self.dead:
            raise Died

    def kill(self) -> None:
        self.dead = True

    @property
    def cut_off(self) -> bool:
        return self.scheduler.now < self.cut_until


class Parked:
    """A greenlet that waits for a wakeup or a timeout."""

    def __init__(self, scheduler: Scheduler, who: greenlet, seconds: float | None) -> None:
        self.scheduler = scheduler
        self.who = who
        self._timeout = None if seconds is None else scheduler._schedule(who, max(0.0, seconds))
        self._woken = False

    def wait(self) -> None:
        self.scheduler._main.switch()

    def wake(self) -> None:
        if self._woken:
            return
        self._woken = True
        if self._timeout is not None:
            self.scheduler._void.add(self._timeout)
        self.scheduler._schedule(self.who, 0.0)


class Mailbox(Generic[M]):
    """Messages to one greenlet of an actor, in order."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self._messages: deque[M] = deque()
        self._waiting: Parked | None = None

    def put(self, message: M) -> None:
        self._messages.append(message)
        if self._waiting is not None:
            self._waiting.wake()

    def get(self, until: float | None = None) -> M | None:
        """Return the next message; None if none arrives until then. Without a time, wait for one."""
        if not self._messages and (until is None or until > self.actor.scheduler.now):
            seconds = None if until is None else until - self.actor.scheduler.now
            self._waiting = self.actor.scheduler.park(seconds)
            self._waiting.wait()
            self._waiting = None
        if self.actor.dead:
            raise Died
        return self._messages.popleft() if self._messages else None


class SchedulerLock:
    """A lock between the greenlets of one actor; a thread lock would block them all."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.held = False

    def __enter__(self) -> None:
        while self.held:
            self.actor.sleep(0.1)
        self.held = True

    def __exit__(self, *_: object) -> None:
        self.held = False


class CrashPlan:
    """Kills an actor of one kind at its n-th point: each effect has a point before and a point after it."""

    def __init__(self, kind: str, *numbers: int) -> None:
        self.kind = kind
        self.numbers = set(numbers)
        self.seen = 0
        self.labels: list[str] = []
        self.crashed: list[str] = []

    def is_due(self, actor: Actor, label: str) -> bool:
        if actor.kind != self.kind:
            return False
        number = self.seen
        self.seen += 1
        self.labels.append(label)
        if number in self.numbers:
            self.crashed.append(f"{actor.name}: {label}")
            return True
        return False


class Scheduler:
    """Owns the time, the RNG and the order of the actors."""

    def __init__(self, seed: int, *, crash: CrashPlan | None = None) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now = 1_000_000.0
        self.crash = crash
        self.trace: list[str] = []
        self.failure: BaseException | None = None
        self._heap: list[tuple[float, int, greenlet]] = []
        # Order numbers of cancelled timeouts.
        self._void: set[int] = set()
        self._order = 0
        self._steps = 0
        self._ids = 0
        self._main = getcurrent()

    def id(self) -> str:
        """Return an id that is unique, and the same in every replay."""
        self._ids += 1
        return f"{self._ids:08x}{self.seed & 0xFFFFFFFF:08x}"

    def log(self, text: str) -> None:
        self.trace.append(f"{self.now - 1_000_000.0:9.2f} {text}")

    def spawn(self, actor: Actor, work: Callable[[], None], *, after_s: float = 0.0) -> None:
        """Start the actor's work after a delay."""

        def life() -> None:
            try:
                if not actor.dead:
                    work()
            except Died:
                self.log(f"{actor.name} died")
            except BaseException as problem:  # noqa: BLE001  a bug in the code under test, or a broken invariant
                self.failure = self.failure or problem

        self._schedule(greenlet(life, parent=self._main), after_s)

    def _schedule(self, who: greenlet, after_s: float) -> int:
        self._order += 1
        heapq.heappush(self._heap, (self.now + after_s, self._order, who))
        return self._order

    def sleep(self, seconds: float) -> None:
        """Yield for this long."""
        self._schedule(getcurrent(), max(0.0, seconds))
        self._main.switch()

    def park(self, seconds: float | None) -> Parked:
        """Return a wait of the current greenlet: `Parked.wait` begins it, and `Parked.wake` ends it early."""
        return Parked(self, getcurrent(), seconds)

    def point(self, actor: Actor, label: str) -> None:
        """Mark a point at which the actor may be killed."""
        if actor.dead:
            raise Died
        actor.points += 1
        if self.crash is not None and self.crash.is_due(actor, label):
            actor.kill()
            actor.crashed()
            raise Died

    def run(self, until: Callable[[], bool], *, limit_s: float) -> bool:
        """Let time pass until the condition is true; return False after the limit. Re-raises the first failure."""
        deadline = self.now + limit_s
        while self._heap and not until():
            self._steps += 1
            assert self._steps <= STEPS_MAX, f"the world did not end within {STEPS_MAX} steps"
            at, order, who = heapq.heappop(self._heap)
            if at > deadline:
                heapq.heappush(self._heap, (at, order, who))
                self.now = deadline
                return False
            if order in self._void:
                self._void.discard(order)
                continue
            self.now = max(self.now, at)
            who.switch()
            if self.failure is not None:
                raise self.failure
        return until()
