"""Checks that the volumes of a run exist and are reachable from its machines, before any launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from outlast.clouds.cloud import Cloud, Requirements
from outlast.errors import CloudError, NoSuchStore
from outlast.records.record import PHASE_TEXT
from outlast.records.resources import ResourceRecord, ResourceRecords
from outlast.spec.spec import Spec

_OWN_ROOT = ("root", "userns")


def check(records: ResourceRecords, clouds: Mapping[str, Cloud], spec: Spec) -> list[str]:
    """Return the problems of a run's volumes."""
    machine, cloud = spec.machine, clouds.get(spec.machine.cloud)
    needs = [machine.needs_on(machine.cloud, spot=spot) for spot in (True, False)]
    return check_volumes(records, spec.volumes, cloud=cloud, where=machine.cloud, kinds=[needs])


def check_volumes(
    records: ResourceRecords,
    volumes: Mapping[str, str],
    *,
    cloud: Cloud | None,
    where: str,
    kinds: Sequence[Sequence[Requirements]],
) -> list[str]:
    """Return the problems of the volumes. Each kind of machine must reach all; `kinds` has its alternatives."""
    problems = []
    for path, place in volumes.items():
        name = place.partition("/")[0]
        try:
            record = records.get(name)
        except NoSuchStore as problem:
            problems.append(f"[volumes] {path}: {problem.message}; {problem.hint}")
            continue
        if record.phase != "ready":
            problems.append(f"[volumes] {path}: volume `{name}` {PHASE_TEXT[record.phase]}")
        elif record.cloud != where:
            why = f"is on {record.cloud}, which machines on {where} cannot reach"
            problems.append(f"[volumes] {path}: volume `{name}` {why}")
        elif cloud is not None:
            problems += [wrong for needs in kinds for wrong in _check_reach(path, record, cloud, needs)][:1]
        mode = getattr(cloud, "mode", "")
        if mode and mode not in _OWN_ROOT and path.startswith("/"):
            why = f"machines of mode `{mode}` share this computer's file system"
            problems.append(f"[volumes] {path}: {why}; use a path in the code folder, such as `{path.lstrip('/')}`")
    return problems


def _check_reach(path: str, record: ResourceRecord, cloud: Cloud, needs: Sequence[Requirements]) -> list[str]:
    if not record.zones or any(_reaches(record.zones, zone) for zone in _zones(cloud, needs)):
        return []
    where = ", ".join(record.zones)
    why = f"volume `{record.name}` is reachable only from {where}, where no matching machine is offered"
    return [f"[volumes] {path}: {why}; change `[machine] zones`, or create the volume elsewhere"]


def _reaches(places: Sequence[str], zone: str) -> bool:
    """Return whether a zone is one of the zones or in one of the regions, whose names are prefixes of their zones'."""
    return any(zone == place or (zone.startswith(place) and len(zone) - len(place) <= 2) for place in places)


def _zones(cloud: Cloud, needs: Sequence[Requirements]) -> set[str]:
    try:
        return {offer.zone for need in needs for offer in cloud.offers(need)}
    except CloudError:
        return set()  # problems of the machine itself are reported elsewhere


def narrowed(records: ResourceRecords, clouds: Mapping[str, Cloud], spec: Spec) -> Spec:
    """Return the spec with only the zones that reach all its volumes."""
    needs = [spec.machine.needs_on(spec.machine.cloud, spot=spot) for spot in (True, False)]
    zones = zones_for(records, clouds[spec.machine.cloud], spec.volumes, needs)
    if zones is None:
        return spec
    return msgspec.structs.replace(spec, machine=msgspec.structs.replace(spec.machine, zones=zones))


def zones_for(
    records: ResourceRecords, cloud: Cloud, volumes: Mapping[str, str], needs: Sequence[Requirements]
) -> tuple[str, ...] | None:
    """Return the offered zones that reach all volumes; None if every zone does."""
    limits = [found.zones for place in volumes.values() if (found := records.find(place.partition("/")[0]))]
    limits = [zones for zones in limits if zones]
    if not limits:
        return None
    offered = sorted(_zones(cloud, needs))
    return tuple(zone for zone in offered if all(_reaches(limit, zone) for limit in limits))
