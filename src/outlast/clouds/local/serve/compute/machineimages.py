"""Machine images: a whole machine as it was, with all its disks, to make others from. Copies disks, and boots nothing.

Behind one stand its saved disks, which are like snapshots, and which clients see through it only.
"""

from __future__ import annotations

from outlast.clouds.local.serve.compute import images, wish
from outlast.clouds.local.serve.compute.desk import Call, Desk, check_free, new_resource
from outlast.clouds.local.serve.compute.links import GLOBAL, Doc, Ref, last, new_id, parse, ref_of

_COLLECTION = "machineImages"
_PROPERTIES = (*wish.KEPT, "metadata", "networkInterfaces", "scheduling", "serviceAccounts", "tags")
# What a machine has for itself.
_OWN = ("hostname", "deletionProtection")
_DISK = ("autoDelete", "boot", "deviceName", "diskSizeGb", "interface", "mode", "type")


def properties_of(doc: Doc) -> Doc:
    """What others need to be like this instance, but for their disks."""
    found = {name: doc[name] for name in _PROPERTIES if name in doc and name not in _OWN}
    accelerators = [
        {**one, "acceleratorType": last(one["acceleratorType"])} for one in doc.get("guestAccelerators", [])
    ]
    return {
        **found,
        "machineType": last(doc["machineType"]),
        **({"guestAccelerators": accelerators} if accelerators else {}),
    }


def disks_of(doc: Doc) -> list[Doc]:
    """The disks of an instance, as others have them. What is on them is not said."""
    return [{name: one[name] for name in _DISK} for one in doc["disks"] if one["type"] != "SCRATCH"]


def insert(desk: Desk, call: Call) -> Doc:
    ref = Ref(call.project, GLOBAL, _COLLECTION, str(call.body.get("name", "")))
    near = Ref(call.project, GLOBAL, "instances", "")
    given = call.body.get("sourceInstance") or call.query.get("sourceInstance")
    source = parse(given, near=near, field="resource.sourceInstance")
    with desk.names:
        doc = new_resource(ref, "machineImage", call.body)
        check_free(desk, ref)
        instance = desk.find(source)
        kept = [ref_of(one["source"]) for one in instance["disks"] if one["type"] != "SCRATCH"]
        saved = {_put_saved(desk, ref, disk): disk for disk in kept}
        desk.store.put(
            ref,
            {
                "storageLocations": ["us"],
                **doc,
                "sourceInstance": source.link,
                "status": "CREATING",
                "totalStorageBytes": "0",
                "instanceProperties": {**properties_of(instance), "disks": disks_of(instance)},
                "_saved": [one.link for one in saved],
            },
        )
    return desk.begin(call, ref, "insert", lambda: _make(desk, ref, saved))


def _put_saved(desk: Desk, image: Ref, disk: Ref) -> Ref:
    source = desk.find(disk)
    ref = Ref(image.project, GLOBAL, images.SAVED, f"{image.name}-{new_id()}")
    doc: Doc = {
        "kind": "compute#savedDisk",
        "name": ref.name,
        "id": new_id(),
        "selfLink": ref.link,
        "status": "CREATING",
        "sourceDisk": disk.link,
        "diskSizeGb": source["sizeGb"],
        "architecture": "X86_64",
    }
    desk.store.put(ref, doc if images.is_written(source) else {**doc, "_local": source["_local"]})
    return ref


def _make(desk: Desk, ref: Ref, saved: dict[Ref, Ref]) -> None:
    """All disks or none; what cannot be made is not left behind."""
    made = False
    try:
        for one, disk in saved.items():
            images.make(desk, one, disk if images.is_written(desk.find(disk)) else None)
        shown = [_shown(desk.find(one)) for one in saved]
        total = sum(int(one["storageBytes"]) for one in shown)
        desk.change(ref, status="READY", savedDisks=shown, totalStorageBytes=str(total))
        made = True
    finally:
        if not made:
            _discard(desk, ref)


def _shown(saved: Doc) -> Doc:
    told = {name: saved[name] for name in ("kind", "sourceDisk", "architecture")}
    return {**told, "storageBytes": saved.get("storageBytes", "0"), "storageBytesStatus": "UP_TO_DATE"}


def delete(desk: Desk, call: Call) -> Doc:
    ref = call.ref(_COLLECTION)
    desk.find(ref)
    return desk.begin(call, ref, "delete", lambda: _discard(desk, ref))


def _discard(desk: Desk, ref: Ref) -> None:
    doc = desk.store.get(ref) or {}
    desk.store.drop(ref)
    for link in doc.get("_saved", []):
        images.discard(desk, ref_of(link))


def tidy_up(desk: Desk) -> None:
    """After a server that was killed while it made one or deleted one: what is not whole goes."""
    for ref, doc in list(desk.store.each(_COLLECTION)):
        if doc["status"] != "READY":
            _discard(desk, ref)
    named = {link for _, doc in desk.store.each(_COLLECTION) for link in doc["_saved"]}
    for ref, _ in list(desk.store.each(images.SAVED)):
        if ref.link not in named:
            images.discard(desk, ref)


def instance_like(desk: Desk, call: Call, given: object) -> Doc:
    """What a request wants that names a machine image: the same machine, but for what the request itself says."""
    near = Ref(call.project, GLOBAL, _COLLECTION, "")
    image = desk.find(parse(given, near=near, field="resource.sourceMachineImage"))
    images.check_ready(image)
    properties = image["instanceProperties"]
    found = [
        {**disk, "initializeParams": {"sourceSnapshot": link, "diskSizeGb": disk["diskSizeGb"]}}
        for disk, link in zip(properties["disks"], image["_saved"], strict=True)
    ]
    return {**properties, "disks": found, **call.body}
