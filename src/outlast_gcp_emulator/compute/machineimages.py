"""Machine images: copies of whole machines, with all their disks, to create others from."""

from __future__ import annotations

from collections.abc import Iterator

from outlast_gcp_emulator.compute import instance_spec
from outlast_gcp_emulator.compute.context import Call, Context
from outlast_gcp_emulator.compute.refs import Doc, Ref, last, ref_of
from outlast_gcp_emulator.compute.resource import PROJECT_WIDE, Resource, RouteEntry
from outlast_gcp_emulator.compute.snapshots import SavedDisks, check_ready, is_written

_PROPERTIES = (*instance_spec.KEPT, "metadata", "networkInterfaces", "scheduling", "serviceAccounts", "tags")
# Fields that a new instance does not take over.
_OWN = ("hostname", "deletionProtection")
_DISK = ("autoDelete", "boot", "deviceName", "diskSizeGb", "interface", "mode", "type")


class MachineImages(Resource):
    kind = "machineImage"

    def __init__(self, context: Context, saved_disks: SavedDisks) -> None:
        super().__init__(context)
        self._saved_disks = saved_disks

    def routes(self) -> Iterator[RouteEntry]:
        yield "POST", "/global/machineImages", self.insert
        yield from self.stored_routes(PROJECT_WIDE)

    def insert(self, call: Call) -> Doc:
        ref = self.new_ref(call)
        given = call.body.get("sourceInstance") or call.query.get("sourceInstance")
        source = self.global_ref(call.project, given, "instances", "resource.sourceInstance")
        with self.context.names:
            doc = self.new(ref, call.body)
            instance = self.context.find(source)
            disks = [ref_of(disk["source"]) for disk in instance["disks"] if disk["type"] != "SCRATCH"]
            saved = {self._saved_disks.add(ref, disk): disk for disk in disks}
            self.store.put(
                ref,
                {
                    "storageLocations": ["us"],
                    **doc,
                    "sourceInstance": source.link,
                    "status": "CREATING",
                    "totalStorageBytes": "0",
                    "instanceProperties": {**instance_properties(instance), "disks": instance_disks(instance)},
                    "_saved": [saved_disk.link for saved_disk in saved],
                },
            )
        return self.context.begin(call, ref, "insert", lambda: self._copy_disks(ref, saved))

    def _copy_disks(self, ref: Ref, saved: dict[Ref, Ref]) -> None:
        """Copy all disks and mark the machine image READY. Discards everything on failure."""
        ready = False
        try:
            for copy, disk in saved.items():
                self._saved_disks.copy(copy, disk if is_written(self.context.find(disk)) else None)
            shown = [_shown(self.context.find(copy)) for copy in saved]
            total = sum(int(disk["storageBytes"]) for disk in shown)
            self.context.change(ref, status="READY", savedDisks=shown, totalStorageBytes=str(total))
            ready = True
        finally:
            if not ready:
                self.discard(ref)

    def discard(self, ref: Ref) -> None:
        doc = self.store.get(ref) or {}
        super().discard(ref)
        for link in doc.get("_saved", []):
            self._saved_disks.discard(ref_of(link))

    def recover(self) -> None:
        """Discard the machine images and saved disks that a killed server left unfinished."""
        for ref, doc in list(self.store.each(self.collection)):
            if doc["status"] != "READY":
                self.discard(ref)
        owned = {link for _, doc in self.store.each(self.collection) for link in doc["_saved"]}
        for ref, _ in list(self.store.each(self._saved_disks.collection)):
            if ref.link not in owned:
                self._saved_disks.discard(ref)

    def instance_body(self, call: Call) -> Doc:
        """Return the insert request of an instance from a machine image. Fields of the call take precedence."""
        given = call.body["sourceMachineImage"]
        image = self.context.find(self.global_ref(call.project, given, self.collection, "resource.sourceMachineImage"))
        check_ready(image)
        properties = image["instanceProperties"]
        disks = [
            {**disk, "initializeParams": {"sourceSnapshot": link, "diskSizeGb": disk["diskSizeGb"]}}
            for disk, link in zip(properties["disks"], image["_saved"], strict=True)
        ]
        return {**properties, "disks": disks, **call.body}


def instance_properties(doc: Doc) -> Doc:
    """Return the properties of an instance that similar ones take over, without its disks."""
    found = {name: doc[name] for name in _PROPERTIES if name in doc and name not in _OWN}
    accelerators = [
        {**accelerator, "acceleratorType": last(accelerator["acceleratorType"])}
        for accelerator in doc.get("guestAccelerators", [])
    ]
    return {
        **found,
        "machineType": last(doc["machineType"]),
        **({"guestAccelerators": accelerators} if accelerators else {}),
    }


def instance_disks(doc: Doc) -> list[Doc]:
    """Return the disks of an instance for similar ones, without their content."""
    return [{name: disk[name] for name in _DISK} for disk in doc["disks"] if disk["type"] != "SCRATCH"]


def _shown(saved: Doc) -> Doc:
    fields = {name: saved[name] for name in ("kind", "sourceDisk", "architecture")}
    return {**fields, "storageBytes": saved.get("storageBytes", "0"), "storageBytesStatus": "UP_TO_DATE"}
