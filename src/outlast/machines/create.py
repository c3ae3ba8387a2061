"""Creation of a machine for a user: writes the record, then launches, zone by zone; rolls back on failure."""

from __future__ import annotations

import getpass
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import msgspec

from outlast.billing.budget_check import check_budget
from outlast.clouds.cloud import LABEL_MACHINE, LABEL_WORKSPACE, Boot, InteractiveCloud, Machine, Offer, Requirements
from outlast.clouds.geography import distance
from outlast.clouds.location import bucket_location
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
from outlast.machines.billing import close
from outlast.records.machines import Facts, MachineRecord, MachineRecords

# The rules of GCE for names, which are those of host names, so that a name is valid on every cloud.
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
# If the cheapest offer has no capacity, try others up to this factor of its price.
_DEARER_MAX = 1.5
_TRIES, _PAUSE_S = 4, 0.5

Report = Callable[[str], None]


class MachineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A requested machine."""

    name: str
    needs: Requirements
    boot: Boot
    labels: dict[str, str] = {}
    purpose: str = "manual"
    until_idle: bool = False
    # The image or family as the user named it; set when it is resolved.
    asked_image: str = ""


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"invalid machine name `{name}`",
            hint="use a letter, then letters, digits and dashes; lower case, at most 63 characters",
        )


def create_machine(
    cloud: InteractiveCloud,
    machine_records: MachineRecords,
    request: MachineRequest,
    *,
    report: Report = lambda _: None,
) -> tuple[Machine, MachineRecord]:
    """Launch the machine; its record stays `creating` until `finish`. On failure, nothing remains."""
    check_name(request.name)
    for label in request.labels:
        if label.startswith("outlast-"):
            raise UsageError(
                f"--label {label}: labels that begin with `outlast-` are reserved", hint="choose another label"
            )
    request = _with_image(cloud, request)
    near = bucket_location(machine_records.workspace.url, {cloud.name: cloud})
    offers = _offers(cloud, msgspec.structs.replace(request.needs, near=near))
    check_budget(machine_records.workspace, who=_user(), hour_usd=offers[0].price_usd_per_hour, now=time.time())
    _refuse_taken(cloud, machine_records, request.name)
    machine_record = _claim(machine_records, cloud, request)
    with ExitStack() as undo:
        undo.callback(roll_back, cloud, machine_records, machine_record, report=report)
        machine = _launch(cloud, machine_records, machine_record, request, offers, report)
        born = facts(machine, cloud.metadata(request.name))
        machine_record = machine_records.write(msgspec.structs.replace(machine_record, born=born))
        undo.pop_all()
    return machine, machine_record


def finish(machine_records: MachineRecords, machine_record: MachineRecord) -> MachineRecord:
    """Mark the machine as ready: it stays until a user deletes it."""
    return machine_records.write(msgspec.structs.replace(machine_record, phase="ready"))


def roll_back(
    cloud: InteractiveCloud,
    machine_records: MachineRecords,
    machine_record: MachineRecord,
    *,
    report: Report = lambda _: None,
) -> None:
    """Delete machine and record; on failure, report the leftovers. Never raises."""
    try:
        if _whose(cloud, machine_record.name) == machine_record.id:
            close(cloud, machine_records, machine_record)
            cloud.delete(machine_record.name)
        machine_records.remove_own(machine_record)
    except OutlastError as problem:
        report(f"{machine_record.name} may still exist and be billed: {problem.message}; `outlast reap` deletes it")


def facts(machine: Machine, metadata: Mapping[str, str]) -> Facts:
    return Facts(
        type=machine.type,
        disk_gb=machine.disk_gb,
        image=machine.image,
        labels=dict(machine.labels),
        metadata=dict(metadata),
    )


def _with_image(cloud: InteractiveCloud, request: MachineRequest) -> MachineRequest:
    """Resolve an image family to its current image, so that the record names the exact image."""
    if not request.boot.image:
        return request
    try:
        image = cloud.image(request.boot.image).name
    except NotFound as problem:
        raise BadRequest(
            f"{cloud.name} has no image and no family of images `{request.boot.image}`",
            hint="it may have been deleted; see `outlast image list`",
        ) from problem
    boot = msgspec.structs.replace(request.boot, image=image)
    needs = msgspec.structs.replace(request.needs, image=image)
    return msgspec.structs.replace(request, boot=boot, needs=needs, asked_image=request.boot.image)


def _offers(cloud: InteractiveCloud, needs: Requirements) -> Sequence[Offer]:
    offers = cloud.offers(needs)
    if not offers:
        raise BadRequest(f"no machine type of {cloud.name} matches the request", hint="request less, or omit --zone")
    offers = sorted(offers, key=lambda offer: distance(offer.region, needs.near))
    dearest = offers[0].price_usd_per_hour * _DEARER_MAX
    return [offer for offer in offers if offer.price_usd_per_hour <= dearest]


def _whose(cloud: InteractiveCloud, name: str) -> str | None:
    """Return the record id in the machine's labels; None if the machine does not exist."""
    try:
        return cloud.machine(name).labels.get(LABEL_MACHINE, "")
    except NotFound:
        return None


