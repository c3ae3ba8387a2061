"""What machines made by hand cost: asked of their cloud, and written down for good before they are deleted."""

from __future__ import annotations

from collections.abc import Mapping

from outlast.clouds.cloud import LABEL_HAND, Machine, Needs, Workshop
from outlast.errors import CloudError, NotFound
from outlast.workspace.books import Books
from outlast.workspace.hand import Hand, Hands
from outlast.workspace.ledger import Line, hand_line


def close(cloud: Workshop, hands: Hands, hand: Hand) -> None:
    """Write down what a machine has cost. One that is gone already has no line: nobody can tell any more.

    Raises CloudError and WorkspaceError, as the deletion that follows would.
    """
    try:
        machine = cloud.machine(hand.name)
    except NotFound:
        return
    if machine.labels.get(LABEL_HAND) == hand.id:
        Books(hands.workspace).close_machine(hand, machine, on_demand_usd_per_hour=on_demand(cloud, machine))


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
                dear = on_demand(cloud, machine)
                lines.append(hand_line(machine, who=hand.who, extra_usd=hand.extra_usd, on_demand_usd_per_hour=dear))
    return lines, blind
