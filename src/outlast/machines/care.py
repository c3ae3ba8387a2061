"""What people do with a machine that is there: start, stop, resize, snapshot, delete. Keeps its record true."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from outlast.clouds.cloud import LABEL_HAND, Image, Machine, Workshop
from outlast.errors import BadRequest, CloudError, Damaged, NotFound, UsageError
from outlast.machines import sshfiles
from outlast.machines.bill import close
from outlast.workspace.hand import Hand, Hands, cluster_of


def start(cloud: Workshop, hands: Hands, name: str) -> None:
    """Boot a stopped machine. Raises NotFound, NoCapacity."""
    _want(cloud, hands, name, "running")
    cloud.start(name)


def stop(cloud: Workshop, hands: Hands, name: str) -> None:
    """Power off, keep the disk. Said in the record first: whoever keeps the machine alive must not revive it."""
    _want(cloud, hands, name, "stopped")
    cloud.stop(name)


def delete(cloud: Workshop, hands: Hands, name: str) -> None:
    """Machine, disk, record, ssh block. In this order, so that one cut short is found by the reaper."""
    hand = hands.legible(name)
    if hand is not None and hand.cloud == cloud.name:
        hands.write(msgspec.structs.replace(hand, phase="deleting"))
        close(cloud, hands, hand)
    cloud.delete(name)
    forget(hands, name)


def forget(hands: Hands, name: str) -> None:
    """What is remembered of a machine that is no more."""
    hands.bucket.delete(packages_key(name))
    hands.bucket.delete(f"keep/{name}.json")
    hands.remove(name)
    sshfiles.forget_machine(name)


def drop(hands: Hands, hand: Hand) -> None:
    """The same of this very machine, and not of another that has its name by now."""
    found = hands.legible(hand.name)
    if found is not None and found.id == hand.id:
        forget(hands, hand.name)


def left_over(hands: Hands, clouds: Mapping[str, Workshop]) -> list[Hand]:
    """Records of machines that never came, or are gone: whoever was making or deleting them was killed. Those of
    clouds that do not answer are left alone, and those of a cluster go with it."""
    found = []
    for hand in hands.all():
        try:
            view = hands.view(hand.name)
            clustered = cluster_of(hand.purpose) and hands.cluster(cluster_of(hand.purpose)) is not None
            if view is None or not view.abandoned or clustered or hand.cloud not in clouds:
                continue
            if clouds[hand.cloud].machine(hand.name).labels.get(LABEL_HAND) != hand.id:
                found.append(hand)  # a namesake has come since
        except NotFound:
            found.append(hand)
        except (CloudError, Damaged):
            continue
    return found


def packages_key(name: str) -> str:
    return f"packages/{name}.json"


def resize(
    cloud: Workshop, hands: Hands, name: str, *, type: str = "", disk_gb: float = 0.0, restart: bool = False
) -> None:
    """Another type, a larger disk. A running machine is stopped for its type only if that was said."""
    if not type and not disk_gb:
        raise UsageError("there is nothing to change", hint="say --type, --disk, or both")
    machine = cloud.machine(name)
    running = machine.status not in ("stopped", "broken")
    if type and type != machine.type and running and not restart:
        raise BadRequest(
            f"{name} is {machine.status}, and the type of a machine can be changed while it is stopped",
            hint="say --restart to stop it, change it and start it again",
        )
    if disk_gb and disk_gb < machine.disk_gb:
        raise BadRequest(f"the disk of {name} has {machine.disk_gb:g} GB, and disks cannot shrink")
    before = cloud.machine(name)
    if type and type != machine.type:
        _change_type(cloud, name, type, running=running)
    if disk_gb and disk_gb != machine.disk_gb:
        cloud.resize(name, disk_gb=disk_gb)
    hand = record_of(hands, cloud, machine)
    if hand is not None:
        # The cloud's figure is at the price of today for all the time before.
        extra_usd = hand.extra_usd + before.cost_usd - cloud.machine(name).cost_usd
        hands.write(msgspec.structs.replace(hand, extra_usd=extra_usd))


def _change_type(cloud: Workshop, name: str, type: str, *, running: bool) -> None:
    if running:
        cloud.stop(name)
    try:
        cloud.resize(name, type=type)
    finally:
        # Also when the type was refused: whoever had a running machine has one again.
        if running:
            cloud.start(name)


def snapshot(cloud: Workshop, name: str, *, image: str, family: str, may_stop: bool = False, note: str = "") -> Image:
    """An image of its disk. A running machine is stopped for it only if that was said, and started again."""
    machine = cloud.machine(name)
    running = machine.status in ("pending", "running", "stopping")
    if running and not may_stop:
        raise BadRequest(
            f"{name} is {machine.status}; a snapshot of a disk that is written to may be torn",
            hint="say --stop to stop it, take the snapshot and start it again",
        )
    if running:
        cloud.stop(name)
    try:
        return cloud.snapshot(name, image, family=family, note=note)
    finally:
        if running:
            cloud.start(name)


def _want(cloud: Workshop, hands: Hands, name: str, wanted: Literal["running", "stopped"]) -> None:
    """Write down what is wanted of it. Raises NotFound."""
    hand = record_of(hands, cloud, must_have(cloud, name))
    if hand is not None and hand.wanted != wanted:
        hands.write(msgspec.structs.replace(hand, wanted=wanted))


def record_of(hands: Hands, cloud: Workshop, machine: Machine) -> Hand | None:
    """The record of just this machine, not of a namesake."""
    hand = hands.find(machine.name)
    if hand is None or hand.cloud != cloud.name or machine.labels.get(LABEL_HAND, hand.id) != hand.id:
        return None
    return hand


def must_have(cloud: Workshop, name: str) -> Machine:
    try:
        return cloud.machine(name)
    except NotFound as problem:
        raise NotFound(f"{cloud.name} has no machine `{name}` any more", hint="see `outlast machine list`") from problem
