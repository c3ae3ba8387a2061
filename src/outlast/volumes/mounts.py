"""Whether the volumes that a run names are there, and whether its machines reach them: told before anything costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from outlast.clouds.cloud import Cloud
from outlast.errors import CloudError, NoSuchStore
from outlast.spec.spec import Spec
from outlast.workspace.holdings import Holding, Holdings

_OWN_ROOT = ("root", "userns")


def check(holdings: Holdings, clouds: Mapping[str, Cloud], spec: Spec) -> list[str]:
    problems = []
    cloud = clouds.get(spec.machine.cloud)
    for path, place in spec.volumes.items():
        name = place.partition("/")[0]
        try:
            holding = holdings.demand(name)
        except NoSuchStore as problem:
            problems.append(f"[volumes] {path}: {problem.message}; {problem.hint}")
            continue
        if holding.phase != "ready":
            problems.append(f"[volumes] {path}: the volume `{name}` is half {holding.phase}")
        elif holding.cloud != spec.machine.cloud:
            where = f"is on {holding.cloud}, and the machines are on {spec.machine.cloud}"
            problems.append(f"[volumes] {path}: the volume `{name}` {where}, which cannot reach it")
        elif cloud is not None:
            problems += _check_reach(path, holding, cloud, spec)
        mode = getattr(cloud, "mode", "")
        if mode and mode not in _OWN_ROOT and path.startswith("/"):
            why = f"machines of mode `{mode}` have no file system of their own"
            problems.append(
                f"[volumes] {path}: {why}; take a path inside the code folder, such as `{path.lstrip('/')}`"
            )
    return problems


def _check_reach(path: str, holding: Holding, cloud: Cloud, spec: Spec) -> list[str]:
    if not holding.zones or any(_reaches(holding.zones, zone) for zone in _zones(cloud, spec)):
        return []
    where = ", ".join(holding.zones)
    why = f"the volume `{holding.name}` is reached from {where} only, and the machine cannot be there"
    return [f"[volumes] {path}: {why}; change `[machine] zones`, or make the volume elsewhere"]


def _reaches(places: Sequence[str], zone: str) -> bool:
    """Places are zones, or regions: the beginnings of their zones' names."""
    return any(zone == place or (zone.startswith(place) and len(zone) - len(place) <= 2) for place in places)


def _zones(cloud: Cloud, spec: Spec) -> set[str]:
    try:
        return {offer.zone for spot in (True, False) for offer in cloud.offers(spec.machine.needs(spot=spot))}
    except CloudError:
        return set()  # what is wrong with the machine itself is told elsewhere


def narrowed(holdings: Holdings, clouds: Mapping[str, Cloud], spec: Spec) -> Spec:
    """The spec with the zones from which all of its volumes are reached, and no others."""
    limits = [held.zones for place in spec.volumes.values() if (held := holdings.find(place.partition("/")[0]))]
    limits = [zones for zones in limits if zones]
    if not limits:
        return spec
    offered = _zones(clouds[spec.machine.cloud], spec)
    zones = [zone for zone in sorted(offered) if all(_reaches(limit, zone) for limit in limits)]
    machine = msgspec.structs.replace(spec.machine, zones=tuple(zones))
    return msgspec.structs.replace(spec, machine=machine)
