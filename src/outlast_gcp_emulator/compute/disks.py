"""Disks: made by themselves or with a machine, kept or deleted with it. What stands behind one is in `backing`."""

from __future__ import annotations

from typing import Any

from outlast.clouds.local import google_types
from outlast_gcp_emulator.compute import disk_backing, images
from outlast_gcp_emulator.compute.context import Call, Context, check_free, new_resource
from outlast_gcp_emulator.compute.refs import Doc, Ref, fingerprint, last, number, parse, ref_of
from outlast_gcp_emulator.errors import invalid

_BLANK_GB = 500


def make(context: Context, ref: Ref, params: Doc, *, field: str) -> Doc:
    """A new disk as a resource, from the wish of a request; nothing is stored. Raises Refused."""
    check_free(context, ref)
    body: Doc = {name: params[name] for name in ("description", "labels", "resourcePolicies") if name in params}
    doc = new_resource(ref, "disk", {**body, "name": ref.name})
    source, size_gb = _source(context, ref, params, field)
    asked = number(params.get("diskSizeGb") or params.get("sizeGb") or size_gb, f"{field}.sizeGb")
    if asked < size_gb and (source["_local"] or "_copied" in source):
        # What was just copied from a disk has no other owner.
        disk_backing.release(context, source["_local"])
        raise invalid(
            f"Invalid value for field '{field}.diskSizeGb': '{asked}'. Requested disk size cannot be smaller than the"
            f" image size ({size_gb} GB)"
        )
    kind = last(params.get("diskType") or params.get("type") or source.get("type")) or "pd-standard"
    return doc | {
        "sizeGb": str(asked),
        "status": "READY",
        "physicalBlockSizeBytes": "4096",
        "architecture": "X86_64",
        "labelFingerprint": fingerprint(params.get("labels", {})),
        **source,
        "type": ref.beside("diskTypes", kind).link,
        # A disk that holds no system has a file of its own.
        **({} if source["_local"] else {"_drive": doc["id"]}),
    }


def _source(context: Context, ref: Ref, params: Doc, field: str) -> tuple[Doc, int]:
    if params.get("sourceImage"):
        image = images.resolve(context, params["sourceImage"], ref.project, f"{field}.sourceImage")
        doc = {"sourceImage": image["selfLink"], "sourceImageId": image["id"]}
    elif params.get("sourceSnapshot"):
        saved = f"/{images.SAVED}/" in str(params["sourceSnapshot"])
        near = Ref(ref.project, "global", images.SAVED if saved else "snapshots", "")
        image = context.find(parse(params["sourceSnapshot"], near=near, field=f"{field}.sourceSnapshot"))
        doc = {} if saved else {"sourceSnapshot": image["selfLink"], "sourceSnapshotId": image["id"]}
    elif params.get("sourceDisk"):
        return _clone(context, ref, params["sourceDisk"], f"{field}.sourceDisk")
    else:
        return {"_local": ""}, _BLANK_GB
    images.check_ready(image)
    copied = {"_copied": image["_drive"]} if image.get("_drive") else {}
    return {**doc, "_local": image.get("_local", ""), **copied}, int(image["diskSizeGb"])


def _clone(context: Context, ref: Ref, given: Any, field: str) -> tuple[Doc, int]:
    """A disk with what is on another one now, also while that is written to, as after a power cut."""
    disk = parse(given, near=ref.beside("disks", ""), field=field)
    if disk.scope != ref.scope:
        raise invalid(f"Invalid value for field '{field}': '{given}'. The source disk must be in the same zone.")
    source = context.find(disk)
    doc: Doc = {"sourceDisk": disk.link, "sourceDiskId": source["id"], "type": source["type"]}
    if source.get("_drive"):
        behind: Doc = {"_local": "", "_copied": source["_drive"]}
    elif source.get("_machine"):
        local = disk_backing.local_image(context, ref._replace(collection="snapshots"))
        behind = {"_local": disk_backing.freeze(context, disk, local).name}
    else:
        behind = {"_local": source["_local"]}
    return doc | behind, int(source["sizeGb"])


def insert(context: Context, call: Call) -> Doc:
    ref = Ref(call.project, call.scope, "disks", str(call.body.get("name", "")))
    params = dict(call.body)
    # An old way to say the same, which gcloud still uses for some.
    if "sourceImage" in call.query:
        params["sourceImage"] = call.query["sourceImage"]
    with context.names:
        context.store.put(ref, make(context, ref, params, field="resource"))
    return context.begin(call, ref, "insert", lambda: fill(context, ref))


def fill(context: Context, ref: Ref) -> None:
    """Copy what the disk is made from now: that may be deleted before the disk is used."""
    if (doc := context.store.get(ref)) is not None and "_copied" in doc:
        if "sourceDisk" in doc:
            # Which may itself be a copy that is not made yet.
            fill(context, ref_of(doc["sourceDisk"]))
        disk_backing.drive(context, doc)
        context.change(ref, _copied=None)
        disk_backing.release_drive(context, doc["_copied"])


