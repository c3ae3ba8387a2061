"""Changing the weather of the zones, and refusing launches by it. The keepers read the same file through `zones.py`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import EllipsisType
from typing import Any

from outlast.clouds.local import catalog
from outlast.clouds.local.files import write_json
from outlast.clouds.local.zones import Weather, read_settings, read_trace, settings_path
from outlast.errors import BadRequest, Denied, NoCapacity


class ZoneSettings:
    def __init__(self, root: str) -> None:
        self._root = root

    def all(self) -> dict[str, dict[str, Any]]:
        known = read_settings(self._root)
        return {zone: known.get(zone, {}) for zone in catalog.ZONES}

    def change(
        self,
        zone: str,
        *,
        capacity: int | EllipsisType | None = ...,
        mean_life_s: float | EllipsisType | None = ...,
        grace_s: float | EllipsisType | None = ...,
        trace: str | EllipsisType | None = ...,
        window: str = "0",
        speed_up: float = 1.0,
        deny: str | EllipsisType | None = ...,
    ) -> None:
        """What is left out stays as it is; None takes a setting back. Only under the cloud's lock.

        capacity: so many machines may run in the zone; those that run already go on. mean_life_s: spot machines are
        preempted after a random life. grace_s: from the notice to the end. trace: a recorded trace is replayed from
        now on, `speed_up` times as fast. deny: launches are refused for good, with this message.
        """
        if zone not in catalog.ZONES:
            raise catalog.unknown("zone", zone, catalog.ZONES)
        changes: dict[str, Any] = {"capacity": capacity, "mean_life_s": mean_life_s, "grace_s": grace_s, "deny": deny}
        changes["trace"] = _trace(trace, window, speed_up) if isinstance(trace, str) else trace
        every = read_settings(self._root)
        merged = {**every.get(zone, {}), **{name: value for name, value in changes.items() if value is not ...}}
        every[zone] = {name: value for name, value in merged.items() if value is not None}
        write_json(settings_path(self._root), every)

    def check_allowed(self, zone: str) -> None:
        if message := self.all()[zone].get("deny"):
            raise Denied(str(message))

    def check_capacity(self, zone: str, running: Iterable[object], *, spot: bool) -> None:
        """Raises NoCapacity when the zone takes no more machines now. `running` is counted only if it matters."""
        settings = self.all()[zone]
        if spot and Weather(settings).is_out(time.time()):
            raise NoCapacity(f"zone `{zone}` has no spot capacity now", hint="try another zone")
        capacity = settings.get("capacity")
        if capacity is not None and sum(1 for _ in running) >= capacity:
            raise NoCapacity(
                f"zone `{zone}` has no capacity left: {capacity} machines at most", hint="try another zone"
            )


def _trace(path: str, window: str, speed_up: float) -> dict[str, Any]:
    try:
        return read_trace(path, window=window, speed_up=speed_up, now=time.time())
    except KeyError as error:
        raise BadRequest(f"the trace {path} has no {error}") from error
    except (OSError, ValueError) as error:
        raise BadRequest(f"the trace {path} cannot be used: {error}") from error
