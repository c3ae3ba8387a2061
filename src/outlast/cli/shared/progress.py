"""Progress of a command on stderr: printed after two seconds of silence, then less and less often."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from outlast.cli.shared import terminal

# Seconds of silence before the first message, the second, …; the last value applies to all that follow.
_PAUSES_S = (2.0, 8.0, 20.0, 60.0)


@contextmanager
def working(activity: str, *, pauses_s: Sequence[float] = _PAUSES_S) -> Iterator[None]:
    """Report the activity while the block runs and prints nothing else."""
    over = threading.Event()
    begun = terminal.last_output_at = time.monotonic()
    thread = threading.Thread(target=_report, args=(activity, begun, over, pauses_s), name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def confirm(question: str) -> bool:
    """Ask on stderr; progress is silent until the user answers. Raises click.Abort."""
    terminal.last_output_at = float("inf")
    try:
        return click.confirm(question, err=True)
    finally:
        terminal.last_output_at = time.monotonic()


def _report(activity: str, begun: float, over: threading.Event, pauses_s: Sequence[float]) -> None:
    from outlast.spec.quantity import describe_s

    count = 0
    while True:
        pause_s = pauses_s[min(count, len(pauses_s) - 1)]
        silent_s = time.monotonic() - terminal.last_output_at
        if over.wait(max(0.01, min(pause_s, pause_s - silent_s))):
            return
        if time.monotonic() - terminal.last_output_at >= pause_s:
            terminal.note(f"{activity} … {describe_s(time.monotonic() - begun)}")
            count += 1
