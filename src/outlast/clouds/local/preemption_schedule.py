"""Decides when a machine must end: its maximum lifetime is over, or its zone preempts it. The shim acts on it."""

from __future__ import annotations

import os
import time
from typing import Literal

from outlast.clouds.local.folder import Folder
from outlast.clouds.local.zones import ZoneConditions, draw_life_s, read_settings, settings_path

Verdict = Literal["", "lifetime over", "preempted"]


class PreemptionSchedule:
    """The preemption and the end of the lifetime of one boot. Times are those of `time.monotonic`."""

    def __init__(self, folder: Folder, *, ran_s: float = 0.0) -> None:
        """`ran_s` is how long the machine ran before this boot, if a program rebooted it."""
        facts = folder.facts() or {}
        self._root, self._zone, self._spot = folder.root, str(facts["zone"]), bool(facts["spot"])
        life_max_s = float(facts.get("life_max_s") or 0.0)
        self._life_over_at = time.monotonic() + life_max_s - ran_s if life_max_s > 0 else None
        self._preempt_at: float | None = None
        self._preempting = False
        self._seen: tuple[int, int] | None = None
        self.conditions = ZoneConditions({})
        self._refresh()

    @property
    def next_at(self) -> float | None:
        """Return when `verdict` may change; calling it earlier is harmless."""
        times = [self._life_over_at]
        if self._spot and not self._preempting:
            times += [self._preempt_at, self._outage_at()]
        return min((at for at in times if at is not None), default=None)

    def verdict(self) -> Verdict:
        """Return the action that is due now. `preempted` is returned once only."""
        self._refresh()
        now = time.monotonic()
        if self._life_over_at is not None and now >= self._life_over_at:
            return "lifetime over"
        if not self._spot or self._preempting:
            return ""
        due = self._preempt_at is not None and now >= self._preempt_at
        self._preempting = due or self.conditions.is_out(time.time())
        return "preempted" if self._preempting else ""

    def _outage_at(self) -> float | None:
        now = time.time()
        outage_at = self.conditions.outage_at(now)
        return None if outage_at is None else time.monotonic() + outage_at - now

    def _refresh(self) -> None:
        """Reload changed settings. A new mean lifetime is drawn again: an exponential lifetime has no memory."""
        try:
            status = os.stat(settings_path(self._root))
        except FileNotFoundError:
            return
        if self._seen == (status.st_mtime_ns, status.st_ino):
            return
        self._seen = (status.st_mtime_ns, status.st_ino)
        before = self.conditions.mean_life_s
        self.conditions = ZoneConditions(read_settings(self._root).get(self._zone, {}))
        mean_life_s = self.conditions.mean_life_s
        if self._spot and mean_life_s != before:
            self._preempt_at = None if mean_life_s is None else time.monotonic() + draw_life_s(mean_life_s)
