"""The machine behind an instance: its birth, its metadata, its power and its end, on the local cloud."""

from __future__ import annotations

import functools
import json
import time
from pathlib import Path
from typing import Any

from outlast.clouds.cloud import Boot, Machine
from outlast.clouds.local import catalog, drives
from outlast.clouds.local.folder import SUSPENDED
from outlast.clouds.local.serve.compute import backing, disks, fixed, logins
from outlast.clouds.local.serve.compute.desk import Desk
from outlast.clouds.local.serve.compute.links import Doc, Ref, last, ref_of, stable_number, timestamp
from outlast.clouds.local.serve.compute.operations import Failure
from outlast.clouds.local.service import ATTRIBUTE_OVERLAY
from outlast.errors import CloudError, NotFound

_BOOT_S_MAX = 30.0
_GUEST = Path(__file__).with_name("guest.py")
# Ends that nobody asked for.
_WRITTEN_DOWN = ("preempted", "powered off by itself")
_DISK_FIELDS = {name: name for name in ("index", "interface", "mode", "type")} | {"device-name": "deviceName"}
_STATUS = {"pending": "STAGING", "running": "RUNNING", "stopping": "STOPPING", "stopped": "TERMINATED"}


# What the machine is told


@functools.cache
def guest_program(kind: str) -> str:
    """The program that a machine runs at its start or its end."""
    text = _GUEST.read_text(encoding="utf-8")
    return "#!/usr/bin/env python3\n" + text.replace('KIND = "startup"', f'KIND = "{kind}"')


def attributes(doc: Doc) -> dict[str, str]:
    return {str(item["key"]): str(item["value"]) for item in doc["metadata"].get("items", [])}


def raw_metadata(desk: Desk, ref: Ref, doc: Doc) -> dict[str, str]:
    """The attributes of the local machine: what its power supply reads, and the overlay that its programs see."""
    own, common = attributes(doc), fixed.common_metadata(desk, ref.project)
    ending = any(own.get(key) or common.get(key) for key in ("shutdown-script", "shutdown-script-url"))
    return {
        ATTRIBUTE_OVERLAY: json.dumps(overlay(desk, ref, doc)),
        "ssh-keys": "\n".join(key.strip() for key in _ssh_keys(desk, ref, own) if key.strip()),
        "shutdown-script": guest_program("shutdown") if ending else "",
        drives.ATTRIBUTE: json.dumps(disks.plugged(desk, doc)),
    }


def _ssh_keys(desk: Desk, ref: Ref, own: dict[str, str]) -> list[str]:
    """Who may come in: whom OS Login knows, where it is on, and whom the metadata name everywhere else."""
    if logins.are_used(desk, ref.project, own):
        return logins.lines(desk)
    common = {} if own.get("block-project-ssh-keys", "").lower() == "true" else fixed.common_metadata(desk, ref.project)
    return [named.get(key, "") for named in (own, common) for key in ("ssh-keys", "sshKeys")]


def overlay(desk: Desk, ref: Ref, doc: Doc) -> Doc:
    """What the metadata server says of this machine."""
    zone, place = last(ref.scope), f"projects/{stable_number(ref.project)}"
    accounts = {
        name: {"aliases": ["default"], "email": account["email"], "scopes": account["scopes"]}
        for account in doc.get("serviceAccounts", [])
        for name in ("default", account["email"])
    }
    common = fixed.common_metadata(desk, ref.project)
    boot = desk.store.get(ref_of(doc["disks"][0]["source"])) or {}
    rules = doc["scheduling"]
    # A script of the project is for all machines that have none of their own.
    scripts = {key: value for key, value in common.items() if key.startswith(("startup-script", "shutdown-script"))}
    instance = {
        "attributes": {**scripts, **attributes(doc)},
        "description": doc.get("description", ""),
        "disks": [{name: disk[told] for name, told in _DISK_FIELDS.items()} for disk in doc["disks"]],
        "hostname": doc.get("hostname") or f"{ref.name}.{zone}.c.{ref.project}.internal",
        "id": int(doc["id"]),
        "image": boot.get("sourceImage", "").partition("googleapis.com/")[2],
        "machine-type": f"{place}/machineTypes/{last(doc['machineType'])}",
        "name": ref.name,
        "network-interfaces": [
            {
                "network": f"{place}/networks/{last(one['network'])}",
                **({} if one.get("accessConfigs") else {"access-configs": []}),
            }
            for one in doc["networkInterfaces"]
        ],
        "scheduling": {
            "automatic-restart": str(rules["automaticRestart"]).upper(),
            "on-host-maintenance": rules["onHostMaintenance"],
            "preemptible": str(rules["preemptible"]).upper(),
        },
        "service-accounts": accounts,
        "tags": doc["tags"].get("items", []),
        "zone": f"{place}/zones/{zone}",
        "outlast": {"environment": dict(desk.environment)},
    }
    project = {
        "attributes": common,
        "numeric-project-id": stable_number(ref.project),
        "project-id": ref.project,
    }
    return {"instance": instance, "project": project}


