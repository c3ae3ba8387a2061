"""What a machine made by hand has cost, as a line of the ledger; written down for good before it is deleted."""

from __future__ import annotations

from collections.abc import Mapping

from outlast.clouds.cloud import LABEL_HAND, Machine, Needs, Workshop
from outlast.errors import CloudError, NotFound
from outlast.workspace.books import Books
from outlast.workspace.hand import Hand, Hands
from outlast.workspace.ledger import Line


def line_of(machine: Machine, hand: Hand, *, on_demand_usd_per_hour: float = 0.0, over: bool = False) -> Line:
    """`over`: it is being deleted, and this is the whole of it."""
    ran_usd = machine.ran_s * machine.price_usd_per_hour / 3600.0 + hand.extra_usd
    age_s = max(0.0, machine.seen_at - machine.created_at)
    off_s = min(age_s, max(0.0, age_s - machine.ran_s))
    stopped_usd = off_s * machine.disk_usd_per_hour / 3600.0
    causes = {"hand": ran_usd, "disk": machine.disk_usd - stopped_usd, "stopped": stopped_usd}
    dearer = max(0.0, on_demand_usd_per_hour - machine.price_usd_per_hour)
    cost = ran_usd + machine.disk_usd
    return Line(
        kind="hand",
        name=machine.name,
        who=hand.who,
        cloud=machine.cloud,
        zone=machine.zone,
        type=machine.type,
        machine=machine.name,
        spot=machine.spot,
        begin=machine.created_at,
        end=machine.seen_at,
        seconds=machine.ran_s,
        cost_usd=cost,
        on_demand_usd=cost + machine.ran_s * dearer / 3600.0,
        causes={cause: usd for cause, usd in causes.items() if usd > 0},
        estimated=not over,
    )


def close(cloud: Workshop, hands: Hands, hand: Hand) -> None:
    """Write down what a machine has cost. One that is gone already has no line: nobody can tell any more.

    Raises CloudError and WorkspaceError, as the deletion that follows would.
    """
    try:
        machine = cloud.machine(hand.name)
    except NotFound:
        return
    if machine.labels.get(LABEL_HAND) == hand.id:
        dear = on_demand(cloud, machine)
        Books(hands.workspace).close_machine(hand, line_of(machine, hand, on_demand_usd_per_hour=dear, over=True))


def on_demand(cloud: Workshop, machine: Machine) -> float:
    """The price of such a machine where nobody takes it away; 0 if its cloud does not tell."""
    if not machine.spot:
        return machine.price_usd_per_hour
    try:
        offers = cloud.offers(Needs(type=machine.type, zones=(machine.zone,), spot=False))
    except CloudError:
        return 0.0
    return min((offer.price_usd_per_hour for offer in offers), default=0.0)


def open_lines(clouds: Mapping[str, Workshop], hands: Hands) -> tuple[list[Line], dict[str, str]]:
    """A line for every machine by hand that is there, and the clouds that did not answer. Only those are asked on which
    there is one."""
    records = {hand.name: hand for hand in hands.all()}
    lines: list[Line] = []
    blind: dict[str, str] = {}
    for name in sorted({hand.cloud for hand in records.values()}):
        cloud = clouds.get(name)
        try:
            machines = cloud.machines() if cloud is not None else []
        except CloudError as problem:
            blind[name] = problem.message
            continue
        for machine in machines:
            hand = records.get(machine.name)
            if cloud is not None and hand is not None and machine.labels.get(LABEL_HAND) == hand.id:
                lines.append(line_of(machine, hand, on_demand_usd_per_hour=on_demand(cloud, machine)))
    return lines, blind
