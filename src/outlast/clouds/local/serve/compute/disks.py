"""Disks: made by themselves or with a machine, kept or deleted with it. A boot disk is a machine of the local cloud."""

from __future__ import annotations

from typing import Any

from outlast.clouds.local.serve.compute import backing, images
from outlast.clouds.local.serve.compute.desk import Call, Desk, check_free, new_resource
from outlast.clouds.local.serve.compute.links import Doc, Ref, fingerprint, last, number, parse, ref_of
from outlast.clouds.local.serve.refusal import Refused, invalid

_BLANK_GB = 500


def make(desk: Desk, ref: Ref, params: Doc, *, field: str) -> Doc:
    """A new disk as a resource, from the wish of a request; nothing is stored. Raises Refused."""
    check_free(desk, ref)
    body: Doc = {name: params[name] for name in ("description", "labels", "resourcePolicies") if name in params}
    doc = new_resource(ref, "disk", {**body, "name": ref.name})
    source, size_gb = _source(desk, ref, params, field)
    asked = number(params.get("diskSizeGb") or params.get("sizeGb") or size_gb, f"{field}.sizeGb")
    if asked < size_gb and source["_local"]:
        raise invalid(
            f"Invalid value for field '{field}.diskSizeGb': '{asked}'. Requested disk size cannot be smaller than the"
            f" image size ({size_gb} GB)"
        )
    kind = last(params.get("diskType") or params.get("type")) or "pd-standard"
    return doc | {
        "sizeGb": str(asked),
        "status": "READY",
        "type": ref.beside("diskTypes", kind).link,
        "physicalBlockSizeBytes": "4096",
        "architecture": "X86_64",
        "labelFingerprint": fingerprint(params.get("labels", {})),
        **source,
    }


def _source(desk: Desk, ref: Ref, params: Doc, field: str) -> tuple[Doc, int]:
    if params.get("sourceImage"):
        image = images.resolve(desk, params["sourceImage"], ref.project, f"{field}.sourceImage")
        doc = {"sourceImage": image["selfLink"], "sourceImageId": image["id"]}
    elif params.get("sourceSnapshot"):
        near = Ref(ref.project, "global", "snapshots", "")
        image = desk.find(parse(params["sourceSnapshot"], near=near, field=f"{field}.sourceSnapshot"))
        doc = {"sourceSnapshot": image["selfLink"], "sourceSnapshotId": image["id"]}
    else:
        return {"_local": ""}, _BLANK_GB
    if image["status"] != "READY":
        raise Refused(400, "resourceNotReady", f"The resource '{ref_of(image['selfLink']).path}' is not ready")
    return {**doc, "_local": image["_local"]}, int(image["diskSizeGb"])


def insert(desk: Desk, call: Call) -> Doc:
    ref = Ref(call.project, call.scope, "disks", str(call.body.get("name", "")))
    params = dict(call.body)
    # An old way to say the same, which gcloud still uses for some.
    if "sourceImage" in call.query:
        params["sourceImage"] = call.query["sourceImage"]
    with desk.names:
        desk.store.put(ref, make(desk, ref, params, field="resource"))
    return desk.begin(call, ref, "insert", lambda: None)


def resize(desk: Desk, call: Call) -> Doc:
    ref = call.ref("disks")
    doc = desk.find(ref)
    size_gb = number(call.body.get("sizeGb", ""), "sizeGb")
    if size_gb < int(doc["sizeGb"]):
        told = f"New disk size '{size_gb}' GB must be larger than existing size '{doc['sizeGb']}' GB."
        raise invalid(f"Invalid value for field 'sizeGb': '{size_gb}'. {told}")

    def work() -> None:
        if machine := doc.get("_machine"):
            desk.cloud.resize(machine, disk_gb=float(size_gb))
        desk.change(ref, sizeGb=str(size_gb))
        for user in map(ref_of, doc.get("users", [])):
            attached = desk.find(user)["disks"]
            grown = [{**one, "diskSizeGb": str(size_gb)} if ref_of(one["source"]) == ref else one for one in attached]
            desk.change(user, disks=grown)

    return desk.begin(call, ref, "resizeDisk", work)


def delete(desk: Desk, call: Call) -> Doc:
    ref = call.ref("disks")
    doc = desk.find(ref)
    if users := doc.get("users"):
        told = f"The disk resource '{ref.path}' is already being used by '{ref_of(users[0]).path}'"
        raise Refused(400, "resourceInUseByAnotherResource", told)
    return desk.begin(call, ref, "delete", lambda: discard(desk, ref))


def discard(desk: Desk, ref: Ref) -> None:
    """The disk and all that stands behind it."""
    if (doc := desk.store.get(ref)) is None:
        return
    if machine := doc.get("_machine"):
        desk.cloud.delete(machine)
    desk.store.drop(ref)
    backing.release(desk, str(doc.get("_local", "")))


def attached(disk: Ref, doc: Doc, wish: Doc, index: int) -> Doc:
    """A disk as its machine lists it."""
    return {
        "kind": "compute#attachedDisk",
        "type": "PERSISTENT",
        "mode": wish.get("mode", "READ_WRITE"),
        "source": disk.link,
        "deviceName": wish.get("deviceName") or (disk.name if index else f"persistent-disk-{index}"),
        "index": index,
        "boot": bool(wish.get("boot", False)),
        "autoDelete": bool(wish.get("autoDelete", False)),
        "interface": wish.get("interface", "SCSI"),
        "diskSizeGb": doc["sizeGb"],
        "architecture": "X86_64",
    }


def use(desk: Desk, disk: Ref, user: Ref, *, used: bool) -> None:
    """Remember who uses a disk."""
    with desk.store.lock:
        if (doc := desk.store.get(disk)) is None:
            return
        others: list[Any] = [link for link in doc.get("users", []) if link != user.link]
        users = [*others, user.link] if used else others
        desk.change(disk, users=users or None)
