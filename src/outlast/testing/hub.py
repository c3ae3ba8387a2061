"""The simulated world's time and its actors: one thread, one seed, every order of events that the dice allow.

Actors run the real, synchronous code as greenlets. They give way at every effect, so that anything may happen between
any two of them. An actor that dies is never heard of again: whatever its code still tries, raises.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

from greenlet import getcurrent, greenlet

Check = Callable[[], None]


class Died(BaseException):
    """The process was killed. No handler of the code under test may see it, so it is no Exception."""


class Actor:
    """A process of the simulated world: a supervisor, an agent on its machine, a user at a keyboard."""

    def __init__(self, hub: Hub, kind: str, name: str) -> None:
        self.hub = hub
        self.kind = kind
        self.name = name
        self.dead = False
        # Clocks of different machines disagree; nothing may rest on comparing them.
        self.skew_s = hub.dice.uniform(-300.0, 300.0)
        self.cut_until = 0.0
        self.points = 0

    def time(self) -> float:
        return self.hub.now + self.skew_s

    def monotonic(self) -> float:
        return self.hub.now

    def sleep(self, seconds: float) -> None:
        self.hub.sleep(seconds)
        if self.dead:
            raise Died

    def kill(self) -> None:
        self.dead = True

    @property
    def cut_off(self) -> bool:
        return self.hub.now < self.cut_until


class CrashPlan:
    """Kill an actor of one kind at its n-th point: each effect has a point before and a point after it."""

    def __init__(self, kind: str, *numbers: int) -> None:
        self.kind = kind
        self.numbers = set(numbers)
        self.seen = 0
        self.labels: list[str] = []
        self.struck: list[str] = []

    def strikes(self, actor: Actor, label: str) -> bool:
        if actor.kind != self.kind:
            return False
        number = self.seen
        self.seen += 1
        self.labels.append(label)
        if number in self.numbers:
            self.struck.append(f"{actor.name}: {label}")
            return True
        return False


class Hub:
    """Owns time, dice and who comes next."""

    def __init__(self, seed: int, *, crash: CrashPlan | None = None) -> None:
        self.seed = seed
        self.dice = random.Random(seed)
        self.now = 1_000_000.0
        self.crash = crash
        self.trace: list[str] = []
        self.failure: BaseException | None = None
        self._heap: list[tuple[float, int, greenlet]] = []
        self._order = 0
        self._ids = 0
        self._main = getcurrent()

    def id(self) -> str:
        """Unique, and the same in every replay."""
        self._ids += 1
        return f"{self._ids:08x}{self.seed & 0xFFFFFFFF:08x}"

    def log(self, text: str) -> None:
        self.trace.append(f"{self.now - 1_000_000.0:9.2f} {text}")

    def spawn(self, actor: Actor, work: Callable[[], None], *, after_s: float = 0.0) -> None:
        """Let the actor do the work, from then on."""

        def life() -> None:
            try:
                if not actor.dead:
                    work()
            except Died:
                self.log(f"{actor.name} died")
            except BaseException as problem:  # noqa: BLE001  a bug in the code under test, or a broken invariant
                self.failure = self.failure or problem

        self._schedule(greenlet(life, parent=self._main), after_s)

    def _schedule(self, who: greenlet, after_s: float) -> None:
        self._order += 1
        heapq.heappush(self._heap, (self.now + after_s, self._order, who))

    def sleep(self, seconds: float) -> None:
        """Give way; come back after so long."""
        self._schedule(getcurrent(), max(0.0, seconds))
        self._main.switch()

    def point(self, actor: Actor, label: str) -> None:
        """A place where the actor may be killed."""
        if actor.dead:
            raise Died
        actor.points += 1
        if self.crash is not None and self.crash.strikes(actor, label):
            actor.kill()
            raise Died

    def run(self, until: Callable[[], bool], *, limit_s: float) -> bool:
        """Let time pass until the condition holds; False if it does not within the limit. Raises what went wrong."""
        deadline = self.now + limit_s
        while self._heap and not until():
            at, _, who = heapq.heappop(self._heap)
            if at > deadline:
                heapq.heappush(self._heap, (at, self._order, who))
                self.now = deadline
                return False
            self.now = max(self.now, at)
            who.switch()
            if self.failure is not None:
                raise self.failure
        return until()
