"""Writes the conditions of the zones, and refuses launches by them. Shims read the same file through `zones.py`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, TypedDict

from outlast.clouds.local import catalog
from outlast.clouds.local.files import write_json
from outlast.clouds.local.zones import ZoneConditions, read_settings, read_trace, settings_path
from outlast.errors import BadRequest, Denied, NoCapacity, OverQuota
from outlast.spec.trace import HINT, NoTrace


class ZoneChanges(TypedDict, total=False):
    """The settings of a zone."""

    # The most machines that may run in the zone. A lower value does not stop running ones.
    capacity: int | None
    # The same, but a launch beyond it fails with a quota error, which another zone of the region does not fix.
    quota: int | None
    # Requests per second that `outlast local serve` accepts for this zone; it answers 429 to the others.
    rate: float | None
    # Spot machines are preempted, with notice, after a random lifetime with this mean.
    mean_life_s: float | None
    # Time from the preemption notice to power off.
    grace_s: float | None
    # A file with a recorded trace, replayed from now on: which window of it, and how many times as fast.
    trace: str | None
    window: str
    speed_up: float
    # Meaning of a 1 in the trace, if the file does not define it.
    ones: str
    # Every launch fails with Denied and this message.
    deny: str | None


_REPLAY = {"window": "0", "speed_up": 1.0, "ones": ""}


class ZoneSettings:
    def __init__(self, root: str) -> None:
        self._root = root

    def all(self) -> dict[str, dict[str, Any]]:
        known = read_settings(self._root)
        # Zones with Google's names are listed only if they have settings.
        return {zone: {} for zone in catalog.ZONES} | known

    def of(self, zone: str) -> dict[str, Any]:
        return read_settings(self._root).get(zone, {})

    def change(self, zone: str, changes: ZoneChanges) -> None:
        """Change the given settings; None removes one. The caller holds the cloud's lock."""
        catalog.check_zone(zone)
        wanted: dict[str, Any] = dict(changes)
        unknown = set(wanted) - set(ZoneChanges.__annotations__)
        if unknown:
            raise BadRequest(f"a zone has no setting `{min(unknown)}`", hint=", ".join(ZoneChanges.__annotations__))
        replay = {name: wanted.pop(name, usual) for name, usual in _REPLAY.items()}
        if isinstance(wanted.get("trace"), str):
            wanted["trace"] = _trace(wanted["trace"], replay)
        settings = read_settings(self._root)
        merged = {**settings.get(zone, {}), **wanted}
        settings[zone] = {name: value for name, value in merged.items() if value is not None}
        write_json(settings_path(self._root), settings)

    def check_allowed(self, zone: str) -> None:
        if message := self.of(zone).get("deny"):
            raise Denied(str(message))

    def check_capacity(self, zone: str, running: Iterable[object], *, spot: bool) -> None:
        """Raise NoCapacity or OverQuota if the zone is full. `running` is iterated only if there is a limit."""
        settings = self.of(zone)
        if spot and ZoneConditions(settings).is_out(time.time()):
            raise NoCapacity(f"zone `{zone}` has no spot capacity now", hint="try another zone")
        limits = {name: settings[name] for name in ("capacity", "quota") if settings.get(name) is not None}
        count = sum(1 for _ in running) if limits else 0
        if count >= limits.get("quota", count + 1):
            raise OverQuota(
                f"zone `{zone}`: the quota of {limits['quota']} machines is used up", hint="request more quota"
            )
        if count >= limits.get("capacity", count + 1):
            raise NoCapacity(
                f"zone `{zone}` has no capacity left: {limits['capacity']} machines at most", hint="try another zone"
            )


def _trace(path: str, replay: dict[str, Any]) -> dict[str, Any]:
    try:
        return read_trace(path, **replay, now=time.time())
    except NoTrace as problem:
        raise BadRequest(f"the trace `{path}` cannot be used: {problem}", hint=problem.hint) from problem
    except OSError as problem:
        raise BadRequest(f"the trace `{path}` cannot be read: {problem.strerror}", hint=HINT) from problem
    except (TypeError, ValueError, RecursionError) as problem:
        raise BadRequest(f"the trace `{path}` cannot be used: {problem}", hint=HINT) from problem