def _refuse_taken(cloud: InteractiveCloud, machine_records: MachineRecords, name: str) -> None:
    """Raise UsageError if a machine has the name; remove the record of a dead owner."""
    id_there = _whose(cloud, name)
    if id_there is not None:
        raise UsageError(
            f"machine `{name}` already exists on {cloud.name}",
            hint=f"choose another name, or see `outlast machine show {name}`",
        )
    view = machine_records.view(name)
    if view is not None and view.abandoned:
        machine_records.remove(name)  # its owner has died, and no machine exists


def _claim(machine_records: MachineRecords, cloud: InteractiveCloud, request: MachineRequest) -> MachineRecord:
    machine_record = MachineRecord(
        name=request.name,
        id=secrets.token_hex(6),
        cloud=cloud.name,
        who=_user(),
        purpose=request.purpose,
        until_idle=request.until_idle,
        asked_at=time.time(),
        spot=request.needs.spot,
        script=request.boot.script,
        image=request.asked_image,
        zones=request.needs.zones,
    )
    machine_records.workspace.remember_cloud(cloud.name)
    try:
        return machine_records.create(machine_record)
    except Exists as problem:
        found = machine_records.find(request.name)
        where, whom = (found.cloud, found.who) if found else (cloud.name, "another user")
        raise UsageError(
            f"the name `{request.name}` is taken in this workspace, by a machine of {whom} on {where}",
            hint=f"choose another name, or run `outlast machine delete {request.name}`",
        ) from problem


def _launch(
    cloud: InteractiveCloud,
    machine_records: MachineRecords,
    machine_record: MachineRecord,
    request: MachineRequest,
    offers: Sequence[Offer],
    report: Report,
) -> Machine:
    labels = {**request.labels, LABEL_WORKSPACE: machine_records.workspace.id, LABEL_MACHINE: machine_record.id}
    refused: dict[str, str] = {}
    full: set[str] = set()
    for offer in offers:
        if offer.region in full:
            continue
        try:
            machine = _launch_here(cloud, offer, request, labels)
        except NoCapacity as problem:
            refused[offer.zone] = problem.message
            report(f"{offer.zone}: {problem.message}; trying the next zone")
            machine_records.write(machine_record)
            continue
        except OverQuota as problem:
            refused[offer.region] = problem.message
            full.add(offer.region)
            continue
        if machine.labels.get(LABEL_MACHINE) != machine_record.id:
            raise UsageError(f"another process created machine `{request.name}` just now", hint="choose another name")
        return machine
    why = "; ".join(f"{place}: {message}" for place, message in refused.items())
    raise NoCapacity(
        f"could not launch {request.name}: {why}", hint="try another type, another zone, or without --spot"
    )


def _launch_here(cloud: InteractiveCloud, offer: Offer, request: MachineRequest, labels: Mapping[str, str]) -> Machine:
    """Launch in one zone; retry while the cloud is unreachable. A repeated launch finds the first."""
    for attempt in range(_TRIES):
        try:
            return cloud.launch(offer, request.name, boot=request.boot, labels=labels)
        except (Throttled, CloudUnreachable):
            if attempt == _TRIES - 1:
                raise
            time.sleep(_PAUSE_S * 2**attempt)
    raise CloudError(f"{cloud.name} is unreachable")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""  # an account without a name, as in containers
