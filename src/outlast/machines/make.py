"""Makes a machine for a person: the record first, then the launch, zone by zone. Whatever fails leaves nothing."""

from __future__ import annotations

import getpass
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import msgspec

from outlast.clouds.cloud import LABEL_HAND, LABEL_WORKSPACE, Boot, Machine, Needs, Offer, Workshop
from outlast.errors import (
    BadRequest,
    CloudError,
    CloudUnreachable,
    Exists,
    NoCapacity,
    NotFound,
    OutlastError,
    OverQuota,
    Throttled,
    UsageError,
)
from outlast.machines.bill import close
from outlast.workspace.hand import Facts, Hand, Hands
from outlast.workspace.standing import refuse_if_spent

# The rules of GCE, which are those of host names: what is made here can be made there.
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
# If the cheapest is not to be had the next zones are tried, not machines that nobody meant: so much dearer at most.
_DEARER_MAX = 1.5
_TRIES, _PAUSE_S = 4, 0.5

Say = Callable[[str], None]


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """A machine as it is asked for."""

    name: str
    needs: Needs
    boot: Boot
    labels: dict[str, str] = {}
    purpose: str = "hand"
    until_idle: bool = False
    # The family, if that was named; filled in when the wish is granted.
    asked_image: str = ""


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"`{name}` cannot be the name of a machine",
            hint="a letter, then letters, digits and dashes; lower case, 63 characters at most",
        )


def make(cloud: Workshop, hands: Hands, wish: Wish, *, say: Say = lambda _: None) -> tuple[Machine, Hand]:
    """The machine, launched, and its record, which says `making` until `finish`. Raises with nothing left behind.

    Repeating it with another wish of the same name is refused.
    """
    check_name(wish.name)
    for label in wish.labels:
        if label.startswith("outlast-"):
            raise UsageError(f"--label {label}: labels that begin with `outlast-` are ours", hint="name it otherwise")
    wish = _with_image(cloud, wish)
    offers = _offers(cloud, wish.needs)
    refuse_if_spent(hands.workspace, who=_user(), hour_usd=offers[0].price_usd_per_hour, now=time.time())
    _refuse_taken(cloud, hands, wish.name)
    hand = _claim(hands, cloud, wish)
    with ExitStack() as undo:
        undo.callback(unmake, cloud, hands, hand, say=say)
        machine = _launch(cloud, hands, hand, wish, offers, say)
        born = facts(machine, cloud.metadata(wish.name))
        hand = hands.write(msgspec.structs.replace(hand, born=born))
        undo.pop_all()
    return machine, hand


def finish(hands: Hands, hand: Hand) -> Hand:
    """It is made, and stays until somebody deletes it."""
    return hands.write(msgspec.structs.replace(hand, phase="ready"))


def unmake(cloud: Workshop, hands: Hands, hand: Hand, *, say: Say = lambda _: None) -> None:
    """Take back what was made; says what is left if that does not work, and raises nothing."""
    try:
        if _whose(cloud, hand.name) == hand.id:
            close(cloud, hands, hand)
            cloud.delete(hand.name)
        hands.take_back(hand)
    except OutlastError as problem:
        say(f"{hand.name} may be there and may bill: {problem.message}; `outlast reap` deletes it")


def facts(machine: Machine, metadata: Mapping[str, str]) -> Facts:
    return Facts(
        type=machine.type,
        disk_gb=machine.disk_gb,
        image=machine.image,
        labels=dict(machine.labels),
        metadata=dict(metadata),
    )


def _with_image(cloud: Workshop, wish: Wish) -> Wish:
    """The wish with the image that a family stands for now: what a machine was made from is told by its name."""
    if not wish.boot.image:
        return wish
    try:
        image = cloud.image(wish.boot.image).name
    except NotFound as problem:
        raise BadRequest(
            f"{cloud.name} has no image and no family of images `{wish.boot.image}`",
            hint="it may have been deleted; `outlast image list` shows those that are there",
        ) from problem
    boot = msgspec.structs.replace(wish.boot, image=image)
    needs = msgspec.structs.replace(wish.needs, image=image)
    return msgspec.structs.replace(wish, boot=boot, needs=needs, asked_image=wish.boot.image)


