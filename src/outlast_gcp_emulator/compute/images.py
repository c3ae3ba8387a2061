"""Images, families and snapshots: which disk of the local cloud stands behind a name. Public ones are its base image.

An image made from another shares its disk; the disk goes when the last that names it is deleted.
"""

from __future__ import annotations

from typing import Any

from outlast.clouds.local.catalog import BASE_IMAGE
from outlast_gcp_emulator.compute import disk_backing
from outlast_gcp_emulator.compute.context import Call, Context, check_free, listing, new_resource
from outlast_gcp_emulator.compute.refs import (
    GLOBAL,
    Doc,
    Ref,
    fingerprint,
    not_there,
    number,
    parse,
    ref_of,
    stable_number,
)
from outlast_gcp_emulator.errors import ApiError, invalid

# Google's own projects of images, and families that they are asked for. All are this computer's own software.
PUBLIC: dict[str, tuple[str, ...]] = {
    "debian-cloud": ("debian-11", "debian-12", "debian-13"),
    "ubuntu-os-cloud": ("ubuntu-2004-lts", "ubuntu-2204-lts", "ubuntu-2404-lts-amd64", "ubuntu-minimal-2204-lts"),
    "deeplearning-platform-release": ("common-cpu", "common-cu128", "pytorch-latest-gpu", "tf-latest-gpu"),
    "ml-images": ("common-cpu", "common-cu128"),
    "rocky-linux-cloud": ("rocky-linux-8", "rocky-linux-9"),
    "centos-cloud": ("centos-stream-9",),
    "cos-cloud": ("cos-stable",),
    "fedora-coreos-cloud": ("fedora-coreos-stable",),
}
# How other names begin that scripts ask these projects for: `tf2-latest-gpu`, `c2-deeplearning-tf-1-12-cu100-20181120`.
_BEGINNINGS: dict[str, tuple[str, ...]] = {
    "deeplearning-platform-release": ("tf2", "c0", "c1", "c2"),
    "ml-images": ("tf", "tf2", "pytorch", "debian", "c0", "c1", "c2"),
}
# Asked for in every listing of images; there is nothing of them that this computer could boot.
_EMPTY = (
    "opensuse-cloud",
    "oracle-linux-cloud",
    "rhel-cloud",
    "rhel-sap-cloud",
    "rocky-linux-accelerator-cloud",
    "suse-cloud",
    "suse-sap-cloud",
    "ubuntu-os-accelerator-images",
    "ubuntu-os-pro-cloud",
    "windows-cloud",
    "windows-sql-cloud",
)
_BORN = "2026-11-01T00:00:00.000+00:00"
_PUBLIC_VERSION = "v20261101"
BASE_GB = 10
# The disks of machine images, which are kept like snapshots and shown by nothing but their machine image.
SAVED = "savedDisks"


def _public(project: str, name: str) -> Doc:
    families = [family for family in PUBLIC[project] if name.startswith(family)]
    ref = Ref(project, GLOBAL, "images", name)
    doc: Doc = {
        "kind": "compute#image",
        "id": str(stable_number(ref.path)),
        "creationTimestamp": _BORN,
        "name": name,
        "description": "the software of this computer, under a name that scripts ask for",
        "sourceType": "RAW",
        "status": "READY",
        "archiveSizeBytes": "0",
        "diskSizeGb": str(BASE_GB),
        "architecture": "X86_64",
        "storageLocations": ["us"],
        "labelFingerprint": fingerprint({}),
        "selfLink": ref.link,
        "_local": BASE_IMAGE,
    }
    return {**doc, "family": max(families, key=len)} if families else doc


def find(context: Context, ref: Ref) -> Doc:
    """The image of that name. Raises Refused."""
    if ref.project in PUBLIC:
        _check_public(ref, ref.name)
        return _public(ref.project, ref.name)
    return context.find(ref)


def _check_public(ref: Ref, name: str) -> None:
    """Versions come and go, and any will do; but what sounds like none of a project's images is none."""
    argv = {family.partition("-")[0] for family in PUBLIC[ref.project]}
    if name.partition("-")[0] not in argv.union(_BEGINNINGS.get(ref.project, ())):
        raise not_there(ref)


def newest(context: Context, project: str, family: str) -> Doc:
    """The newest image of a family that is not deprecated. Raises Refused."""
    if project in PUBLIC:
        _check_public(Ref(project, GLOBAL, "images", f"family/{family}"), family)
        return {**_public(project, f"{family}-{_PUBLIC_VERSION}"), "family": family}
    members = [
        doc
        for _, doc in context.store.each("images", project)
        if doc.get("family") == family and "deprecated" not in doc and doc["status"] == "READY"
    ]
    if not members:
        raise not_there(Ref(project, GLOBAL, "images", f"family/{family}"))
    return max(members, key=lambda doc: (doc["creationTimestamp"], doc["name"]))


