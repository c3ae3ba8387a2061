"""Hindrances of runs whose machine was requested and that have not started: stored by supervisors, for `outlast ps`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from outlast.errors import Missing, WorkspaceError
from outlast.runs.state import Attempt
from outlast.store.bucket import Bucket
from outlast.supervisor.world import RunView, World

KEY = "hindrances.json"
# Most machines report to the workspace earlier. Later their consoles are read, this often.
_BOOT_S, _CONSOLE_S = 60.0, 60.0
# An unchanged object is written again this often; an older one was left by a supervisor that has died.
_RENEW_S, _STALE_S = 300.0, 900.0


class Hindrances:
    """What one supervisor knows. `console` returns the end of the console of an attempt's machine."""

    def __init__(self, bucket: Bucket, *, console: Callable[[Attempt], str], monotonic: Callable[[], float]) -> None:
        self._bucket = bucket
        self._console = console
        self._monotonic = monotonic
        # The last reading of a console: when, and the text.
        self._consoles: dict[str, tuple[float, str]] = {}
        self._written: dict[str, str] = {}
        self._written_at = 0.0

    def update(self, world: World) -> None:
        """Store the hindrances of this moment if they have changed. A store that does not answer is left alone."""
        found = {view.run: text for view in world.runs if (text := self._of(world, view))}
        booting = {view.run for view in world.runs if _boots(view)}
        self._consoles = {run: read for run, read in self._consoles.items() if run in booting}
        if found == self._written and (not found or self._monotonic() - self._written_at < _RENEW_S):
            return
        with suppress(WorkspaceError):
            if found:
                self._bucket.put(KEY, msgspec.json.encode(found))
            else:
                self._bucket.delete(KEY)
            self._written, self._written_at = found, self._monotonic()

    def _of(self, world: World, view: RunView) -> str:
        last = view.state.last
        if last is None or not _boots(view):
            return ""
        if last.cloud in world.unreachable:
            return f"{last.cloud} does not answer: {world.unreachable[last.cloud]}"
        machine = world.machines.get(last.machine)
        if machine is None or min(view.silent_s, machine.ran_s) < _BOOT_S:
            return ""
        read_at, text = self._consoles.get(view.run, (float("-inf"), ""))
        if self._monotonic() - read_at >= _CONSOLE_S:
            text = self._console(last)
            self._consoles[view.run] = (self._monotonic(), text)
        return f"its machine has not reported yet{text}"


def _boots(view: RunView) -> bool:
    return view.state.alive and view.state.last is not None and view.state.last.phase == "placed"


def read_hindrances(bucket: Bucket) -> dict[str, str]:
    """Return the hindrances that a supervisor stored, by run; none if they are old or unreadable."""
    try:
        if time.time() - bucket.head(KEY).modified_at > _STALE_S:
            return {}
        return msgspec.json.decode(bucket.get(KEY), type=dict[str, str])
    except (Missing, WorkspaceError, msgspec.MsgspecError):
        return {}
