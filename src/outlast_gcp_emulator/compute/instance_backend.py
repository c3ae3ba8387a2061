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
from outlast.clouds.local.metadata_server import ATTRIBUTE_OVERLAY
from outlast.errors import CloudError, NotFound
from outlast_gcp_emulator.compute import builtin_kinds, disk_backing, disks, oslogin_keys
from outlast_gcp_emulator.compute.context import Context
from outlast_gcp_emulator.compute.operations import OperationFailure
from outlast_gcp_emulator.compute.refs import Doc, Ref, last, ref_of, stable_number, timestamp

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


def raw_metadata(context: Context, ref: Ref, doc: Doc) -> dict[str, str]:
    """The attributes of the local machine: what its power supply reads, and the overlay that its programs see."""
    own, common = attributes(doc), builtin_kinds.common_metadata(context, ref.project)
    ending = any(own.get(key) or common.get(key) for key in ("shutdown-script", "shutdown-script-url"))
    return {
        ATTRIBUTE_OVERLAY: json.dumps(overlay(context, ref, doc)),
        "ssh-keys": "\n".join(key.strip() for key in _ssh_keys(context, ref, own) if key.strip()),
        "shutdown-script": guest_program("shutdown") if ending else "",
        drives.ATTRIBUTE: json.dumps(disks.plugged(context, doc)),
    }


def _ssh_keys(context: Context, ref: Ref, own: dict[str, str]) -> list[str]:
    """Who may come in: whom OS Login knows, where it is on, and whom the metadata name everywhere else."""
    if oslogin_keys.are_used(context, ref.project, own):
        return oslogin_keys.lines(context)
    common = (
        {}
        if own.get("block-project-ssh-keys", "").lower() == "true"
        else builtin_kinds.common_metadata(context, ref.project)
    )
    return [named.get(key, "") for named in (own, common) for key in ("ssh-keys", "sshKeys")]


def overlay(context: Context, ref: Ref, doc: Doc) -> Doc:
    """What the metadata server says of this machine."""
    zone, place = last(ref.scope), f"projects/{stable_number(ref.project)}"
    accounts = {
        name: {"aliases": ["default"], "email": account["email"], "scopes": account["scopes"]}
        for account in doc.get("serviceAccounts", [])
        for name in ("default", account["email"])
    }
    common = builtin_kinds.common_metadata(context, ref.project)
    boot = context.store.get(ref_of(doc["disks"][0]["source"])) or {}
    rules = doc["scheduling"]
    access = context.guest_access(doc["_machine"])
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
        "outlast": {"environment": access.environment, "token": access.token},
    }
    project = {
        "attributes": common,
        "numeric-project-id": stable_number(ref.project),
        "project-id": ref.project,
    }
    return {"instance": instance, "project": project}


def tell(context: Context, ref: Ref) -> None:
    """Let the machine know what changed. One that is gone needs no news."""
    if (doc := context.store.get(ref)) is not None and not doc.get("_creating"):
        try:
            context.cloud.set_metadata(doc["_machine"], raw_metadata(context, ref, doc))
        except NotFound:
            pass


def tell_all(context: Context, project: str) -> None:
    for ref, _ in context.store.each("instances", project):
        tell(context, ref)


# Birth


def launch(context: Context, ref: Ref) -> None:
    """Boot the machine of a new instance; what cannot be launched is not left behind."""
    doc = context.find(ref)
    launched = False
    try:
        _launch(context, ref, doc)
        launched = True
    finally:
        if not launched:
            forget(context, ref, doc)


def _launch(context: Context, ref: Ref, doc: Doc) -> None:
    for attached in doc["disks"]:
        disks.fill(context, ref_of(attached["source"]))
    disk = ref_of(doc["disks"][0]["source"])
    boot_disk = context.find(disk)
    former, image = str(boot_disk.get("_machine", "")), str(boot_disk.get("_local", ""))
    with context.names:
        name = disk_backing.local_machine(context, ref)
        context.change(disk, _machine=name)
    try:
        if former:
            # The disk of a machine that is gone: this one is another, and boots from what the first has left.
            image = disk_backing.local_image(context, disk._replace(collection="snapshots"))
            context.cloud.stop(former)
            context.cloud.snapshot(former, image)
        _boot(context, ref, {**doc, "_machine": name}, image)
        if former:
            context.cloud.delete(former)
    except CloudError:
        context.cloud.delete(name)
        if context.store.get(disk) is not None:
            context.change(disk, _machine=former or None)
        raise
    finally:
        if former:
            context.cloud.delete_image(image)
    context.change(ref, _machine=name, _creating=None)
    # Keys may have come while it was being made.
    tell(context, ref)