def tell(desk: Desk, ref: Ref) -> None:
    """Let the machine know what changed. One that is gone needs no news."""
    if (doc := desk.store.get(ref)) is not None and not doc.get("_creating"):
        try:
            desk.cloud.set_metadata(doc["_machine"], raw_metadata(desk, ref, doc))
        except NotFound:
            pass


def tell_all(desk: Desk, project: str) -> None:
    for ref, _ in desk.store.each("instances", project):
        tell(desk, ref)


# Birth


def launch(desk: Desk, ref: Ref) -> None:
    """Boot the machine of a new instance; what cannot be launched is not left behind."""
    doc = desk.find(ref)
    launched = False
    try:
        _launch(desk, ref, doc)
        launched = True
    finally:
        if not launched:
            forget(desk, ref, doc)


def _launch(desk: Desk, ref: Ref, doc: Doc) -> None:
    for attached in doc["disks"]:
        disks.fill(desk, ref_of(attached["source"]))
    disk = ref_of(doc["disks"][0]["source"])
    boot_disk = desk.find(disk)
    former, image = str(boot_disk.get("_machine", "")), str(boot_disk.get("_local", ""))
    with desk.names:
        name = backing.local_machine(desk, ref)
        desk.change(disk, _machine=name)
    try:
        if former:
            # The disk of a machine that is gone: this one is another, and boots from what the first has left.
            image = backing.local_image(desk, disk._replace(collection="snapshots"))
            desk.cloud.stop(former)
            desk.cloud.snapshot(former, image)
        _boot(desk, ref, {**doc, "_machine": name}, image)
        if former:
            desk.cloud.delete(former)
    except CloudError:
        desk.cloud.delete(name)
        if desk.store.get(disk) is not None:
            desk.change(disk, _machine=former or None)
        raise
    finally:
        if former:
            desk.cloud.delete_image(image)
    desk.change(ref, _machine=name, _creating=None)
    # Keys may have come while it was being made.
    tell(desk, ref)


def _boot(desk: Desk, ref: Ref, doc: Doc, image: str) -> None:
    rules = doc["scheduling"]
    life_s = float(rules.get("maxRunDuration", {}).get("seconds", 0))
    boot = Boot(
        script=guest_program("startup"),
        image=image,
        metadata=raw_metadata(desk, ref, doc),
        disk_gb=float(doc["disks"][0]["diskSizeGb"]),
        forwards=(desk.port,),
        life_max_s=life_s if rules.get("instanceTerminationAction") == "DELETE" else 0.0,
    )
    offer = catalog.offer(last(doc["machineType"]), last(ref.scope), spot=rules["preemptible"])
    desk.cloud.launch(offer, doc["_machine"], boot=boot, labels=doc.get("labels", {}))
    _wait_running(desk, doc["_machine"])


def _wait_running(desk: Desk, name: str) -> None:
    give_up_at = time.monotonic() + _BOOT_S_MAX
    while (machine := desk.cloud.machine(name)).status == "pending":
        if time.monotonic() > give_up_at:
            raise Failure("INTERNAL_ERROR", f"the machine did not boot within {_BOOT_S_MAX:g} s", status=500)
        time.sleep(0.01)
    if machine.status == "broken":
        raise Failure("INTERNAL_ERROR", f"the machine cannot boot: {machine.why}", status=500)


# Power


def stop(desk: Desk, ref: Ref) -> None:
    doc = desk.change(ref, _stopping=True)
    try:
        desk.cloud.stop(doc["_machine"])
    finally:
        if desk.store.get(ref) is not None:
            desk.change(ref, _stopping=None)


def start(desk: Desk, ref: Ref) -> None:
    if is_suspended(backing.machine_of(desk, desk.find(ref)["_machine"])):
        raise Failure("INVALID_USAGE", f"'{ref.path}' is suspended: it must be resumed, and cannot be started.")
    doc = desk.change(ref, _ended=None)
    disks.wipe_scratch(desk, doc)
    tell(desk, ref)
    desk.cloud.start(doc["_machine"])
    _wait_running(desk, doc["_machine"])


def suspend(desk: Desk, ref: Ref) -> None:
    desk.cloud.suspend(desk.find(ref)["_machine"])
    desk.change(ref, lastSuspendedTimestamp=timestamp())


