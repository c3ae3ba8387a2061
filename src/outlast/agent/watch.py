"""Watches for the notice, the end of the run and a hang, in threads that put events into one queue."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable

from outlast.agent.attempt import AttemptWriter
from outlast.agent.effects import AgentEvent, CommandHung, NoticeReceived, RunOver, WarningReceived
from outlast.agent.instance import Instance, Notice
from outlast.agent.node import Node
from outlast.errors import OutlastError
from outlast.runs.events import MetricRange
from outlast.runs.usage import Sample
from outlast.spec.spec import Spec
from outlast.workspace import Heartbeat

_IDLE_S = 3600.0
# From systemd's SIGTERM to the power cut. Google allows 30 s for a shutdown, and other units take some of it.
_SHUTDOWN_S = 25.0


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
        self.metrics: Callable[[], dict[str, MetricRange]] = dict
        self.usage: Callable[[], Sample | None] = lambda: None
        # Set once this machine shuts down.
        self.shutdown = threading.Event()
        # Of a distributed run: the reports of this machine, and whether it writes to its checkpoint folder.
        self.node: Node | None = None
        self.writes: Callable[[], bool] = lambda: False
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        for work in (self._write_heartbeats, self._wait_for_notices):
            self.spawn(work)

    def handle_sigterm(self) -> None:
        """Treat SIGTERM, which systemd sends when the machine shuts down, as a notice. For the main thread."""
        # Not in a handler: Python would call it only when the main thread returns from a long request.
        reads, writes = os.pipe()
        os.set_blocking(writes, False)
        signal.signal(signal.SIGTERM, lambda _number, _frame: None)
        signal.set_wakeup_fd(writes)

        def wait_for_sigterm() -> None:
            while os.read(reads, 1)[0] != signal.SIGTERM:
                pass
            self.shutdown.set()
            self.events.put(NoticeReceived(Notice(why="the machine is shutting down", grace_s=_SHUTDOWN_S)))

        self.spawn(wait_for_sigterm)

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
        reached_at, limited, beat_at = time.monotonic(), False, 0.0
        while True:
            try:
                why = self.attempt.over()
                if not limited and not why and (limit := self.attempt.limit()) is not None:
                    limited = True
                    self.events.put(NoticeReceived(limit))
                # A heartbeat would list a run that is over among the live ones again.
                if not why and time.monotonic() >= beat_at:
                    beat_at = time.monotonic() + self._beat_s
                    self._write_heartbeat()
                if self.node is not None and not self.node.rank and not why:
                    self._watch_nodes(self.node)
                reached_at = time.monotonic()
            except OutlastError as problem:
                why = ""
                if time.monotonic() - reached_at > self.unreachable_s:
                    why = f"the workspace was unreachable for {self.unreachable_s:.0f} s: {problem.message}"
            if why and not self._stop.is_set():
                self.events.put(RunOver(why))
                return
            if self._stop.wait(self._beat_s if self.node is None else min(self._beat_s, self.node.poll_s)):
                return

    @property
    def _beat_s(self) -> float:
        return self.beat_s if self.node is None else self.node.beat_s

    def _write_heartbeat(self) -> None:
        node = self.node
        if node is not None:
            node.report_alive(self.phase(), writes=self.writes())
        if node is None or not node.rank:
            self.attempt.workspace.write_heartbeat(self.attempt.run, self._heartbeat())

    def _watch_nodes(self, node: Node) -> None:
        """Report failures on other machines, and give up those that are silent."""
        for failed in node.watch(self.attempt):
            self.events.put(failed)

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(
            attempt=self.attempt.number,
            phase=self.phase(),
            step=self.progress(),
            length=self.attempt.story.state.length,
            note=self.note,
            holds=self.holds,
            unsaved=self.unsaved(),
            nodes=self.node.count_alive() if self.node is not None else 0,
            metrics=self.metrics(),
            usage=self.usage(),
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
