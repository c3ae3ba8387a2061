"""Disks: created alone or with an instance, and deleted with it or kept."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from outlast.clouds.local import google_types
from outlast_gcp_emulator.compute.context import Call, Context
from outlast_gcp_emulator.compute.disk_backing import DiskBacking, disk_in_use
from outlast_gcp_emulator.compute.images import Images
from outlast_gcp_emulator.compute.refs import Doc, Ref, fingerprint, last, number, parse, ref_of
from outlast_gcp_emulator.compute.resource import ZONAL, Resource, RouteEntry
from outlast_gcp_emulator.compute.snapshots import check_ready
from outlast_gcp_emulator.errors import invalid

_BLANK_GB = 500


class Disks(Resource):
    kind = "disk"

    def __init__(self, context: Context, backing: DiskBacking, images: Images) -> None:
        super().__init__(context)
        self._backing = backing
        self._images = images

    def routes(self) -> Iterator[RouteEntry]:
        yield self.aggregated_route()
        yield "POST", f"{ZONAL}/disks", self.insert
        for verb in ("addResourcePolicies", "removeResourcePolicies"):
            yield "POST", f"{ZONAL}/disks/{{name}}/{verb}", functools.partial(self.change_policies, verb=verb)
        yield from self.stored_routes(ZONAL)

    # Creation

    def insert(self, call: Call) -> Doc:
        ref = self.new_ref(call)
        params = dict(call.body)
        # gcloud still sends this older form for some images.
        if "sourceImage" in call.query:
            params["sourceImage"] = call.query["sourceImage"]
        with self.context.names:
            self.store.put(ref, self.make(ref, params, field="resource"))
        return self.context.begin(call, ref, "insert", lambda: self.fill(ref))

    def make(self, ref: Ref, params: Doc, *, field: str) -> Doc:
        """Return a new disk from the parameters of a request, without storing it. Raises ApiError."""
        body: Doc = {name: params[name] for name in ("description", "labels", "resourcePolicies") if name in params}
        doc = self.new(ref, {**body, "name": ref.name})
        source, source_gb = self._source(ref, params, field)
        size_gb = number(params.get("diskSizeGb") or params.get("sizeGb") or source_gb, f"{field}.sizeGb")
        if size_gb < source_gb and (source["_local"] or "_copied" in source):
            # A fresh snapshot of the source disk has no other owner.
            self._backing.release(source["_local"])
            raise invalid(
                f"Invalid value for field '{field}.diskSizeGb': '{size_gb}'. Requested disk size cannot be smaller than"
                f" the image size ({source_gb} GB)"
            )
        kind = last(params.get("diskType") or params.get("type") or source.get("type")) or "pd-standard"
        return doc | {
            "sizeGb": str(size_gb),
            "status": "READY",
            "physicalBlockSizeBytes": "4096",
            "architecture": "X86_64",
            "labelFingerprint": fingerprint(params.get("labels", {})),
            **source,
            "type": ref.beside("diskTypes", kind).link,
            # A disk without a system is backed by a file.
            **({} if source["_local"] else {"_drive": doc["id"]}),
        }

    def _source(self, ref: Ref, params: Doc, field: str) -> tuple[Doc, int]:
        """Return the fields that follow from a disk's source, and the size of the source in GB."""
        doc: Doc = {}
        if params.get("sourceImage"):
            image = self._images.resolve(params["sourceImage"], ref.project, f"{field}.sourceImage")
            doc = {"sourceImage": image["selfLink"], "sourceImageId": image["id"]}
        elif given := params.get("sourceSnapshot"):
            saved = "/savedDisks/" in str(given)
            collection = "savedDisks" if saved else "snapshots"
            image = self.context.find(self.global_ref(ref.project, given, collection, f"{field}.sourceSnapshot"))
            if not saved:
                doc = {"sourceSnapshot": image["selfLink"], "sourceSnapshotId": image["id"]}
        elif params.get("sourceDisk"):
            return self._clone(ref, params["sourceDisk"], f"{field}.sourceDisk")
        else:
            return {"_local": ""}, _BLANK_GB
        check_ready(image)
        copied = {"_copied": image["_drive"]} if image.get("_drive") else {}
        return {**doc, "_local": image.get("_local", ""), **copied}, int(image["diskSizeGb"])

    def _clone(self, ref: Ref, given: Any, field: str) -> tuple[Doc, int]:
        """Return the source fields of a copy of another disk in its current state, even during writes."""
        disk = parse(given, near=ref.beside("disks", ""), field=field)
        if disk.scope != ref.scope:
            raise invalid(f"Invalid value for field '{field}': '{given}'. The source disk must be in the same zone.")
        source = self.context.find(disk)
        doc: Doc = {"sourceDisk": disk.link, "sourceDiskId": source["id"], "type": source["type"]}
        if source.get("_drive"):
            doc |= {"_local": "", "_copied": source["_drive"]}
        elif source.get("_machine"):
            local = self._backing.free_image_name(ref._replace(collection="snapshots"))
            doc["_local"] = self._backing.snapshot(disk, local).name
        else:
            doc["_local"] = source["_local"]
        return doc, int(source["sizeGb"])

    def fill(self, ref: Ref) -> None:
        """Copy the source of a disk now, because the source may be deleted before the disk is used."""
        if (doc := self.store.get(ref)) is not None and "_copied" in doc:
            if "sourceDisk" in doc:
                # The source may be an unfinished copy itself.
                self.fill(ref_of(doc["sourceDisk"]))
            self._backing.drive(doc)
            self.context.change(ref, _copied=None)
            self._backing.release_drive(doc["_copied"])

    # Changes

    def change_policies(self, call: Call, *, verb: str) -> Doc:
        """Add or remove snapshot schedules, which are stored and not executed."""
        ref = self.ref(call)
        near = Ref(call.project, f"regions/{google_types.region_of(last(call.scope))}", "resourcePolicies", "")
        links = call.body.get("resourcePolicies", [])
        given = [parse(link, near=near, field="resourcePolicies").link for link in links]
        with self.store.lock:
            others = [link for link in self.context.find(ref).get("resourcePolicies", []) if link not in given]
            policies = [*others, *given] if verb == "addResourcePolicies" else others
            self.context.change(ref, resourcePolicies=policies or None)
        return self.context.begin(call, ref, verb)

    def check_deletable(self, ref: Ref, doc: Doc) -> None:
        if users := doc.get("users"):
            raise disk_in_use(ref, ref_of(users[0]))

    def discard(self, ref: Ref) -> None:
        """Delete the disk and its backing."""
        if (doc := self.store.get(ref)) is None:
            return
        if machine := doc.get("_machine"):
            self.context.cloud.delete(machine)
        self.store.drop(ref)
        self._backing.release(str(doc.get("_local", "")))
        for drive in (doc.get("_drive"), doc.get("_copied")):
            self._backing.release_drive(str(drive or ""))

    # Use by instances

    def check_unused(self, ref: Ref, doc: Doc, mode: str) -> None:
        """Raise ApiError if another instance uses the disk, unless all of them only read it."""
        for user in doc.get("users", []):
            attached = self.context.find(ref_of(user))["disks"]
            modes = [disk["mode"] for disk in attached if disk["source"] == ref.link]
            if mode != "READ_ONLY" or modes != ["READ_ONLY"]:
                raise disk_in_use(ref, ref_of(user))

    def set_used(self, disk: Ref, user: Ref, *, used: bool) -> None:
        """Record whether an instance uses a disk."""
        with self.store.lock:
            if (doc := self.store.get(disk)) is None:
                return
            others: list[Any] = [link for link in doc.get("users", []) if link != user.link]
            users = [*others, user.link] if used else others
            self.context.change(disk, users=users or None)

    def plugged(self, instance: Doc) -> list[Doc]:
        """Return the disks beside the boot disk, in the form that the local cloud reads from a machine's metadata."""
        found, scratch = [], 0
        for attached in instance["disks"]:
            disk = self.store.get(ref_of(attached["source"])) or {}
            if attached["boot"] or not disk.get("_drive"):
                continue
            nvme = attached["interface"] == "NVME"
            if attached["type"] == "SCRATCH":
                aliases, scratch = [f"google-local-{'nvme-' if nvme else ''}ssd-{scratch}"], scratch + 1
            else:
                device = attached["deviceName"]
                aliases = [f"google-{device}", f"scsi-0Google_PersistentDisk_{device}"]
            plug = {"file": self._backing.drive(disk), "gb": disk["sizeGb"], "aliases": aliases}
            found.append({**plug, "bus": "nvme0n" if nvme else "sd", "read_only": attached["mode"] == "READ_ONLY"})
        return found

    def wipe_scratch(self, instance: Doc) -> None:
        """Empty the local SSDs, which do not survive a stop."""
        for attached in instance["disks"]:
            disk = self.store.get(ref_of(attached["source"])) or {}
            if attached["type"] == "SCRATCH" and disk.get("_drive"):
                self._backing.copy_drive("", disk["_drive"])


def attached_disk(disk: Ref, doc: Doc, request: Doc, index: int) -> Doc:
    """Return a disk as its instance lists it."""
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


def check_device_names(attached: list[Doc]) -> None:
    """Raise ApiError if two disks of an instance have the same device name."""
    names = [disk["deviceName"] for disk in attached]
    for at, name in enumerate(names):
        if name in names[:at]:
            message = "Another disk of the instance has this device name."
            raise invalid(f"Invalid value for field 'resource.deviceName': '{name}'. {message}")
