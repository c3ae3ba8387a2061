"""The machine behind an instance: its boot, metadata, power and deletion on the local cloud."""

from __future__ import annotations

import functools
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from outlast.clouds.cloud import Boot, HostAccess, Machine
from outlast.clouds.local import catalog, drives, google_types
from outlast.clouds.local.folder import SUSPENDED
from outlast.clouds.local.metadata_server import ATTRIBUTE_OVERLAY
from outlast.errors import CloudError, NotFound
from outlast_gcp_emulator.compute.context import Context
from outlast_gcp_emulator.compute.disk_backing import DiskBacking
from outlast_gcp_emulator.compute.disks import Disks
from outlast_gcp_emulator.compute.operations import OperationFailure
from outlast_gcp_emulator.compute.oslogin_keys import OsLoginKeys
from outlast_gcp_emulator.compute.project import ProjectResource
from outlast_gcp_emulator.compute.refs import Doc, Ref, last, ref_of, stable_number, timestamp
from outlast_gcp_emulator.conditions import GPUS

_BOOT_S_MAX = 30.0
_GUEST = Path(__file__).with_name("guest.py")
# Google's guest environment needs no Python: on an image without one, the shell runs the script. To Python, these lines
# are a string.
_WITHOUT_PYTHON = """#!/bin/sh
''':'
! command -v python3 >/dev/null || exec python3 "$0" "$@"
cd / && unset HOME USER LOGNAME PWD
at="http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance/attributes/KIND-script"
curl -sf -H 'Metadata-Flavor: Google' -o /run/google-KIND-script "$at" && exec bash /run/google-KIND-script
exit 0
'''
"""
# Reasons why a machine stopped without a request, with the operation that Google records for each.
UNREQUESTED_STOPS = {
    "preempted": "compute.instances.preempted",
    "powered off by itself": "compute.instances.guestTerminate",
}
_DISK_FIELDS = {name: name for name in ("index", "interface", "mode", "type")} | {"device-name": "deviceName"}
_STATUS = {"pending": "STAGING", "running": "RUNNING", "stopping": "STOPPING", "stopped": "TERMINATED"}


@functools.cache
def guest_program(kind: str) -> str:
    """Return the program that a machine runs at its start or its end."""
    text = _GUEST.read_text(encoding="utf-8").replace("from __future__ import annotations\n", "")
    return _WITHOUT_PYTHON.replace("KIND", kind) + text.replace('KIND = "startup"', f'KIND = "{kind}"')


def attributes(doc: Doc) -> dict[str, str]:
    return {str(item["key"]): str(item["value"]) for item in doc["metadata"].get("items", [])}


def max_run_s(doc: Doc) -> float:
    """Return the longest time that an instance may run; 0 for no limit."""
    return float(doc["scheduling"].get("maxRunDuration", {}).get("seconds", 0))


def notice_s(doc: Doc) -> float:
    """Return how long before its end a spot instance learns of its preemption."""
    return float(doc["scheduling"].get("preemptionNoticeDuration", {}).get("seconds", 30))


def _project_variables(project: str) -> dict[str, str]:
    """Return the variables with the project's name, in place of an answer of the metadata server.

    A real machine has none. But a library of Google's that finds STORAGE_EMULATOR_HOST asks the metadata server neither
    for its account nor for its project, and would fail here where it works there.
    """
    return {"GOOGLE_CLOUD_PROJECT": project, "GCLOUD_PROJECT": project, "CLOUDSDK_CORE_PROJECT": project}


def is_suspended(machine: Machine | None) -> bool:
    return machine is not None and machine.status == "running" and machine.why == SUSPENDED


