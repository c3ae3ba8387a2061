"""The status of machines: cost, billing while stopped, and drift since creation. Read-only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from outlast.clouds.cloud import LABEL_ATTEMPT, LABEL_MACHINE, LABEL_RUN, LABEL_WORKSPACE, InteractiveCloud, Machine
from outlast.errors import CloudError, NotFound
from outlast.machines.create import facts
from outlast.records.machines import Facts, MachineRecord, MachineRecords


class MachineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One machine of one cloud, or a record whose machine is gone."""

    name: str
    cloud: str
    machine: Machine | None = None
    machine_record: MachineRecord | None = None
    drift: tuple[str, ...] = ()
    # The process that was creating or deleting it has died.
    abandoned: bool = False
    workspace_id: str = ""

    @property
    def status(self) -> str:
        if self.machine_record is not None and self.machine_record.phase != "ready":
            return self.machine_record.phase
        return self.machine.status if self.machine else "gone"

    @property
    def whose(self) -> str:
        """The user, the run, `another workspace`, `no owner`, or `not ours`."""
        if self.machine is None or self.machine_record is not None:
            return self.machine_record.who or "manual" if self.machine_record else ""
        labels = self.machine.labels
        if labels.get(LABEL_WORKSPACE) not in (None, self.workspace_id):
            return "another workspace"
        if LABEL_RUN in labels:
            return f"{labels[LABEL_RUN]} attempt {labels.get(LABEL_ATTEMPT, '?')}"
        return "no owner" if LABEL_MACHINE in labels else "not ours"

    @property
    def ours(self) -> bool:
        return self.machine is None or self.machine.labels.get(LABEL_WORKSPACE) == self.workspace_id

    @property
    def usd_per_hour(self) -> float:
        """The current price; that of the disk if the machine is stopped."""
        return self.machine.bills_usd_per_hour if self.machine else 0.0

    @property
    def billed_while_stopped(self) -> bool:
        return self.machine is not None and self.machine.status == "stopped" and self.usd_per_hour > 0

    @property
    def cost_usd(self) -> float:
        return cost_usd(self.machine, self.machine_record)


def cost_usd(machine: Machine | None, machine_record: MachineRecord | None) -> float:
    """Return the cost of a machine over all types and zones that it had."""
    return (machine.cost_usd if machine else 0.0) + (machine_record.extra_usd if machine_record else 0.0)


def collect_status(
    clouds: Mapping[str, InteractiveCloud], machine_records: MachineRecords, *, with_drift: bool = True
) -> tuple[list[MachineStatus], dict[str, str]]:
    """Return all machines, records without a machine, and the unreachable clouds with the reason."""
    records = {machine_record.name: machine_record for machine_record in machine_records.all()}
    found: list[MachineStatus] = []
    unreachable: dict[str, str] = {}
    for name, cloud in clouds.items():
        try:
            machines = cloud.machines()
        except CloudError as problem:
            unreachable[name] = problem.message
            continue
        found += [_status(cloud, machine_records, machine, records, with_drift=with_drift) for machine in machines]
    seen = {(status.cloud, status.name) for status in found if status.machine_record}
    for machine_record in records.values():
        if (
            (machine_record.cloud, machine_record.name) not in seen
            and machine_record.cloud in clouds
            and machine_record.cloud not in unreachable
        ):
            found.append(
                MachineStatus(
                    name=machine_record.name,
                    cloud=machine_record.cloud,
                    machine_record=machine_record,
                    abandoned=_abandoned(machine_records, machine_record),
                    workspace_id=machine_records.workspace.id,
                )
            )
    return sorted(found, key=lambda status: (status.cloud, status.name)), unreachable


def machine_status(cloud: InteractiveCloud, machine_records: MachineRecords, machine: Machine) -> MachineStatus:
    machine_record = machine_records.find_readable(machine.name)
    return _status(
        cloud, machine_records, machine, {machine.name: machine_record} if machine_record else {}, with_drift=True
    )


def _status(
    cloud: InteractiveCloud,
    machine_records: MachineRecords,
    machine: Machine,
    records: Mapping[str, MachineRecord],
    *,
    with_drift: bool,
) -> MachineStatus:
    machine_record = records.get(machine.name)
    if machine_record is not None and (
        machine_record.cloud != cloud.name or machine.labels.get(LABEL_MACHINE, machine_record.id) != machine_record.id
    ):
        machine_record = None  # another machine of that name
    drift: tuple[str, ...] = ()
    if with_drift and machine_record is not None and machine_record.born is not None:
        drift = tuple(_drifted(cloud, machine, machine_record.born))
    return MachineStatus(
        name=machine.name,
        cloud=cloud.name,
        machine=machine,
        machine_record=machine_record,
        drift=drift,
        abandoned=machine_record is not None and _abandoned(machine_records, machine_record),
        workspace_id=machine_records.workspace.id,
    )


def _abandoned(machine_records: MachineRecords, machine_record: MachineRecord) -> bool:
    if machine_record.phase == "ready":
        return False
    view = machine_records.view(machine_record.name)
    return view is not None and view.abandoned


def _drifted(cloud: InteractiveCloud, machine: Machine, born: Facts) -> Iterator[str]:
    try:
        now = facts(machine, cloud.metadata(machine.name))
    except NotFound:
        return  # deleted in the meantime
    yield from drift(born, now)


def drift(born: Facts, now: Facts) -> Iterator[str]:
    """Yield the differences since the machine was created."""
    if now.type != born.type:
        yield f"type: {born.type} → {now.type}"
    if now.disk_gb != born.disk_gb:
        yield f"disk: {born.disk_gb:g} GB → {now.disk_gb:g} GB"
    if now.image != born.image:
        yield f"image: {born.image or 'none'} → {now.image or 'none'}"
    yield from _differences("label", born.labels, now.labels)
    yield from _differences("metadata", born.metadata, now.metadata)


def _differences(what: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for key in sorted({*before, *after}):
        if key not in after:
            yield f"{what} {key}: removed"
        elif key not in before:
            yield f"{what} {key}: added"
        elif before[key] != after[key]:
            yield f"{what} {key}: {_short(before[key])} → {_short(after[key])}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 30 else line[:29] + "…"


def similar_names(name: str, statuses: Sequence[MachineStatus]) -> list[str]:
    import difflib

    return difflib.get_close_matches(name, [status.name for status in statuses], n=3, cutoff=0.5)