def _offers(cloud: Workshop, needs: Needs) -> Sequence[Offer]:
    offers = cloud.offers(needs)
    if not offers:
        raise BadRequest(f"no machine of {cloud.name} is like that", hint="ask for less, or name no zone")
    dearest = offers[0].price_usd_per_hour * _DEARER_MAX
    return [offer for offer in offers if offer.price_usd_per_hour <= dearest]


def _whose(cloud: Workshop, name: str) -> str | None:
    """The id that the machine of that name carries; None if there is no such machine."""
    try:
        return cloud.machine(name).labels.get(LABEL_HAND, "")
    except NotFound:
        return None


def _refuse_taken(cloud: Workshop, hands: Hands, name: str) -> None:
    """A name is taken by a machine, or by a record whose maker may still be at it."""
    id_there = _whose(cloud, name)
    if id_there is not None:
        raise UsageError(
            f"there is a machine `{name}` on {cloud.name} already",
            hint=f"take another name, or see `outlast machine show {name}`",
        )
    view = hands.view(name)
    if view is not None and view.abandoned:
        hands.remove(name)  # its maker is gone, and so is its machine, or there never was one


def _claim(hands: Hands, cloud: Workshop, wish: Wish) -> Hand:
    hand = Hand(
        name=wish.name,
        id=secrets.token_hex(6),
        cloud=cloud.name,
        who=_user(),
        purpose=wish.purpose,
        until_idle=wish.until_idle,
        asked_at=time.time(),
        spot=wish.needs.spot,
        script=wish.boot.script,
        image=wish.asked_image,
        zones=wish.needs.zones,
    )
    if cloud.name != "local":
        hands.workspace.remember_cloud(cloud.name)
    try:
        return hands.create(hand)
    except Exists as problem:
        found = hands.find(wish.name)
        where, whom = (found.cloud, found.who) if found else (cloud.name, "somebody")
        raise UsageError(
            f"the name `{wish.name}` is taken in this workspace: {whom} has or makes such a machine on {where}",
            hint=f"take another name, or forget that one with `outlast machine delete {wish.name}`",
        ) from problem


def _launch(cloud: Workshop, hands: Hands, hand: Hand, wish: Wish, offers: Sequence[Offer], say: Say) -> Machine:
    labels = {**wish.labels, LABEL_WORKSPACE: hands.workspace.id, LABEL_HAND: hand.id}
    refused: dict[str, str] = {}
    full: set[str] = set()
    for offer in offers:
        if offer.region in full:
            continue
        try:
            machine = _launch_here(cloud, offer, wish, labels)
        except NoCapacity as problem:
            refused[offer.zone] = problem.message
            say(f"{offer.zone}: {problem.message}; trying the next")
            hands.write(hand)
            continue
        except OverQuota as problem:
            refused[offer.region] = problem.message
            full.add(offer.region)
            continue
        if machine.labels.get(LABEL_HAND) != hand.id:
            raise UsageError(f"somebody else made a machine `{wish.name}` just now", hint="take another name")
        return machine
    why = "; ".join(f"{place}: {message}" for place, message in refused.items())
    raise NoCapacity(f"could not make {wish.name}: {why}", hint="try another type, another zone, or without --spot")


def _launch_here(cloud: Workshop, offer: Offer, wish: Wish, labels: Mapping[str, str]) -> Machine:
    """One launch, repeated while the cloud's answers get lost: a repeated launch finds the first."""
    for attempt in range(_TRIES):
        try:
            return cloud.launch(offer, wish.name, boot=wish.boot, labels=labels)
        except (Throttled, CloudUnreachable):
            if attempt == _TRIES - 1:
                raise
            time.sleep(_PAUSE_S * 2**attempt)
    raise CloudError(f"{cloud.name} does not answer")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""  # an account without a name, as in containers
