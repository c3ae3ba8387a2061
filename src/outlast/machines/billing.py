"""The cost of machines that no run owns: read from their cloud, stored in the ledger before deletion."""

from __future__ import annotations

from collections.abc import Mapping

from outlast.billing.ledger import LedgerLine, machine_line
from outlast.billing.ledger_store import LedgerStore
from outlast.clouds.cloud import LABEL_MACHINE, InteractiveCloud, Machine, Requirements
from outlast.errors import CloudError, NotFound
from outlast.records.machines import MachineRecord, MachineRecords


def close(cloud: InteractiveCloud, machine_records: MachineRecords, machine_record: MachineRecord) -> None:
    """Store the cost of a machine. The cost of a deleted machine is unknown, so it has no line.

    Raises CloudError and WorkspaceError, as the deletion that follows would.
    """
    try:
        machine = cloud.machine(machine_record.name)
    except NotFound:
        return
    if machine.labels.get(LABEL_MACHINE) == machine_record.id:
        LedgerStore(machine_records.workspace).close_machine(
            machine_record, machine, on_demand_usd_per_hour=on_demand(cloud, machine)
        )


def on_demand(cloud: InteractiveCloud, machine: Machine) -> float:
    """Return the on-demand price of such a machine; 0 if it is unknown."""
    if not machine.spot:
        return machine.price_usd_per_hour
    try:
        offers = cloud.offers(Requirements(type=machine.type, zones=(machine.zone,), spot=False))
    except CloudError:
        return 0.0
    return min((offer.price_usd_per_hour for offer in offers), default=0.0)


def open_lines(
    clouds: Mapping[str, InteractiveCloud], machine_records: MachineRecords
) -> tuple[list[LedgerLine], dict[str, str]]:
    """Return a line for every existing machine with a record, and the unreachable clouds.

    Only clouds with such a machine are queried.
    """
    records = {machine_record.name: machine_record for machine_record in machine_records.all()}
    lines: list[LedgerLine] = []
    unreachable: dict[str, str] = {}
    for name in sorted({machine_record.cloud for machine_record in records.values()}):
        cloud = clouds.get(name)
        try:
            machines = cloud.machines() if cloud is not None else []
        except CloudError as problem:
            unreachable[name] = problem.message
            continue
        for machine in machines:
            machine_record = records.get(machine.name)
            if (
                cloud is not None
                and machine_record is not None
                and machine.labels.get(LABEL_MACHINE) == machine_record.id
            ):
                lines.append(
                    machine_line(
                        machine,
                        who=machine_record.who,
                        extra_usd=machine_record.extra_usd,
                        on_demand_usd_per_hour=on_demand(cloud, machine),
                    )
                )
    return lines, unreachable
