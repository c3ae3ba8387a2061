"""Runs slow effects beside the rounds: at most one per target, a bounded number per lane, and no queue.

A round starts an effect and continues; a later round records its result. A step whose target is busy, or whose lane is
full, is not started: the next round plans it again from a fresh observation, so no decision gets stale in a queue.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec

from outlast.errors import CloudUnreachable
from outlast.runs.events import Event
from outlast.supervisor.world import Launch, MarkLost, Step

# Effects that run at a time in one lane. Most of them wait for a cloud.
_PER_LANE = 32
_POLL_S = 0.02

Work = Callable[[], Event | None]
Start = Callable[[Callable[[], None]], None]


class SlowEffect(msgspec.Struct, frozen=True, kw_only=True):
    """A slow step, and the work that carries it out on any thread."""

    step: Step
    # The machine or run that it changes.
    target: str
    cloud: str
    work: Work

    @property
    def lane(self) -> tuple[str, bool]:
        """Launches never wait behind deletions, nor one cloud behind another that hangs."""
        return self.cloud, isinstance(self.step, Launch | MarkLost)


class EffectResult(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an effect: an event to append, or the error that it failed with."""

    step: Step
    event: Event | None = None
    problem: Exception | None = None


def inline(work: Callable[[], None]) -> None:
    """Run the effect within the round that plans it."""
    work()


def in_thread(work: Callable[[], None]) -> None:
    """Run the effect in a new thread. It never delays the end of the process: a successor repeats the step."""
    threading.Thread(target=work, name="effect", daemon=True).start()


class Effects:
    """The effects in flight of one supervisor. Any thread may call any method."""

    # The errors that become results. A bug becomes one, too: an effect has no caller, so the next round raises it.
    caught: type[Exception] = Exception

    def __init__(self, start: Start = inline, *, per_lane: int = _PER_LANE) -> None:
        self._start = start
        self._per_lane = per_lane
        self._lock = threading.Lock()
        # Both by target. An effect is in flight until its result is collected.
        self._in_flight: dict[str, SlowEffect] = {}
        self._results: dict[str, EffectResult] = {}

    @property
    def busy(self) -> bool:
        """Whether any effect runs, or has a result that was not collected."""
        return bool(self._in_flight)

    @property
    def succeeded(self) -> bool:
        """Whether a result waits that changes what the next round sees. A failure does not: retries keep their pace."""
        with self._lock:
            return any(result.problem is None for result in self._results.values())

    def begin(self, effect: SlowEffect) -> bool:
        """Start the effect; False if its target is busy or its lane is full."""
        with self._lock:
            lane = sum(other.lane == effect.lane for other in self._in_flight.values())
            if effect.target in self._in_flight or lane >= self._per_lane:
                return False
            self._in_flight[effect.target] = effect
        try:
            self._start(lambda: self._run(effect))
        except RuntimeError as problem:  # the system has no more threads
            self._finish(effect, problem=CloudUnreachable(f"could not start a thread: {problem}"))
        return True

    def collect(self) -> list[EffectResult]:
        """Return the results since the last call, and free their targets."""
        with self._lock:
            results, self._results = self._results, {}
            for target in results:
                del self._in_flight[target]
        return list(results.values())

    def wait(self, for_s: float) -> None:
        """Wait until nothing runs, for at most `for_s` seconds."""
        give_up_at = time.monotonic() + for_s
        while len(self._results) < len(self._in_flight) and time.monotonic() < give_up_at:
            time.sleep(_POLL_S)

    def _run(self, effect: SlowEffect) -> None:
        try:
            event = effect.work()
        except self.caught as problem:
            self._finish(effect, problem=problem)
        else:
            self._finish(effect, event=event)

    def _finish(self, effect: SlowEffect, *, event: Event | None = None, problem: Exception | None = None) -> None:
        with self._lock:
            self._results[effect.target] = EffectResult(step=effect.step, event=event, problem=problem)