def resolve(context: Context, text: Any, project: str, field: str) -> Doc:
    """The image that a request means, by name or family. Raises Refused."""
    if isinstance(text, str) and "/imageFamilyViews/" in text:
        near = Ref(project, GLOBAL, "imageFamilyViews", "")
        ref = parse(text, near=near, field=field)
        return newest(context, ref.project, ref.name)
    ref = parse(text, near=Ref(project, GLOBAL, "images", ""), field=field)
    kind, _, family = ref.name.partition("/")
    if kind == "family" and family:
        return newest(context, ref.project, family)
    try:
        return find(context, ref)
    except ApiError as problem:
        raise invalid(
            f"Invalid value for field '{field}': '{text}'. The referenced image resource cannot be found."
        ) from problem


def _source(context: Context, call: Call, ref: Ref) -> tuple[Doc, Ref | None]:
    """Where a new image comes from: fields of it, and the disk that is still to be copied."""
    body = call.body
    given = [name for name in ("sourceDisk", "sourceImage", "sourceSnapshot") if body.get(name)]
    if len(given) != 1:
        told = "exactly one of sourceDisk, sourceImage and sourceSnapshot is wanted"
        if body.get("rawDisk"):
            told = "disks of tar files in buckets cannot be read here"
        raise invalid(f"Invalid value for field 'resource': {told}.")
    field = f"resource.{given[0]}"
    if given[0] == "sourceImage":
        source = resolve(context, body["sourceImage"], call.project, field)
    elif given[0] == "sourceSnapshot":
        near = Ref(call.project, GLOBAL, "snapshots", "")
        source = context.find(parse(body["sourceSnapshot"], near=near, field=field))
    else:
        disk = parse(body["sourceDisk"], near=Ref(call.project, GLOBAL, "disks", ""), field=field)
        source = context.find(disk)
        if not call.flag("forceCreate"):
            _check_idle(context, source, disk)
        doc = {"sourceDisk": disk.link, "sourceDiskId": source["id"], "diskSizeGb": source["sizeGb"]}
        return (doc, disk) if is_written(source) else ({**doc, "_local": source["_local"]}, None)
    size_gb = str(max(number(body.get("diskSizeGb", 0), "resource.diskSizeGb"), int(source["diskSizeGb"])))
    return {
        given[0]: source["selfLink"],
        f"{given[0]}Id": source["id"],
        "diskSizeGb": size_gb,
        **{name: source[name] for name in ("_local", "_drive") if name in source},
    }, None


def is_written(disk: Doc) -> bool:
    """Whether there is more on a disk than the image that it was made from."""
    return bool(disk.get("_machine") or disk.get("_drive"))


def _check_idle(context: Context, disk: Doc, ref: Ref) -> None:
    for user in map(ref_of, disk.get("users", [])):
        if disk_backing.is_running(context, context.store.get(user) or {}):
            raise disk_backing.in_use(ref, user)


def insert(context: Context, call: Call) -> Doc:
    ref = Ref(call.project, GLOBAL, "images", str(call.body.get("name", "")))
    with context.names:
        doc = new_resource(ref, "image", call.body)
        check_free(context, ref)
        source, disk = _source(context, call, ref)
        doc |= {
            "sourceType": "RAW",
            "status": "PENDING",
            "archiveSizeBytes": "0",
            "architecture": "X86_64",
            "storageLocations": ["us"],
            "labelFingerprint": fingerprint(call.body.get("labels", {})),
            **source,
        }
        doc.pop("rawDisk", None)
        context.store.put(ref, doc)
    return context.begin(call, ref, "insert", lambda: make(context, ref, disk))


def make(context: Context, ref: Ref, disk: Ref | None) -> None:
    """Copy the disk if need be; what cannot be made is not left behind."""
    made = False
    try:
        size: Doc = {}
        if disk is not None:
            with context.names:
                size, taken = _copy(context, ref, context.find(disk), disk)
            size["archiveSizeBytes" if ref.collection == "images" else "storageBytes"] = str(taken)
        context.change(ref, status="READY", **size)
        made = True
    finally:
        if not made:
            context.store.drop(ref)


def _copy(context: Context, ref: Ref, source: Doc, disk: Ref) -> tuple[Doc, int]:
    """What stands behind an image or snapshot of this disk, and how many bytes it takes."""
    if source.get("_drive"):
        disk_backing.drive(context, source)
        drive = str(context.find(ref)["id"])
        return {"_drive": drive}, disk_backing.copy_drive(context, source["_drive"], drive)
    local = disk_backing.local_image(context, ref)
    return {"_local": local}, disk_backing.freeze(context, disk, local).bytes


def tidy_up(context: Context) -> None:
    """After a server that was killed while it made an image or a snapshot: what is not whole goes."""
    for collection in ("images", "snapshots"):
        for ref, doc in list(context.store.each(collection)):
            if doc["status"] != "READY":
                context.store.drop(ref)
                disk_backing.release_drive(context, str(doc["id"]))


