"""What the agent watches while the command runs: the notice, the run's end, a hang. Each tells through one queue."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

import msgspec

from outlast.agent.attempt import Attempt
from outlast.agent.instance import Instance, Notice
from outlast.errors import OutlastError
from outlast.workspace.workspace import Pulse


class Exited(msgspec.Struct, frozen=True):
    code: int
    at: float


class Noticed(msgspec.Struct, frozen=True):
    notice: Notice


class Warned(msgspec.Struct, frozen=True):
    """The cloud thinks that the notice may come."""

    notice: Notice


class Over(msgspec.Struct, frozen=True):
    """The run is over, this attempt was given up, or the workspace has been out of reach for too long."""

    why: str


class Hung(msgspec.Struct, frozen=True):
    why: str


class Fenced(msgspec.Struct, frozen=True):
    """Somebody else may have what only one may have: not a moment longer."""

    why: str


Happening = Exited | Noticed | Warned | Over | Hung | Fenced


class Watch:
    """Threads that turn the world's doings into happenings."""

    def __init__(self, attempt: Attempt, instance: Instance, *, beat_s: float, unreachable_s: float) -> None:
        self.attempt = attempt
        self.instance = instance
        self.beat_s = beat_s
        self.unreachable_s = unreachable_s
        self.happenings: queue.Queue[Happening] = queue.Queue()
        self.phase = "booting"
        self.note = ""
        self.holds = ""
        self.progress: Callable[[], int | None] = lambda: None
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        for work in (self._beat, self._listen):
            self.spawn(work)

    def spawn(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name=work.__name__, daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        self._stop.set()

    def pause(self, seconds: float) -> bool:
        """Rest for a while; True if it is over."""
        return self._stop.wait(seconds)

    def _beat(self) -> None:
        """The pulse, and with it the question whether this attempt is still wanted: the dead man's switch."""
        heard_at, limited = time.monotonic(), False
        while True:
            try:
                why = self.attempt.over()
                if not limited and not why and (limit := self.attempt.limit()) is not None:
                    limited = True
                    self.happenings.put(Noticed(limit))
                if not why:  # a pulse would bring a run that is over back among the live ones
                    self.attempt.workspace.beat(self.attempt.run, self._pulse())
                heard_at = time.monotonic()
            except OutlastError as problem:
                why = ""
                if time.monotonic() - heard_at > self.unreachable_s:
                    why = f"the workspace was out of reach for {self.unreachable_s:.0f} s: {problem.message}"
            if why and not self._stop.is_set():
                self.happenings.put(Over(why))
                return
            if self._stop.wait(self.beat_s):
                return

    def _pulse(self) -> Pulse:
        return Pulse(
            attempt=self.attempt.number,
            phase=self.phase,
            step=self.progress(),
            length=self.attempt.story.state.length,
            note=self.note,
            holds=self.holds,
        )

    def _listen(self) -> None:
        while not self._stop.is_set():
            try:
                notice = self.instance.wait_for_notice(60.0)
            except OSError:
                self._stop.wait(1.0)
                continue
            if notice is not None and notice.early:
                self.happenings.put(Warned(notice))
            elif notice is not None:
                self.happenings.put(Noticed(notice))
                return

    def watch_for_hang(self, signs: Callable[[], object], *, after_s: float) -> None:
        """`signs` is a value that changes while the command makes progress."""

        def watch() -> None:
            seen, changed_at = signs(), time.monotonic()
            while not self._stop.wait(min(1.0, after_s / 10)):
                now = signs()
                if now != seen:
                    seen, changed_at = now, time.monotonic()
                elif time.monotonic() - changed_at > after_s:
                    self.happenings.put(Hung(f"no sign of progress for {after_s:.0f} s"))
                    return

        self.spawn(watch)
