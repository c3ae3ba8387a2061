"""Machine images: a whole machine as it was, with all its disks, to make others from. Copies disks, and boots nothing.

Behind one stand its saved disks, which are like snapshots, and which clients see through it only.
"""

from __future__ import annotations

from outlast_gcp_emulator.compute import images, instance_spec
from outlast_gcp_emulator.compute.context import Call, Context, check_free, new_resource
from outlast_gcp_emulator.compute.refs import GLOBAL, Doc, Ref, last, new_id, parse, ref_of

_COLLECTION = "machineImages"
_PROPERTIES = (*instance_spec.KEPT, "metadata", "networkInterfaces", "scheduling", "serviceAccounts", "tags")
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


def insert(context: Context, call: Call) -> Doc:
    ref = Ref(call.project, GLOBAL, _COLLECTION, str(call.body.get("name", "")))
    near = Ref(call.project, GLOBAL, "instances", "")
    given = call.body.get("sourceInstance") or call.query.get("sourceInstance")
    source = parse(given, near=near, field="resource.sourceInstance")
    with context.names:
        doc = new_resource(ref, "machineImage", call.body)
        check_free(context, ref)
        instance = context.find(source)
        kept = [ref_of(one["source"]) for one in instance["disks"] if one["type"] != "SCRATCH"]
        saved = {_put_saved(context, ref, disk): disk for disk in kept}
        context.store.put(
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
    return context.begin(call, ref, "insert", lambda: _make(context, ref, saved))


def _put_saved(context: Context, image: Ref, disk: Ref) -> Ref:
    source = context.find(disk)
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
    context.store.put(ref, doc if images.is_written(source) else {**doc, "_local": source["_local"]})
    return ref


def _make(context: Context, ref: Ref, saved: dict[Ref, Ref]) -> None:
    """All disks or none; what cannot be made is not left behind."""
    made = False
    try:
        for one, disk in saved.items():
            images.make(context, one, disk if images.is_written(context.find(disk)) else None)
        shown = [_shown(context.find(one)) for one in saved]
        total = sum(int(one["storageBytes"]) for one in shown)
        context.change(ref, status="READY", savedDisks=shown, totalStorageBytes=str(total))
        made = True
    finally:
        if not made:
            _discard(context, ref)


def _shown(saved: Doc) -> Doc:
    told = {name: saved[name] for name in ("kind", "sourceDisk", "architecture")}
    return {**told, "storageBytes": saved.get("storageBytes", "0"), "storageBytesStatus": "UP_TO_DATE"}


def delete(context: Context, call: Call) -> Doc:
    ref = call.ref(_COLLECTION)
    context.find(ref)
    return context.begin(call, ref, "delete", lambda: _discard(context, ref))


def _discard(context: Context, ref: Ref) -> None:
    doc = context.store.get(ref) or {}
    context.store.drop(ref)
    for link in doc.get("_saved", []):
        images.discard(context, ref_of(link))


def tidy_up(context: Context) -> None:
    """After a server that was killed while it made one or deleted one: what is not whole goes."""
    for ref, doc in list(context.store.each(_COLLECTION)):
        if doc["status"] != "READY":
            _discard(context, ref)
    named = {link for _, doc in context.store.each(_COLLECTION) for link in doc["_saved"]}
    for ref, _ in list(context.store.each(images.SAVED)):
        if ref.link not in named:
            images.discard(context, ref)


def instance_like(context: Context, call: Call, given: object) -> Doc:
    """What a request wants that names a machine image: the same machine, but for what the request itself says."""
    near = Ref(call.project, GLOBAL, _COLLECTION, "")
    image = context.find(parse(given, near=near, field="resource.sourceMachineImage"))
    images.check_ready(image)
    properties = image["instanceProperties"]
    found = [
        {**disk, "initializeParams": {"sourceSnapshot": link, "diskSizeGb": disk["diskSizeGb"]}}
        for disk, link in zip(properties["disks"], image["_saved"], strict=True)
    ]
    return {**properties, "disks": found, **call.body}
