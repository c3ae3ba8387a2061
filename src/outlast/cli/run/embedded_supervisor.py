"""`outlast run` and `outlast submit`: one asks for a run and stays, the other asks and leaves."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from outlast.cli.shared.options import clouds
from outlast.cli.shared.terminal import note
from outlast.errors import OutlastError
from outlast.workspace import Workspace


def on_signals(handler: Any, *numbers: signal.Signals) -> dict[signal.Signals, Any]:
    """Set the handler, but for signals that `nohup` has us ignore; what was there before."""
    changed = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in changed}


def detach(_number: int, _frame: object) -> None:
    raise Detached


class Detached(Exception):
    pass


@contextlib.contextmanager
def supervised_here(workspace: Workspace, *, then: Callable[[], None]) -> Iterator[threading.Event]:
    """Supervise meanwhile; the event is set when that ends. `then` is done last, however we leave, and also if we are
    interrupted before the supervisor is up: what was submitted must not be left to nobody."""
    stop = threading.Event()
    previous: dict[signal.Signals, Any] = {}
    thread: threading.Thread | None = None
    try:
        previous = on_signals(detach, signal.SIGTERM, signal.SIGHUP)
        from outlast.supervisor.loop import Supervisor

        supervisor = Supervisor(workspace, clouds(workspace), report=_loud_bugs)
        thread = threading.Thread(target=supervisor.run, kwargs={"stop": stop}, name="supervisor", daemon=True)
        thread.start()
        yield stop
    finally:
        # Not to be interrupted: a second Ctrl-C would leave the runs without a supervisor.
        previous = {**on_signals(signal.SIG_IGN, signal.SIGTERM, signal.SIGHUP, signal.SIGINT), **previous}
        stop.set()
        if thread is not None and thread.is_alive():
            thread.join(10.0)
        then()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _loud_bugs(text: str) -> None:
    if text.startswith("bug:"):
        note(text)


@contextlib.contextmanager
def looked_after(workspace: Workspace) -> Iterator[None]:
    """Ask for runs in here: Ctrl-C says that what was submitted goes on, so somebody has to see to it."""
    try:
        yield
    except KeyboardInterrupt:
        with contextlib.suppress(OutlastError):
            _hand_over(workspace)
        raise


def _hand_over(workspace: Workspace) -> None:
    """This run, or others of this workspace, may need a supervisor when this one leaves."""
    from outlast.app.background import start_supervisor

    if workspace.heartbeats() or workspace.wakeups():
        start_supervisor(workspace)