def _boot(context: Context, ref: Ref, doc: Doc, image: str) -> None:
    rules = doc["scheduling"]
    life_s = float(rules.get("maxRunDuration", {}).get("seconds", 0))
    boot = Boot(
        script=guest_program("startup"),
        image=image,
        metadata=raw_metadata(context, ref, doc),
        disk_gb=float(doc["disks"][0]["diskSizeGb"]),
        forwards=(context.port,),
        life_max_s=life_s if rules.get("instanceTerminationAction") == "DELETE" else 0.0,
    )
    offer = catalog.offer(last(doc["machineType"]), last(ref.scope), spot=rules["preemptible"])
    context.cloud.launch(offer, doc["_machine"], boot=boot, labels=doc.get("labels", {}))
    _wait_running(context, doc["_machine"])


def _wait_running(context: Context, name: str) -> None:
    give_up_at = time.monotonic() + _BOOT_S_MAX
    while (machine := context.cloud.machine(name)).status == "pending":
        if time.monotonic() > give_up_at:
            raise OperationFailure("INTERNAL_ERROR", f"the machine did not boot within {_BOOT_S_MAX:g} s", status=500)
        time.sleep(0.01)
    if machine.status == "broken":
        raise OperationFailure("INTERNAL_ERROR", f"the machine cannot boot: {machine.why}", status=500)


# Power


def stop(context: Context, ref: Ref) -> None:
    doc = context.change(ref, _stopping=True)
    try:
        context.cloud.stop(doc["_machine"])
    finally:
        if context.store.get(ref) is not None:
            context.change(ref, _stopping=None)


def start(context: Context, ref: Ref) -> None:
    if is_suspended(disk_backing.machine_of(context, context.find(ref)["_machine"])):
        raise OperationFailure(
            "INVALID_USAGE", f"'{ref.path}' is suspended: it must be resumed, and cannot be started."
        )
    doc = context.change(ref, _ended=None)
    disks.wipe_scratch(context, doc)
    tell(context, ref)
    context.cloud.start(doc["_machine"])
    _wait_running(context, doc["_machine"])


def suspend(context: Context, ref: Ref) -> None:
    context.cloud.suspend(context.find(ref)["_machine"])
    context.change(ref, lastSuspendedTimestamp=timestamp())


def resume(context: Context, ref: Ref) -> None:
    context.cloud.resume(context.find(ref)["_machine"])


def reset(context: Context, ref: Ref) -> None:
    stop(context, ref)
    start(context, ref)


def resize(context: Context, ref: Ref, kind: str) -> None:
    machine = context.cloud.machine(context.find(ref)["_machine"])
    if machine.status != "stopped":
        told = f"Changing the machine type of '{ref.path}' is not supported while it is running: it must be stopped."
        raise OperationFailure("INVALID_USAGE", told)
    context.cloud.resize(machine.name, type=kind)
    context.change(ref, machineType=ref.beside("machineTypes", kind).link)
    tell(context, ref)


# End


def delete(context: Context, ref: Ref) -> None:
    """The machine with those of its disks that go with it."""
    if (doc := context.store.get(ref)) is None:
        return
    context.change(ref, _stopping=True, _deleting=True)
    try:
        _stop_if_there(context, str(doc.get("_machine", "")))
    except CloudError:
        context.change(ref, _stopping=None, _deleting=None)
        raise
    forget(context, ref, doc)


def _stop_if_there(context: Context, name: str) -> None:
    if name and disk_backing.machine_of(context, name) is not None:
        context.cloud.stop(name)


def forget(context: Context, ref: Ref, doc: Doc) -> None:
    """Take an instance off the books, and its disks off its hands."""
    for attached in doc["disks"]:
        disk = ref_of(attached["source"])
        disks.use(context, disk, ref, used=False)
        # One that could not be made takes with it what was made for it, and nothing that was there before.
        goes = disk.link in doc.get("_made", []) if doc.get("_creating") else attached["autoDelete"]
        if goes:
            disks.discard(context, disk)
    context.store.drop(ref)


def tidy_up(context: Context) -> None:
    """After a server that was killed at its work: what it was making or deleting goes, the rest is as it is."""
    for ref, doc in list(context.store.each("instances")):
        try:
            _finish(context, ref, doc)
        except CloudError:
            pass  # it does not end; the others are served, and whoever deletes it is told why


def _finish(context: Context, ref: Ref, doc: Doc) -> None:
    if doc.get("_creating"):
        disk = context.store.get(ref_of(doc["disks"][0]["source"])) or {}
        _stop_if_there(context, str(disk.get("_machine", "")))
        forget(context, ref, doc)
    elif doc.get("_deleting"):
        delete(context, ref)
    elif doc.get("_stopping"):
        context.change(ref, _stopping=None)


# What a client sees


def is_suspended(machine: Machine | None) -> bool:
    return machine is not None and machine.status == "running" and machine.why == SUSPENDED


def view(context: Context, ref: Ref, doc: Doc, machine: Machine | None) -> Doc | None:
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
