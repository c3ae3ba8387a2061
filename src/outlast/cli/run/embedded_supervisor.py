"""A supervisor inside a command, and the background supervisor that replaces it when the command ends."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from outlast.app.background import ensure_supervised as ensure_supervised
from outlast.app.supervision import new_supervisor
from outlast.cli.shared.terminal import note

if TYPE_CHECKING:
    from outlast.app.types import Workspace


def on_signals(handler: Any, *numbers: signal.Signals) -> dict[signal.Signals, Any]:
    """Set the handler, except for signals that `nohup` ignores, and return the previous handlers."""
    changed = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in changed}


def detach(_number: int, _frame: object) -> None:
    raise Detached


class Detached(Exception):
    pass


@contextlib.contextmanager
def embedded_supervisor(workspace: Workspace, *, then: Callable[[], None]) -> Iterator[threading.Event]:
    """Supervise in a thread while the block runs; the event is set when supervision ends.

    `then` runs last on every way out, also if an interrupt comes before the supervisor has started: a submitted run
    must not be left without a supervisor.
    """
    stop = threading.Event()
    previous: dict[signal.Signals, Any] = {}
    thread: threading.Thread | None = None
    try:
        previous = on_signals(detach, signal.SIGTERM, signal.SIGHUP)
        supervisor = new_supervisor(workspace, report=report_bugs)
        thread = threading.Thread(target=supervisor.run, kwargs={"stop": stop}, name="supervisor", daemon=True)
        thread.start()
        yield stop
    finally:
        # Ignore signals: a second Ctrl-C would leave the runs without a supervisor.
        previous = {**on_signals(signal.SIG_IGN, signal.SIGTERM, signal.SIGHUP, signal.SIGINT), **previous}
        stop.set()
        if thread is not None and thread.is_alive():
            thread.join(10.0)
        then()
        for number, handler in previous.items():
            signal.signal(number, handler)


def report_bugs(text: str) -> None:
    if text.startswith("bug:"):
        note(text)