def resume(desk: Desk, ref: Ref) -> None:
    desk.cloud.resume(desk.find(ref)["_machine"])


def reset(desk: Desk, ref: Ref) -> None:
    stop(desk, ref)
    start(desk, ref)


def resize(desk: Desk, ref: Ref, kind: str) -> None:
    machine = desk.cloud.machine(desk.find(ref)["_machine"])
    if machine.status != "stopped":
        told = f"Changing the machine type of '{ref.path}' is not supported while it is running: it must be stopped."
        raise Failure("INVALID_USAGE", told)
    desk.cloud.resize(machine.name, type=kind)
    desk.change(ref, machineType=ref.beside("machineTypes", kind).link)
    tell(desk, ref)


# End


def delete(desk: Desk, ref: Ref) -> None:
    """The machine with those of its disks that go with it."""
    if (doc := desk.store.get(ref)) is None:
        return
    desk.change(ref, _stopping=True, _deleting=True)
    try:
        _stop_if_there(desk, str(doc.get("_machine", "")))
    except CloudError:
        desk.change(ref, _stopping=None, _deleting=None)
        raise
    forget(desk, ref, doc)


def _stop_if_there(desk: Desk, name: str) -> None:
    if name and backing.machine_of(desk, name) is not None:
        desk.cloud.stop(name)


def forget(desk: Desk, ref: Ref, doc: Doc) -> None:
    """Take an instance off the books, and its disks off its hands."""
    for attached in doc["disks"]:
        disk = ref_of(attached["source"])
        disks.use(desk, disk, ref, used=False)
        # One that could not be made takes with it what was made for it, and nothing that was there before.
        goes = disk.link in doc.get("_made", []) if doc.get("_creating") else attached["autoDelete"]
        if goes:
            disks.discard(desk, disk)
    desk.store.drop(ref)


def tidy_up(desk: Desk) -> None:
    """After a server that was killed at its work: what it was making or deleting goes, the rest is as it is."""
    for ref, doc in list(desk.store.each("instances")):
        try:
            _finish(desk, ref, doc)
        except CloudError:
            pass  # it does not end; the others are served, and whoever deletes it is told why


def _finish(desk: Desk, ref: Ref, doc: Doc) -> None:
    if doc.get("_creating"):
        disk = desk.store.get(ref_of(doc["disks"][0]["source"])) or {}
        _stop_if_there(desk, str(disk.get("_machine", "")))
        forget(desk, ref, doc)
    elif doc.get("_deleting"):
        delete(desk, ref)
    elif doc.get("_stopping"):
        desk.change(ref, _stopping=None)


# What a client sees


def is_suspended(machine: Machine | None) -> bool:
    return machine is not None and machine.status == "running" and machine.why == SUSPENDED


def view(desk: Desk, ref: Ref, doc: Doc, machine: Machine | None) -> Doc | None:
    """The instance as it is now; None when its machine is gone without us."""
    if machine is None and not doc.get("_creating"):
        return None
    suspended = is_suspended(machine)
    running = machine is not None and machine.status in ("running", "stopping") and not suspended
    status = _STATUS.get(machine.status, "TERMINATED") if machine is not None else "PROVISIONING"
    if doc.get("_creating") and status != "PROVISIONING":
        status = "STAGING"
    if status == "RUNNING" and (suspended or doc.get("_stopping")):
        status = "STOPPING" if doc.get("_stopping") else "SUSPENDED"
    if machine is not None and machine.why in _WRITTEN_DOWN and doc.get("_ended") != machine.stopped_at:
        # Google writes such an end down before the machine is off: whoever sees it off finds out why.
        status = "STOPPING" if status == "TERMINATED" else status
    shown = {**doc, "status": status, "networkInterfaces": _networks(ref, doc, machine if running else None)}
    if machine is not None:
        shown["lastStartTimestamp"] = timestamp(machine.started_at or machine.created_at)
        if machine.status == "stopped" and machine.stopped_at:
            shown["lastStopTimestamp"] = timestamp(machine.stopped_at)
        if machine.status == "broken":
            shown["statusMessage"] = machine.why
    return shown


def _networks(ref: Ref, doc: Doc, machine: Machine | None) -> list[Doc]:
    shown = []
    for at, network in enumerate(doc["networkInterfaces"]):
        number = stable_number(f"{ref.path} {at}")
        address = machine.address if machine is not None and at == 0 else ""
        one: dict[str, Any] = {**network, "networkIP": address or f"10.128.{number // 250 % 250}.{number % 250 + 2}"}
        if address and "accessConfigs" in network:
            one["accessConfigs"] = [{**config, "natIP": address} for config in network["accessConfigs"]]
        shown.append(one)
    return shown
