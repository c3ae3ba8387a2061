"""What there is to see of machines: what they cost, what they cost while they do nothing, what changed since they were
made. Refuses to change anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from outlast.clouds.cloud import LABEL_ATTEMPT, LABEL_HAND, LABEL_RUN, LABEL_WORKSPACE, Machine, Workshop
from outlast.errors import CloudError, NotFound
from outlast.machines.make import facts
from outlast.workspace.hand import Facts, Hand, Hands


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """One machine of one cloud, or a record whose machine is gone."""

    name: str
    cloud: str
    machine: Machine | None = None
    hand: Hand | None = None
    drift: tuple[str, ...] = ()
    # Whoever was making or deleting it is gone, and nobody goes on with it.
    abandoned: bool = False
    workspace_id: str = ""

    @property
    def status(self) -> str:
        if self.hand is not None and self.hand.phase != "ready":
            return self.hand.phase
        return self.machine.status if self.machine else "gone"

    @property
    def whose(self) -> str:
        """`you` by hand, a run, a teammate's workspace, or nobody that we know."""
        if self.machine is None or self.hand is not None:
            return self.hand.who or "hand" if self.hand else ""
        labels = self.machine.labels
        if labels.get(LABEL_WORKSPACE) not in (None, self.workspace_id):
            return "another workspace"
        if LABEL_RUN in labels:
            return f"{labels[LABEL_RUN]} attempt {labels.get(LABEL_ATTEMPT, '?')}"
        return "nobody" if LABEL_HAND in labels else "not ours"

    @property
    def ours(self) -> bool:
        return self.machine is None or self.machine.labels.get(LABEL_WORKSPACE) == self.workspace_id

    @property
    def usd_per_hour(self) -> float:
        """What it costs as it is now: a stopped machine still has its disk."""
        return self.machine.bills_usd_per_hour if self.machine else 0.0

    @property
    def bills_for_nothing(self) -> bool:
        return self.machine is not None and self.machine.status == "stopped" and self.usd_per_hour > 0

    @property
    def cost_usd(self) -> float:
        return cost_usd(self.machine, self.hand)


def cost_usd(machine: Machine | None, hand: Hand | None) -> float:
    """What a machine has cost, under every type and in every zone that it had."""
    return (machine.cost_usd if machine else 0.0) + (hand.extra_usd if hand else 0.0)


def see_all(
    clouds: Mapping[str, Workshop], hands: Hands, *, with_drift: bool = True
) -> tuple[list[Sight], dict[str, str]]:
    """Every machine of every cloud in every status, records without a machine, and the clouds that did not answer."""
    records = {hand.name: hand for hand in hands.all()}
    found: list[Sight] = []
    blind: dict[str, str] = {}
    for name, cloud in clouds.items():
        try:
            machines = cloud.machines()
        except CloudError as problem:
            blind[name] = problem.message
            continue
        found += [_sight(cloud, hands, machine, records, with_drift=with_drift) for machine in machines]
    seen = {(sight.cloud, sight.name) for sight in found if sight.hand}
    for hand in records.values():
        if (hand.cloud, hand.name) not in seen and hand.cloud in clouds and hand.cloud not in blind:
            found.append(
                Sight(
                    name=hand.name,
                    cloud=hand.cloud,
                    hand=hand,
                    abandoned=_abandoned(hands, hand),
                    workspace_id=hands.workspace.id,
                )
            )
    return sorted(found, key=lambda sight: (sight.cloud, sight.name)), blind


def see(cloud: Workshop, hands: Hands, machine: Machine) -> Sight:
    hand = hands.legible(machine.name)
    return _sight(cloud, hands, machine, {machine.name: hand} if hand else {}, with_drift=True)


def _sight(cloud: Workshop, hands: Hands, machine: Machine, records: Mapping[str, Hand], *, with_drift: bool) -> Sight:
    hand = records.get(machine.name)
    if hand is not None and (hand.cloud != cloud.name or machine.labels.get(LABEL_HAND, hand.id) != hand.id):
        hand = None  # a namesake
    drift: tuple[str, ...] = ()
    if with_drift and hand is not None and hand.born is not None:
        drift = tuple(_drifted(cloud, machine, hand.born))
    return Sight(
        name=machine.name,
        cloud=cloud.name,
        machine=machine,
        hand=hand,
        drift=drift,
        abandoned=hand is not None and _abandoned(hands, hand),
        workspace_id=hands.workspace.id,
    )


def _abandoned(hands: Hands, hand: Hand) -> bool:
    if hand.phase == "ready":
        return False
    view = hands.view(hand.name)
    return view is not None and view.abandoned


def _drifted(cloud: Workshop, machine: Machine, born: Facts) -> Iterator[str]:
    try:
        now = facts(machine, cloud.metadata(machine.name))
    except NotFound:
        return  # deleted while we looked
    yield from drift(born, now)


def drift(born: Facts, now: Facts) -> Iterator[str]:
    """What is not as it was when the machine was made."""
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


def near(name: str, sights: Sequence[Sight]) -> list[str]:
    import difflib

    return difflib.get_close_matches(name, [sight.name for sight in sights], n=3, cutoff=0.5)