class InstanceBackend:
    """Does the work of the instance verbs. Takes references of stored instances."""

    def __init__(
        self, context: Context, backing: DiskBacking, disks: Disks, project: ProjectResource, keys: OsLoginKeys
    ) -> None:
        self._context = context
        self._cloud = context.cloud
        self._store = context.store
        self._backing = backing
        self._disks = disks
        self._project = project
        self._keys = keys

    # Metadata

    def push_metadata(self, ref: Ref) -> None:
        """Send the current metadata to the machine, unless the machine is gone."""
        if (doc := self._store.get(ref)) is not None and not doc.get("_creating"):
            with suppress(NotFound):
                self._cloud.set_metadata(doc["_machine"], self._metadata(ref, doc))

    def push_project_metadata(self, project: str) -> None:
        for ref, _ in self._store.each("instances", project):
            self.push_metadata(ref)

    def _metadata(self, ref: Ref, doc: Doc) -> dict[str, str]:
        """Return the attributes of the local machine, among them the overlay that the metadata server serves."""
        own, common = attributes(doc), self._project.common_metadata(ref.project)
        has_shutdown = any(own.get(key) or common.get(key) for key in ("shutdown-script", "shutdown-script-url"))
        return {
            ATTRIBUTE_OVERLAY: json.dumps(self._overlay(ref, doc)),
            "ssh-keys": "\n".join(key.strip() for key in self._ssh_keys(ref, own) if key.strip()),
            "shutdown-script": guest_program("shutdown") if has_shutdown else "",
            drives.ATTRIBUTE: json.dumps(self._disks.plugged(doc)),
        }

    def _ssh_keys(self, ref: Ref, own: dict[str, str]) -> list[str]:
        """Return the keys of OS Login where it is enabled, else those in the metadata."""
        if self._keys.are_used(ref.project, own):
            return self._keys.lines()
        blocked = own.get("block-project-ssh-keys", "").lower() == "true"
        common = {} if blocked else self._project.common_metadata(ref.project)
        return [named.get(key, "") for named in (own, common) for key in ("ssh-keys", "sshKeys")]

    def _overlay(self, ref: Ref, doc: Doc) -> Doc:
        """Return the metadata server's answers that are specific to this machine."""
        zone, place = last(ref.scope), f"projects/{stable_number(ref.project)}"
        accounts = {
            name: {"aliases": ["default"], "email": account["email"], "scopes": account["scopes"]}
            for account in doc.get("serviceAccounts", [])
            for name in ("default", account["email"])
        }
        common = self._project.common_metadata(ref.project)
        boot = self._store.get(ref_of(doc["disks"][0]["source"])) or {}
        rules = doc["scheduling"]
        access = self._context.guest_access(doc["_machine"])
        # A machine without a script runs the script of its project.
        scripts = {key: value for key, value in common.items() if key.startswith(("startup-script", "shutdown-script"))}
        instance = {
            "attributes": {**scripts, **attributes(doc)},
            "description": doc.get("description", ""),
            "disks": [{name: disk[field] for name, field in _DISK_FIELDS.items()} for disk in doc["disks"]],
            "hostname": doc.get("hostname") or f"{ref.name}.{zone}.c.{ref.project}.internal",
            "id": int(doc["id"]),
            "image": boot.get("sourceImage", "").partition("googleapis.com/")[2],
            "machine-type": f"{place}/machineTypes/{last(doc['machineType'])}",
            "name": ref.name,
            "network-interfaces": [
                {
                    "network": f"{place}/networks/{last(interface['network'])}",
                    **({} if interface.get("accessConfigs") else {"access-configs": []}),
                }
                for interface in doc["networkInterfaces"]
            ],
            "scheduling": {
                "automatic-restart": str(rules["automaticRestart"]).upper(),
                "on-host-maintenance": rules["onHostMaintenance"],
                "preemptible": str(rules["preemptible"]).upper(),
            },
            "service-accounts": accounts,
            "tags": doc["tags"].get("items", []),
            "zone": f"{place}/zones/{zone}",
            "outlast": {
                "environment": {**access.environment, **_project_variables(ref.project)},
                "token": access.token,
                "grace_s": notice_s(doc),
                "announces": "preemptionNoticeDuration" in rules,
            },
        }
        project = {
            "attributes": common,
            "numeric-project-id": stable_number(ref.project),
            "project-id": ref.project,
        }
        return {"instance": instance, "project": project}

    # Launch

    def launch(self, ref: Ref) -> None:
        """Boot the machine of a new instance. Removes the instance on failure."""
        doc = self._context.find(ref)
        launched = False
        try:
            self._check_quota(doc)
            self._launch(ref, doc)
            launched = True
        finally:
            if not launched:
                self.remove(ref, doc)

    def _check_quota(self, doc: Doc) -> None:
        limit = self._context.surroundings.now.quotas.get(GPUS)
        kind = google_types.machine_type(last(doc["machineType"]))
        has_gpu = bool(doc.get("guestAccelerators")) or bool(kind and kind.accelerator)
        if limit == 0 and has_gpu:
            raise OperationFailure("QUOTA_EXCEEDED", f"Quota '{GPUS}' exceeded.  Limit: 0.0 globally.", status=403)

    def _launch(self, ref: Ref, doc: Doc) -> None:
        for attached in doc["disks"]:
            self._disks.fill(ref_of(attached["source"]))
        disk = ref_of(doc["disks"][0]["source"])
        boot_disk = self._context.find(disk)
        former, image = str(boot_disk.get("_machine", "")), str(boot_disk.get("_local", ""))
        with self._context.names:
            name = self._backing.free_machine_name(ref)
            self._context.change(disk, _machine=name)
        try:
            if former:
                # The disk of a deleted instance: the new machine boots from an image of the former one.
                image = self._backing.free_image_name(disk._replace(collection="snapshots"))
                self._cloud.stop(former)
                self._cloud.snapshot(former, image)
            self._boot(ref, {**doc, "_machine": name}, image)
            if former:
                self._cloud.delete(former)
        except CloudError:
            self._cloud.delete(name)
            if self._store.get(disk) is not None:
                self._context.change(disk, _machine=former or None)
            raise
        finally:
            if former:
                self._cloud.delete_image(image)
        self._context.change(ref, _machine=name, _creating=None)
        # Keys may have been added during the boot.
        self.push_metadata(ref)

    def _boot(self, ref: Ref, doc: Doc, image: str) -> None:
        rules = doc["scheduling"]
        boot = Boot(
            script=guest_program("startup"),
            image=image,
            metadata=self._metadata(ref, doc),
            disk_gb=float(doc["disks"][0]["diskSizeGb"]),
            host=HostAccess(ports=(self._context.port,)),
            life_max_s=max_run_s(doc) if rules.get("instanceTerminationAction") == "DELETE" else 0.0,
        )
        offer = catalog.offer(last(doc["machineType"]), last(ref.scope), spot=rules["preemptible"])
        self._cloud.launch(offer, doc["_machine"], boot=boot, labels=doc.get("labels", {}))
        self._wait_running(doc["_machine"])

    def _wait_running(self, name: str) -> None:
        give_up_at = time.monotonic() + _BOOT_S_MAX
        while (machine := self._cloud.machine(name)).status == "pending":
            if time.monotonic() > give_up_at:
                message = f"the machine did not boot within {_BOOT_S_MAX:g} s"
                raise OperationFailure("INTERNAL_ERROR", message, status=500)
            time.sleep(0.01)
        if machine.status == "broken":
            raise OperationFailure("INTERNAL_ERROR", f"the machine cannot boot: {machine.why}", status=500)

    # Power

    def stop(self, ref: Ref) -> None:
        doc = self._context.change(ref, _stopping=True)
        try:
            self._cloud.stop(doc["_machine"])
        finally:
            if self._store.get(ref) is not None:
                self._context.change(ref, _stopping=None)

    def start(self, ref: Ref) -> None:
        if is_suspended(self._backing.machine(self._context.find(ref)["_machine"])):
            message = f"'{ref.path}' is suspended: it must be resumed, and cannot be started."
            raise OperationFailure("INVALID_USAGE", message)
        doc = self._context.change(ref, _ended=None)
        self._disks.wipe_scratch(doc)
        self.push_metadata(ref)
        self._cloud.start(doc["_machine"])
        self._wait_running(doc["_machine"])

    def suspend(self, ref: Ref) -> None:
        self._cloud.suspend(self._context.find(ref)["_machine"])
        self._context.change(ref, lastSuspendedTimestamp=timestamp())

    def resume(self, ref: Ref) -> None:
        self._cloud.resume(self._context.find(ref)["_machine"])

    def reset(self, ref: Ref) -> None:
        self.stop(ref)
        self.start(ref)

    def resize(self, ref: Ref, machine_type: str) -> None:
        machine = self._cloud.machine(self._context.find(ref)["_machine"])
        if machine.status != "stopped":
            message = (
                f"Changing the machine type of '{ref.path}' is not supported while it is running: it must be stopped."
            )
            raise OperationFailure("INVALID_USAGE", message)
        self._cloud.resize(machine.name, type=machine_type)
        self._context.change(ref, machineType=ref.beside("machineTypes", machine_type).link)
        self.push_metadata(ref)

    # Deletion

    def delete(self, ref: Ref) -> None:
        """Stop the machine, and remove the instance with its auto-delete disks."""
        if (doc := self._store.get(ref)) is None:
            return
        self._context.change(ref, _stopping=True, _deleting=True)
        try:
            self._stop_machine(str(doc.get("_machine", "")))
        except CloudError:
            self._context.change(ref, _stopping=None, _deleting=None)
            raise
        self.remove(ref, doc)

    def _stop_machine(self, name: str) -> None:
        if self._backing.machine(name) is not None:
            self._cloud.stop(name)

    def remove(self, ref: Ref, doc: Doc) -> None:
        """Drop an instance, and release or discard its disks."""
        for attached in doc["disks"]:
            disk = ref_of(attached["source"])
            self._disks.set_used(disk, ref, used=False)
            # A failed creation discards the disks that it created, and no disk that existed before.
            if disk.link in doc.get("_made", []) if doc.get("_creating") else attached["autoDelete"]:
                self._disks.discard(disk)
        self._store.drop(ref)

    def recover(self) -> None:
        """Remove the instances that a killed server was creating or deleting, and clear its marks on the others."""
        for ref, doc in list(self._store.each("instances")):
            # An instance that cannot be stopped must not keep the server from serving the others.
            with suppress(CloudError):
                self._recover(ref, doc)

    def _recover(self, ref: Ref, doc: Doc) -> None:
        if doc.get("_creating"):
            disk = self._store.get(ref_of(doc["disks"][0]["source"])) or {}
            self._stop_machine(str(disk.get("_machine", "")))
            self.remove(ref, doc)
        elif doc.get("_deleting"):
            self.delete(ref)
        elif doc.get("_stopping"):
            self._context.change(ref, _stopping=None)

    # Status

    def view(self, ref: Ref, doc: Doc, machine: Machine | None) -> Doc | None:
        """Return the instance with its current status; None if its machine is gone."""
        if machine is None and not doc.get("_creating"):
            return None
        suspended = is_suspended(machine)
        running = machine is not None and machine.status in ("running", "stopping") and not suspended
        status = _STATUS.get(machine.status, "TERMINATED") if machine is not None else "PROVISIONING"
        if doc.get("_creating") and status != "PROVISIONING":
            status = "STAGING"
        if status == "RUNNING" and (suspended or doc.get("_stopping")):
            status = "STOPPING" if doc.get("_stopping") else "SUSPENDED"
        if machine is not None and machine.why in UNREQUESTED_STOPS and doc.get("_ended") != machine.stopped_at:
            # Google records the reason before the machine is off: a client that sees it off must find the reason.
            status = "STOPPING" if status == "TERMINATED" else status
        inner = "" if machine is None else machine.address or self._cloud.last_address(machine.name)
        outer = machine.address if machine is not None and running else ""
        shown = {**doc, "status": status, "networkInterfaces": _interfaces(ref, doc, inner=inner, outer=outer)}
        if machine is not None:
            shown["lastStartTimestamp"] = timestamp(machine.started_at or machine.created_at)
            if machine.status == "stopped" and machine.stopped_at:
                shown["lastStopTimestamp"] = timestamp(machine.stopped_at)
            if machine.status == "broken":
                shown["statusMessage"] = machine.why
        return shown


def _interfaces(ref: Ref, doc: Doc, *, inner: str, outer: str) -> list[Doc]:
    """Return the interfaces with their addresses. Only a running machine has an outer one."""
    shown = []
    for at, network in enumerate(doc["networkInterfaces"]):
        number = stable_number(f"{ref.path} {at}")
        interface: dict[str, Any] = {
            **network,
            "networkIP": (inner if at == 0 else "") or f"10.128.{number // 250 % 250}.{number % 250 + 2}",
        }
        if outer and at == 0 and "accessConfigs" in network:
            interface["accessConfigs"] = [{**config, "natIP": outer} for config in network["accessConfigs"]]
        shown.append(interface)
    return shown
