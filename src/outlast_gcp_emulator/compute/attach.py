"""Disks come to a machine, go from it, and grow on it, while it runs as well."""

from __future__ import annotations

import itertools

from outlast_gcp_emulator.compute import disks, instance_backend
from outlast_gcp_emulator.compute.context import Call, Context
from outlast_gcp_emulator.compute.refs import Doc, Ref, number, parse, ref_of
from outlast_gcp_emulator.errors import invalid


def auto_delete(context: Context, call: Call, ref: Ref, doc: Doc) -> Doc:
    wanted = call.query.get("autoDelete", "").lower() == "true"
    device = call.query.get("deviceName")
    if device not in [disk["deviceName"] for disk in doc["disks"]]:
        raise invalid(f"Invalid value for field 'disk': '{device}'. No attached disk found with device name '{device}'")
    changed = [{**disk, "autoDelete": wanted} if disk["deviceName"] == device else disk for disk in doc["disks"]]
    return {"disks": changed}


def attach_disk(context: Context, call: Call, ref: Ref, doc: Doc) -> Doc:
    disk = parse(call.body.get("source"), near=ref.beside("disks", ""), field="resource.source")
    found = context.find(disk)
    disks.check_unused(context, disk, found, call.body.get("mode", "READ_WRITE"))
    taken = {one["index"] for one in doc["disks"]}
    index = next(at for at in itertools.count(1) if at not in taken)
    new = disks.attached(disk, found, {**call.body, "boot": False}, index)
    disks.check_devices([*doc["disks"], new])
    disks.use(context, disk, ref, used=True)
    return {"disks": sorted([*doc["disks"], new], key=lambda one: int(one["index"]))}


def detach_disk(context: Context, call: Call, ref: Ref, doc: Doc) -> Doc:
    device = call.query.get("deviceName", "")
    found = [disk for disk in doc["disks"] if disk["deviceName"] == device and not disk["boot"]]
    if not found:
        raise invalid(f"Invalid value for field 'disk': '{device}'. No attached disk found with device name '{device}'")
    disks.use(context, parse(found[0]["source"], near=ref.beside("disks", ""), field="source"), ref, used=False)
    return {"disks": [disk for disk in doc["disks"] if disk is not found[0]]}


def patch(context: Context, call: Call) -> Doc:
    """`gcloud compute disks update --size`: of what may be changed this way, the size is what a machine sees."""
    if "sizeGb" not in call.body:
        raise invalid("Invalid value for field 'resource': the size is all that can be changed here.")
    return resize(context, call)


def resize(context: Context, call: Call) -> Doc:
    ref = call.ref("disks")
    doc = context.find(ref)
    size_gb = number(call.body.get("sizeGb", ""), "sizeGb")
    if size_gb < int(doc["sizeGb"]):
        told = f"New disk size '{size_gb}' GB must be larger than existing size '{doc['sizeGb']}' GB."
        raise invalid(f"Invalid value for field 'sizeGb': '{size_gb}'. {told}")

    def work() -> None:
        if machine := doc.get("_machine"):
            context.cloud.resize(machine, disk_gb=float(size_gb))
        context.change(ref, sizeGb=str(size_gb))
        for user in map(ref_of, doc.get("users", [])):
            attached = context.find(user)["disks"]
            grown = [{**one, "diskSizeGb": str(size_gb)} if ref_of(one["source"]) == ref else one for one in attached]
            context.change(user, disks=grown)
            instance_backend.tell(context, user)

    return context.begin(call, ref, "resizeDisk", work)
