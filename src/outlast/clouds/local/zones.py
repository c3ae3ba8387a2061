"""The conditions of the zones: capacity, mean lifetime, grace time, outages. Reads settings; preempts nothing."""

from __future__ import annotations

import errno
import math
import os
from typing import Any

from outlast.clouds.local.files import read_json
from outlast.spec.trace import NoTrace, parse_trace

GRACE_S = 30.0


def settings_path(root: str) -> str:
    return f"{root}/zones.json"


def read_settings(root: str) -> dict[str, dict[str, Any]]:
    """Return zone → settings. A zone without settings has unlimited capacity and preempts nothing."""
    return read_json(settings_path(root)) or {}


class ZoneConditions:
    """The settings of one zone, as a machine's shim uses them."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings

    @property
    def grace_s(self) -> float:
        return float(self.settings.get("grace_s", GRACE_S))

    @property
    def mean_life_s(self) -> float | None:
        value = self.settings.get("mean_life_s")
        return None if value is None else float(value)

    def is_out(self, now: float) -> bool:
        """Return whether the recorded trace has no spot capacity now."""
        return self.outage_at(now) == now

    def outage_at(self, now: float) -> float | None:
        """Return when the zone next preempts its spot machines; None: never."""
        trace = self.settings.get("trace")
        if not trace:
            return None
        ticks, started_at = str(trace["ticks"]), float(trace["started_at"])
        tick_s = float(trace["gap_s"]) / float(trace["speed_up"])
        tick = max(0, int((now - started_at) / tick_s))
        # A trace wraps around at its end, so two copies in a row contain the next outage from any offset.
        offset = tick % len(ticks)
        found = (ticks + ticks).find("1", offset)
        if found < 0:
            return None
        return now if found == offset else started_at + (tick + found - offset) * tick_s


def draw_life_s(mean_life_s: float) -> float:
    """Draw an exponentially distributed lifetime: the preemption rate does not depend on a machine's age."""
    chance = (int.from_bytes(os.urandom(7), "big") + 1) / 2**56
    return -math.log(chance) * mean_life_s


def read_trace(path: str, *, window: str, speed_up: float, now: float, ones: str = "") -> dict[str, Any]:
    """Return a recorded trace as a setting; a copy, so that the file may be deleted. Raises NoTrace, OSError."""
    recorded = read_json(path)
    if recorded is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    gap_s, windows = parse_trace(recorded, ones=ones)
    if window not in windows:
        some = ", ".join(f"`{name}`" for name in list(windows)[:5])
        raise NoTrace(f"it has no window `{window}`; windows: {some}{' …' if len(windows) > 5 else ''}")
    if not speed_up > 0:
        raise NoTrace("the speed-up must be more than zero", hint="`speed_up` 60 replays an hour in a minute")
    return {
        "path": path,
        "window": window,
        "gap_s": gap_s,
        "speed_up": speed_up,
        "started_at": now,
        "ticks": windows[window],
    }