def policies(context: Context, call: Call, *, verb: str) -> Doc:
    """Schedules of a disk, which are written down."""
    ref = call.ref("disks")
    near = Ref(call.project, f"regions/{google_types.region_of(last(call.scope))}", "resourcePolicies", "")
    given = [parse(one, near=near, field="resourcePolicies").link for one in call.body.get("resourcePolicies", [])]
    with context.store.lock:
        others = [link for link in context.find(ref).get("resourcePolicies", []) if link not in given]
        kept = [*others, *given] if verb == "addResourcePolicies" else others
        context.change(ref, resourcePolicies=kept or None)
    return context.begin(call, ref, verb, lambda: None)


def delete(context: Context, call: Call) -> Doc:
    ref = call.ref("disks")
    doc = context.find(ref)
    if users := doc.get("users"):
        raise disk_backing.in_use(ref, ref_of(users[0]))
    return context.begin(call, ref, "delete", lambda: discard(context, ref))


def discard(context: Context, ref: Ref) -> None:
    """The disk and all that stands behind it."""
    if (doc := context.store.get(ref)) is None:
        return
    if machine := doc.get("_machine"):
        context.cloud.delete(machine)
    context.store.drop(ref)
    disk_backing.release(context, str(doc.get("_local", "")))
    for drive in (doc.get("_drive"), doc.get("_copied")):
        disk_backing.release_drive(context, str(drive or ""))


def attached(disk: Ref, doc: Doc, request: Doc, index: int) -> Doc:
    """A disk as its machine lists it."""
    scratch = request.get("type") == "SCRATCH"
    return {
        "kind": "compute#attachedDisk",
        "type": request.get("type") or "PERSISTENT",
        "mode": request.get("mode", "READ_WRITE"),
        "source": disk.link,
        "deviceName": request.get("deviceName") or (disk.name if scratch else f"persistent-disk-{index}"),
        "index": index,
        "boot": bool(request.get("boot", False)),
        "autoDelete": bool(request.get("autoDelete", False)),
        "interface": request.get("interface", "SCSI"),
        "diskSizeGb": doc["sizeGb"],
        "architecture": "X86_64",
    }


def check_devices(found: list[Doc]) -> None:
    """Raises Refused if two disks of a machine have one name on it."""
    for at, one in enumerate(found):
        if one["deviceName"] in [other["deviceName"] for other in found[:at]]:
            told = "Another disk of the instance has this device name."
            raise invalid(f"Invalid value for field 'resource.deviceName': '{one['deviceName']}'. {told}")


def plugged(context: Context, doc: Doc) -> list[Doc]:
    """The disks beside the boot disk, as the power supply of the instance's machine reads them."""
    found, scratch = [], 0
    for one in doc["disks"]:
        disk = context.store.get(ref_of(one["source"])) or {}
        if one["boot"] or not disk.get("_drive"):
            continue
        nvme = one["interface"] == "NVME"
        if one["type"] == "SCRATCH":
            aliases, scratch = [f"google-local-{'nvme-' if nvme else ''}ssd-{scratch}"], scratch + 1
        else:
            aliases = [f"google-{one['deviceName']}", f"scsi-0Google_PersistentDisk_{one['deviceName']}"]
        plug = {"file": disk_backing.drive(context, disk), "gb": disk["sizeGb"], "aliases": aliases}
        found.append({**plug, "bus": "nvme0n" if nvme else "sd", "read_only": one["mode"] == "READ_ONLY"})
    return found


def wipe_scratch(context: Context, doc: Doc) -> None:
    """Disks that are part of the computer that a machine was on, and empty on the next one."""
    for one in doc["disks"]:
        disk = context.store.get(ref_of(one["source"])) or {}
        if one["type"] == "SCRATCH" and disk.get("_drive"):
            disk_backing.copy_drive(context, "", disk["_drive"])


def check_unused(context: Context, ref: Ref, doc: Doc, mode: str) -> None:
    """Raises Refused for a disk that another machine has, unless all of them only read it."""
    for user in doc.get("users", []):
        modes = [one["mode"] for one in context.find(ref_of(user))["disks"] if one["source"] == ref.link]
        if mode != "READ_ONLY" or modes != ["READ_ONLY"]:
            raise disk_backing.in_use(ref, ref_of(user))


def use(context: Context, disk: Ref, user: Ref, *, used: bool) -> None:
    """Remember who uses a disk."""
    with context.store.lock:
        if (doc := context.store.get(disk)) is None:
            return
        others: list[Any] = [link for link in doc.get("users", []) if link != user.link]
        users = [*others, user.link] if used else others
        context.change(disk, users=users or None)
