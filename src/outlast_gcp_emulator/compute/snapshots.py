"""Snapshots and saved disks: copies of disks, also of disks in use."""

from __future__ import annotations

from collections.abc import Iterator

from outlast_gcp_emulator.compute.context import Call, Context
from outlast_gcp_emulator.compute.disk_backing import DiskBacking
from outlast_gcp_emulator.compute.refs import GLOBAL, Doc, Ref, fingerprint, new_id, ref_of
from outlast_gcp_emulator.compute.resource import PROJECT_WIDE, ZONAL, Resource, RouteEntry
from outlast_gcp_emulator.errors import ApiError


class DiskCopies(Resource):
    """A kind whose resources hold a copy of a disk: images, snapshots and saved disks.

    Copies of the same source share its backing, which is deleted together with the last of them.
    """

    size_field = "storageBytes"

    def __init__(self, context: Context, backing: DiskBacking) -> None:
        super().__init__(context)
        self._backing = backing

    def copy(self, ref: Ref, disk: Ref | None) -> None:
        """Copy the disk, if there is one to copy, and mark the resource READY. Drops the resource on failure."""
        ready = False
        try:
            fields: Doc = {}
            if disk is not None:
                with self.context.names:
                    fields, size = self._copy(ref, self.context.find(disk), disk)
                fields[self.size_field] = str(size)
            self.context.change(ref, status="READY", **fields)
            ready = True
        finally:
            if not ready:
                self.store.drop(ref)

    def _copy(self, ref: Ref, source: Doc, disk: Ref) -> tuple[Doc, int]:
        """Return the backing of a copy, and its size in bytes."""
        if source.get("_drive"):
            self._backing.drive(source)
            drive = str(self.context.find(ref)["id"])
            return {"_drive": drive}, self._backing.copy_drive(source["_drive"], drive)
        local = self._backing.free_image_name(ref)
        return {"_local": local}, self._backing.snapshot(disk, local).bytes

    def discard(self, ref: Ref) -> None:
        """Delete the resource, and its backing unless another resource shares it."""
        doc = self.store.get(ref) or {}
        self.store.drop(ref)
        self._backing.release(str(doc.get("_local", "")))
        self._backing.release_drive(str(doc.get("_drive", "")))

    def recover(self) -> None:
        """Drop the copies that a killed server left unfinished."""
        for ref, doc in list(self.store.each(self.collection)):
            if doc["status"] != "READY":
                self.store.drop(ref)
                self._backing.release_drive(str(doc["id"]))


class Snapshots(DiskCopies):
    kind = "snapshot"

    def routes(self) -> Iterator[RouteEntry]:
        yield "POST", "/global/snapshots", self.insert
        yield "POST", f"{ZONAL}/disks/{{name}}/createSnapshot", self.insert_of_disk
        yield from self.stored_routes(PROJECT_WIDE)

    def insert(self, call: Call) -> Doc:
        disk = self.global_ref(call.project, call.body.get("sourceDisk"), "disks", "resource.sourceDisk")
        # The client polls a global operation, because its request was global.
        return self._insert(call, disk, target=self.new_ref(call))

    def insert_of_disk(self, call: Call) -> Doc:
        disk = Ref(call.project, call.scope, "disks", call.name)
        return self._insert(call, disk, target=disk)

    def _insert(self, call: Call, disk: Ref, target: Ref) -> Doc:
        source = self.context.find(disk)
        ref = self.new_ref(call)._replace(scope=GLOBAL)
        with self.context.names:
            doc = self.new(ref, call.body) | {
                "status": "CREATING",
                "sourceDisk": disk.link,
                "sourceDiskId": source["id"],
                "diskSizeGb": source["sizeGb"],
                "storageBytes": "0",
                "storageLocations": ["us"],
                "snapshotType": "STANDARD",
                "labelFingerprint": fingerprint(call.body.get("labels", {})),
                **shared_backing(source),
            }
            self.store.put(ref, doc)
        copied = disk if is_written(source) else None
        return self.context.begin(call, target, "createSnapshot", lambda: self.copy(ref, copied))


class SavedDisks(DiskCopies):
    """The disks of machine images. Clients see them only as part of their machine image."""

    kind = "savedDisk"

    def add(self, image: Ref, disk: Ref) -> Ref:
        source = self.context.find(disk)
        ref = Ref(image.project, GLOBAL, self.collection, f"{image.name}-{new_id()}")
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
        self.store.put(ref, doc | shared_backing(source))
        return ref


def is_written(disk: Doc) -> bool:
    """Return whether a disk may differ from the image that it was created from."""
    return bool(disk.get("_machine") or disk.get("_drive"))


def shared_backing(disk: Doc) -> Doc:
    """Return the backing that a copy of an unwritten disk shares with it."""
    return {} if is_written(disk) else {"_local": disk["_local"]}


def check_ready(doc: Doc) -> None:
    if doc["status"] != "READY":
        raise ApiError(400, "resourceNotReady", f"The resource '{ref_of(doc['selfLink']).path}' is not ready")
