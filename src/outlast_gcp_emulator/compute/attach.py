"""Attaching, detaching and resizing the disks of instances, also while they run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from outlast_gcp_emulator.compute.context import Call, Context
from outlast_gcp_emulator.compute.disks import Disks, attached_disk, check_device_names
from outlast_gcp_emulator.compute.instance_backend import InstanceBackend
from outlast_gcp_emulator.compute.refs import Doc, Ref, number, parse, ref_of
from outlast_gcp_emulator.compute.resource import ZONAL, RouteEntry
from outlast_gcp_emulator.errors import ApiError, invalid


class Attachments:
    """Verbs that concern a disk and its instances. The first three return the changed fields of an instance."""

    def __init__(self, context: Context, disks: Disks, backend: InstanceBackend) -> None:
        self._context = context
        self._disks = disks
        self._backend = backend

    def routes(self) -> Iterator[RouteEntry]:
        yield "PATCH", f"{ZONAL}/disks/{{name}}", self.patch
        yield "POST", f"{ZONAL}/disks/{{name}}/resize", self.resize

    def set_auto_delete(self, call: Call, ref: Ref, doc: Doc) -> Doc:
        device = call.query.get("deviceName", "")
        if device not in [disk["deviceName"] for disk in doc["disks"]]:
            raise _no_device(device)
        auto_delete = call.flag("autoDelete")
        return {
            "disks": [
                {**disk, "autoDelete": auto_delete} if disk["deviceName"] == device else disk for disk in doc["disks"]
            ]
        }

    def attach(self, call: Call, ref: Ref, doc: Doc) -> Doc:
        disk = parse(call.body.get("source"), near=ref.beside("disks", ""), field="resource.source")
        found = self._context.find(disk)
        self._disks.check_unused(disk, found, call.body.get("mode", "READ_WRITE"))
        taken = {attached["index"] for attached in doc["disks"]}
        index = next(at for at in itertools.count(1) if at not in taken)
        attached = [*doc["disks"], attached_disk(disk, found, {**call.body, "boot": False}, index)]
        check_device_names(attached)
        self._disks.set_used(disk, ref, used=True)
        return {"disks": sorted(attached, key=lambda disk: int(disk["index"]))}

    def detach(self, call: Call, ref: Ref, doc: Doc) -> Doc:
        device = call.query.get("deviceName", "")
        found = [disk for disk in doc["disks"] if disk["deviceName"] == device and not disk["boot"]]
        if not found:
            raise _no_device(device)
        self._disks.set_used(ref_of(found[0]["source"]), ref, used=False)
        return {"disks": [disk for disk in doc["disks"] if disk is not found[0]]}

    def patch(self, call: Call) -> Doc:
        """Handle `gcloud compute disks update --size`; a patch can change nothing but the size."""
        if "sizeGb" not in call.body:
            raise invalid("Invalid value for field 'resource': only sizeGb can be changed.")
        return self.resize(call)

    def resize(self, call: Call) -> Doc:
        ref, doc = self._disks.find(call)
        size_gb = number(call.body.get("sizeGb", ""), "sizeGb")
        if size_gb < int(doc["sizeGb"]):
            message = f"New disk size '{size_gb}' GB must be larger than existing size '{doc['sizeGb']}' GB."
            raise invalid(f"Invalid value for field 'sizeGb': '{size_gb}'. {message}")

        def work() -> None:
            if machine := doc.get("_machine"):
                self._context.cloud.resize(machine, disk_gb=float(size_gb))
            self._context.change(ref, sizeGb=str(size_gb))
            for user in map(ref_of, doc.get("users", [])):
                disks = self._context.find(user)["disks"]
                grown = [{**disk, "diskSizeGb": str(size_gb)} if disk["source"] == ref.link else disk for disk in disks]
                self._context.change(user, disks=grown)
                self._backend.push_metadata(user)

        return self._context.begin(call, ref, "resizeDisk", work)


def _no_device(device: str) -> ApiError:
    return invalid(f"Invalid value for field 'disk': '{device}'. No attached disk found with device name '{device}'")