def create_snapshot(context: Context, call: Call) -> Doc:
    disk = call.ref("disks")
    return _snapshot(context, call, disk, target=disk)


def _snapshot(context: Context, call: Call, disk: Ref, target: Ref) -> Doc:
    """A snapshot of a disk, also while its machine runs: what is on the disk at that moment."""
    source = context.find(disk)
    ref = Ref(call.project, GLOBAL, "snapshots", str(call.body.get("name", "")))
    with context.names:
        doc = new_resource(ref, "snapshot", call.body)
        check_free(context, ref)
        doc |= {
            "status": "CREATING",
            "sourceDisk": disk.link,
            "sourceDiskId": source["id"],
            "diskSizeGb": source["sizeGb"],
            "storageBytes": "0",
            "storageLocations": ["us"],
            "snapshotType": "STANDARD",
            "labelFingerprint": fingerprint(call.body.get("labels", {})),
        }
        if not is_written(source):
            doc["_local"] = source["_local"]
        context.store.put(ref, doc)
    copied = disk if is_written(source) else None
    return context.begin(call, target, "createSnapshot", lambda: make(context, ref, copied))


def insert_snapshot(context: Context, call: Call) -> Doc:
    near = Ref(call.project, GLOBAL, "disks", "")
    disk = parse(call.body.get("sourceDisk"), near=near, field="resource.sourceDisk")
    # Asked for globally, and the client looks for the operation there.
    return _snapshot(context, call, disk, target=Ref(call.project, GLOBAL, "snapshots", str(call.body.get("name", ""))))


def delete(context: Context, call: Call, collection: str) -> Doc:
    ref = call.ref(collection)
    context.find(ref)
    return context.begin(call, ref, "delete", lambda: discard(context, ref))


def discard(context: Context, ref: Ref) -> None:
    """The image or snapshot, and what stands behind it if nobody else needs it."""
    doc = context.store.get(ref) or {}
    context.store.drop(ref)
    disk_backing.release(context, str(doc.get("_local", "")))
    disk_backing.release_drive(context, str(doc.get("_drive", "")))


def check_ready(image: Doc) -> None:
    if image["status"] != "READY":
        raise ApiError(400, "resourceNotReady", f"The resource '{ref_of(image['selfLink']).path}' is not ready")


def get(context: Context, call: Call) -> Doc:
    return find(context, call.ref("images"))


def get_from_family(context: Context, call: Call) -> Doc:
    return newest(context, call.project, call.name)


def family_view(context: Context, call: Call) -> Doc:
    return {"image": newest(context, call.project, call.name)}


def list_images(context: Context, call: Call) -> Doc:
    if call.project in PUBLIC:
        docs = [newest(context, call.project, family) for family in PUBLIC[call.project]]
    else:
        docs = [] if call.project in _EMPTY else [doc for _, doc in context.store.each("images", call.project)]
    return listing(call, "image", "images", docs)


def patch(context: Context, call: Call) -> Doc:
    """What may be said otherwise of an image that is there."""
    ref = call.ref("images")
    context.find(ref)
    given = {name: call.body[name] or None for name in ("description", "family", "labels") if name in call.body}
    context.change(
        ref, **given, **({"labelFingerprint": fingerprint(given["labels"] or {})} if "labels" in given else {})
    )
    return context.begin(call, ref, "patch", lambda: None)


def deprecate(context: Context, call: Call) -> Doc:
    ref = call.ref("images")
    context.find(ref)
    state = call.body.get("state", "ACTIVE")
    if state not in ("ACTIVE", "DEPRECATED", "OBSOLETE", "DELETED"):
        raise invalid(f"Invalid value for field 'resource.state': '{state}'.")
    deprecated = None if state == "ACTIVE" else dict(call.body)
    return context.begin(call, ref, "deprecate", lambda: _ignore(context.change(ref, deprecated=deprecated)))


def _ignore(_value: object) -> None:
    """An operation answers nothing."""


def policy_etag(doc: Doc) -> Doc:
    policy: Doc = doc.get("_policy", {"version": 1, "bindings": []})
    return {**policy, "etag": fingerprint(policy)}


def get_policy(context: Context, call: Call, collection: str) -> Doc:
    return policy_etag(context.find(call.ref(collection)))


def set_policy(context: Context, call: Call, collection: str) -> Doc:
    given = call.body.get("policy", call.body)
    bindings = given.get("bindings", call.body.get("bindings", []))
    with context.store.lock:
        current = policy_etag(context.find(call.ref(collection)))
        if given.get("etag", current["etag"]) != current["etag"]:
            raise ApiError(412, "conditionNotMet", "The etag of the policy does not match.")
        doc = context.change(call.ref(collection), _policy={"version": 1, "bindings": bindings})
    return policy_etag(doc)
