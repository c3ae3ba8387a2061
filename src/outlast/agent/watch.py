"""Watches for the notice, the end of the run and a hang, in threads that put events into one queue."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable

from outlast.agent.attempt import AttemptWriter
from outlast.agent.effects import AgentEvent, CommandHung, NoticeReceived, RunOver, WarningReceived
from outlast.agent.instance import Instance
from outlast.errors import OutlastError
from outlast.spec.spec import Spec
from outlast.workspace import Heartbeat

_IDLE_S = 3600.0


class AgentWatch:
    """Threads that report events of the machine and of the story."""

    def __init__(self, attempt: AttemptWriter, instance: Instance, *, beat_s: float, unreachable_s: float) -> None:
        self.attempt = attempt
        self.instance = instance
        self.beat_s = beat_s
        self.unreachable_s = unreachable_s
        self.events: queue.Queue[AgentEvent] = queue.Queue()
        self.phase: Callable[[], str] = lambda: "booting"
        self.note = ""
        self.holds = ""
        self.progress: Callable[[], int | None] = lambda: None
        self.unsaved: Callable[[], str] = lambda: ""
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        for work in (self._write_heartbeats, self._wait_for_notices):
            self.spawn(work)

    def spawn(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name=work.__name__, daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        self._stop.set()

    def pause(self, seconds: float) -> bool:
        """Wait. Returns True if the watch was stopped meanwhile."""
        return self._stop.wait(seconds)

    def _write_heartbeats(self) -> None:
        """Write heartbeats, and read with each whether this attempt is still needed; else end it."""
        reached_at, limited = time.monotonic(), False
        while True:
            try:
                why = self.attempt.over()
                if not limited and not why and (limit := self.attempt.limit()) is not None:
                    limited = True
                    self.events.put(NoticeReceived(limit))
                if not why:  # a heartbeat would list a run that is over among the live ones again
                    self.attempt.workspace.write_heartbeat(self.attempt.run, self._heartbeat())
                reached_at = time.monotonic()
            except OutlastError as problem:
                why = ""
                if time.monotonic() - reached_at > self.unreachable_s:
                    why = f"the workspace was unreachable for {self.unreachable_s:.0f} s: {problem.message}"
            if why and not self._stop.is_set():
                self.events.put(RunOver(why))
                return
            if self._stop.wait(self.beat_s):
                return

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(
            attempt=self.attempt.number,
            phase=self.phase(),
            step=self.progress(),
            length=self.attempt.story.state.length,
            note=self.note,
            holds=self.holds,
            unsaved=self.unsaved(),
        )

    def _wait_for_notices(self) -> None:
        while not self._stop.is_set():
            try:
                notice = self.instance.wait_for_notice(60.0)
            except OSError:
                self._stop.wait(1.0)
                continue
            if notice is not None and notice.early:
                self.events.put(WarningReceived(notice))
            elif notice is not None:
                self.events.put(NoticeReceived(notice))
                return

    def watch_for_hang(self, spec: Spec, *, signs: Callable[[], object], processor_s: Callable[[], float]) -> None:
        """Report a hang when `signs`, a value that changes with progress, has not changed for `limits.hang_after`.

        Without that limit, processor time is a sign, too, and the timeout is long.
        """
        if spec.limits.hang_after_s:
            self._watch_signs(signs, after_s=spec.limits.hang_after_s)
        elif sys.platform == "linux" and not spec.interactive:
            # A program that still computes is not hung, and an interactive one may wait for its user.
            self._watch_signs(lambda: (signs(), round(processor_s())), after_s=_IDLE_S)

    def _watch_signs(self, signs: Callable[[], object], *, after_s: float) -> None:

        def watch() -> None:
            seen, changed_at = signs(), time.monotonic()
            while not self._stop.wait(min(1.0, after_s / 10)):
                now = signs()
                if now != seen:
                    seen, changed_at = now, time.monotonic()
                elif time.monotonic() - changed_at > after_s:
                    self.events.put(CommandHung(f"no sign of progress for {after_s:.0f} s"))
                    return

        self.spawn(watch)
