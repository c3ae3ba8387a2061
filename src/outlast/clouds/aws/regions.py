"""The regions of an account: which are enabled, which may be used, and calls in several of them at once."""

from __future__ import annotations

import re
import string
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

import msgspec

from outlast.clouds.aws.region import AwsRegion
from outlast.clouds.aws.types import unknown
from outlast.clouds.cloud import Requirements
from outlast.clouds.geography import distance
from outlast.errors import CloudError, Denied
from outlast.store.parallel import in_parallel

T = TypeVar("T")
# Enabled regions change rarely, and so do rights.
_FRESH_S = 3600.0
_ZONE = re.compile(r"([a-z]{2}(?:-[a-z]+)+-\d+)[a-z]?")


class Answers(Generic[T]):
    """What regions answered: results and errors by region, the home region first."""

    def __init__(self) -> None:
        self.answers: dict[str, T] = {}
        self.problems: dict[str, CloudError] = {}


class AwsRegions:
    """The enabled regions of one account."""

    def __init__(self, home: AwsRegion) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._made = {home.name: home}
        self._names: tuple[str, ...] = ()
        self._listed_at = 0.0
        # Regions in which this process has seen machines; and region → until when listings leave it out, because this
        # account may not use it.
        self._used = {home.name}
        self._denied: dict[str, float] = {}

    def names(self) -> tuple[str, ...]:
        """Return the enabled regions, the home region first. Raises CloudError."""
        with self._lock:
            if not self._names or time.monotonic() - self._listed_at > _FRESH_S:
                try:
                    docs = self._home.client.ec2("describe_regions")["Regions"]
                except Denied:
                    docs = []  # this user may use the home region at least
                found = {str(doc["RegionName"]) for doc in docs if doc.get("OptInStatus") != "not-opted-in"}
                self._names = (self._home.name, *sorted(found - {self._home.name}))
                self._listed_at = time.monotonic()
            now = time.monotonic()
            return tuple(name for name in self._names if self._denied.get(name, 0.0) <= now)

    def use(self, name: str) -> None:
        """Record that a region has machines: from now on its refusal is an error."""
        with self._lock:
            self._used.add(name)
            self._denied.pop(name, None)

    def region(self, name: str) -> AwsRegion:
        with self._lock:
            if name not in self._made:
                self._made[name] = AwsRegion(self._home.client.in_region(name))
            return self._made[name]

    def made(self) -> list[AwsRegion]:
        """Return the regions that this process has used."""
        with self._lock:
            return list(self._made.values())

    def zones(self, region: str) -> tuple[str, ...]:
        """Return the names of a region's zones; all possible ones if it does not answer."""
        try:
            return self.region(region).zones()
        except CloudError:
            return tuple(region + letter for letter in string.ascii_lowercase)

    def described(self) -> str:
        names = self.names()
        return f"region {names[0]}" if len(names) == 1 else f"regions {', '.join(names)}"

    def each(
        self, act: Callable[[AwsRegion], T], names: Iterable[str] | None = None, *, lists: bool = False
    ) -> Answers[T]:
        """Call every region at the same time, and return all answers and errors.

        Of all regions those without machines may refuse: an organisation may allow some regions only. One that refuses
        to list its machines (`lists`) is left out for an hour; it may refuse other requests, such as for secrets, and
        still have machines.
        """
        wanted = list(self.names() if names is None else names)

        def one(name: str) -> T | CloudError:
            try:
                return act(self.region(name))
            except CloudError as problem:
                return problem

        found = Answers[T]()
        for name, answer in zip(wanted, in_parallel(one, wanted), strict=True):
            if not isinstance(answer, CloudError):
                found.answers[name] = answer
            elif not isinstance(answer, Denied) or names is not None or name in self._used:
                found.problems[name] = answer
            elif lists:
                self._denied[name] = time.monotonic() + _FRESH_S
        return found

    def asked(self, needs: Requirements) -> Mapping[str, Requirements]:
        """Return the regions to ask for offers, each with the request as it understands it. Raises BadRequest."""
        names = self.names()
        for zone in (*needs.zones, *needs.exclude_zones):
            if _region_of(zone) not in names:
                raise unknown("zone", zone, names)
        if needs.zones:
            chosen = [name for name in names if any(_region_of(zone) == name for zone in needs.zones)]
        elif needs.anywhere:
            chosen = list(names)
        elif needs.near:
            chosen = [name for name in names if distance(name, needs.near) <= 1] or [self._home.name]
        else:
            chosen = [self._home.name]
        chosen = self._with_network(chosen, needs)
        return {name: _for_region(needs, name) for name in chosen if name not in needs.exclude_zones}

    def _with_network(self, names: list[str], needs: Requirements) -> list[str]:
        """Return the regions that have the network of the settings; the first if none has, which reports it."""
        settings = needs.network
        if settings is None or len(names) < 2:
            return names
        answers = self.each(lambda region: region.has_network(settings), names).answers
        return [name for name in names if answers.get(name)] or names[:1]


def _region_of(zone: str) -> str:
    """Return the region of a zone or a region; empty for a name of another form."""
    match = _ZONE.fullmatch(zone)
    return match[1] if match else ""


def _for_region(needs: Requirements, region: str) -> Requirements:
    def here(zones: Iterable[str]) -> tuple[str, ...]:
        return tuple(zone for zone in zones if _region_of(zone) == region)

    return msgspec.structs.replace(needs, zones=here(needs.zones), exclude_zones=here(needs.exclude_zones))
