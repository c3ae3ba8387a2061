"""The machine that supervises a workspace: makes it, finds the one that is there, takes it down."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

import msgspec

from outlast.clouds.cloud import LABEL_HAND, Boot, Machine, Needs, Range, Workshop
from outlast.errors import NotFound, UsageError
from outlast.machines import care
from outlast.machines.make import Say, Wish, finish, make, unmake
from outlast.workspace.hand import Hand, Hands, supervisor_name

PURPOSE = "supervisor"
# Cloud → the smallest machine that it runs all day, and where its workspaces are. A supervisor waits most of the time.
SMALLEST = {"gcp": "e2-micro", "aws": "t3.micro"}
PLACES = {"gcp": "gs://", "aws": "s3://"}
_DISK_GB = 10.0
_PAUSE_S, _PATIENCE_S = 1.0, 600.0


def check(cloud: str, workspace_url: str) -> None:
    """Raises UsageError when no machine of that cloud could supervise this workspace."""
    if cloud not in PLACES:
        hint = "`outlast supervise` does it here; clouds with machines that stay on: " + ", ".join(sorted(PLACES))
        raise UsageError(f"no machine of `{cloud}` can supervise while this computer sleeps", hint=hint)
    if not workspace_url.startswith(PLACES[cloud]):
        hint = f"use a workspace in {PLACES[cloud]}…: `--workspace`, or OUTLAST_WORKSPACE"
        raise UsageError(f"machines of {cloud} cannot see the workspace {workspace_url}", hint=hint)


def find(hands: Hands) -> Hand | None:
    """The record of the machine that supervises, whoever made it."""
    return hands.find(supervisor_name(hands.workspace))


def ensure(
    cloud: Workshop,
    hands: Hands,
    *,
    boot: Callable[[], Boot],
    until_idle: bool,
    type: str = "",
    zones: tuple[str, ...] = (),
    say: Say = lambda _: None,
) -> tuple[Machine, bool]:
    """The machine that supervises, and whether it boots just now. Raises with nothing left behind."""
    there = _settled(cloud, hands, say)
    if there is not None:
        hand, machine = there
        if hand.until_idle != until_idle:
            hands.write(msgspec.structs.replace(hand, until_idle=until_idle))
        if machine.status in ("stopped", "stopping"):
            say(f"{machine.name} is {machine.status}; starting it")
            cloud.start(machine.name)
        return cloud.machine(machine.name), machine.status in ("stopped", "stopping")
    needs = Needs(type=type or SMALLEST[cloud.name], spot=False, disk_gb=_DISK_GB, zones=zones, cpus=Range())
    wish = Wish(name=supervisor_name(hands.workspace), needs=needs, boot=boot(), purpose=PURPOSE, until_idle=until_idle)
    say(f"making {wish.name} on {cloud.name}")
    machine, hand = make(cloud, hands, wish, say=say)
    with ExitStack() as undo:
        undo.callback(unmake, cloud, hands, hand, say=say)
        finish(hands, hand)
        undo.pop_all()
    return machine, True


def _settled(cloud: Workshop, hands: Hands, say: Say) -> tuple[Hand, Machine] | None:
    """The one that is there and stays; None when there is none, with nothing of an earlier one in the way."""
    name, told, give_up_at = supervisor_name(hands.workspace), "", time.monotonic() + _PATIENCE_S
    while (hand := hands.find(name)) is not None:
        if hand.cloud != cloud.name:
            why = (
                f"a machine of {hand.cloud} supervises this workspace already: {name}, made by {hand.who or 'somebody'}"
            )
            raise UsageError(why, hint="take it down first: `outlast supervise --off`")
        machine = _machine(cloud, hand)
        view = hands.view(name)
        if view is not None and view.phase == "ready" and machine is not None and machine.status != "broken":
            return hand, machine
        if view is None or view.abandoned or view.phase == "ready":
            say(f"{name} is no good any more; making another")
            off(cloud, hands)
        elif time.monotonic() > give_up_at:
            raise UsageError(f"{hand.by} is {hand.phase} {name} for too long", hint="look at it, and try again")
        else:
            if told != hand.phase:
                say(f"{hand.who or 'somebody'} is {hand.phase} {name} just now; waiting")
            told = hand.phase
            time.sleep(_PAUSE_S)
    return None


def _machine(cloud: Workshop, hand: Hand) -> Machine | None:
    try:
        machine = cloud.machine(hand.name)
    except NotFound:
        return None
    return machine if machine.labels.get(LABEL_HAND) == hand.id else None


def off(cloud: Workshop, hands: Hands) -> None:
    """Take it down: machine, disk, record. May be repeated."""
    hand = find(hands)
    if hand is None:
        return
    if _machine(cloud, hand) is None:
        care.forget(hands, hand.name)
    else:
        care.delete(cloud, hands, hand.name)
