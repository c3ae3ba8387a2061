"""Instances: the handlers of the API. `instance_backend` does the work on the machines."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

from outlast.clouds.cloud import Machine
from outlast.clouds.local import google_types
from outlast.errors import BadRequest, CloudError
from outlast_gcp_emulator.compute.attach import Attachments
from outlast_gcp_emulator.compute.context import Call, Context
from outlast_gcp_emulator.compute.disk_backing import DiskBacking
from outlast_gcp_emulator.compute.disks import Disks
from outlast_gcp_emulator.compute.instance_backend import InstanceBackend
from outlast_gcp_emulator.compute.instance_spec import (
    InstanceSpec,
    access_config,
    changed_scheduling,
    service_accounts,
    tags_of,
)
from outlast_gcp_emulator.compute.machineimages import MachineImages
from outlast_gcp_emulator.compute.operations import Work
from outlast_gcp_emulator.compute.project import ProjectResource, check_items, metadata_of
from outlast_gcp_emulator.compute.refs import (
    GLOBAL,
    Doc,
    Ref,
    check_fingerprint,
    fingerprint,
    parse,
    ref_of,
    resource_not_found,
)
from outlast_gcp_emulator.compute.resource import ZONAL, Resource, RouteEntry, changed_labels
from outlast_gcp_emulator.errors import ApiError, invalid

# Returns the changed fields of an instance.
Change = Callable[[Call, Ref, Doc], Doc]
# Verbs that store one field of the body, or the body itself, and have no effect on the machine.
_STORED_FIELDS = {
    "setMinCpuPlatform": ("POST", "minCpuPlatform"),
    "updateShieldedInstanceConfig": ("PATCH", "shieldedInstanceConfig"),
    "setShieldedInstanceIntegrityPolicy": ("PATCH", "shieldedInstanceIntegrityPolicy"),
    "updateDisplayDevice": ("PATCH", "displayDevice"),
}


class Instances(Resource):
    kind = "instance"

    def __init__(
        self,
        context: Context,
        backing: DiskBacking,
        disks: Disks,
        backend: InstanceBackend,
        machine_images: MachineImages,
        project: ProjectResource,
    ) -> None:
        super().__init__(context)
        self._backing = backing
        self._disks = disks
        self._backend = backend
        self._machine_images = machine_images
        self._project = project
        self._attachments = Attachments(context, disks, backend)

    def routes(self) -> Iterator[RouteEntry]:
        instance = f"{ZONAL}/instances/{{name}}"
        yield self.aggregated_route()
        yield from self.read_routes(ZONAL)
        yield "POST", f"{ZONAL}/instances", self.insert
        yield "DELETE", instance, self.delete
        backend = self._backend
        for power in (backend.start, backend.stop, backend.suspend, backend.resume, backend.reset):
            verb = power.__name__
            yield "POST", f"{instance}/{verb}", functools.partial(self._power, verb=verb, power=power)
        yield "POST", f"{instance}/simulateMaintenanceEvent", self.simulate_maintenance
        yield "POST", f"{instance}/setMachineType", self.set_machine_type
        for verb, change in self._changes().items():
            yield "POST", f"{instance}/{verb}", functools.partial(self._change, verb=verb, change=change)
        for verb, (method, field) in _STORED_FIELDS.items():
            change = functools.partial(_stored_field, field)
            yield method, f"{instance}/{verb}", functools.partial(self._change, verb=verb, change=change)
        yield from self.policy_routes(ZONAL)
        yield "GET", f"{instance}/serialPort", self.serial_port
        yield "GET", f"{instance}/getGuestAttributes", self.guest_attributes
        yield "POST", "/setCommonInstanceMetadata", self.set_common_metadata
        yield from self._attachments.routes()

    def _changes(self) -> dict[str, Change]:
        return {
            "setMetadata": self._metadata,
            "setTags": self._tags,
            "setLabels": lambda call, ref, doc: changed_labels(call, doc),
            "setScheduling": self._scheduling,
            "setServiceAccount": self._service_account,
            "setDeletionProtection": self._deletion_protection,
            "setDiskAutoDelete": self._attachments.set_auto_delete,
            "attachDisk": self._attachments.attach,
            "detachDisk": self._attachments.detach,
            "addAccessConfig": self._add_access,
            "deleteAccessConfig": self._delete_access,
        }

    # Creation

    def insert(self, call: Call) -> Doc:
        ref = self.new_ref(call)
        self.create(ref, self._body(call))
        return self.context.begin(call, ref, "insert", lambda: self._backend.launch(ref))

    def create(self, ref: Ref, body: Doc) -> None:
        """Store a new instance and its new disks. `InstanceBackend.launch` boots it."""
        with self.context.names:
            spec = InstanceSpec(self._disks, ref, body)
            for disk, doc in spec.disks.items():
                self.store.put(disk, doc)
            created = [disk.link for disk in spec.disks]
            self.store.put(ref, {**spec.doc, "_creating": True, "_made": created})
            surroundings = self.context.surroundings
            surroundings.delay(("list", spec.doc["id"]), surroundings.now.list_delay)
            for attached in spec.doc["disks"]:
                self._disks.set_used(ref_of(attached["source"]), ref, used=True)

    def _body(self, call: Call) -> Doc:
        """Return the request, completed from the template or the machine image that it names."""
        if call.body.get("sourceMachineImage"):
            return self._machine_images.instance_body(call)
        if template := call.query.get("sourceInstanceTemplate"):
            return {**self.template_properties(call.project, template), **call.body}
        return call.body

    def template_properties(self, project: str, template: str) -> Doc:
        ref = self.global_ref(project, template, "instanceTemplates", "sourceInstanceTemplate")
        properties: Doc = self.context.find(ref)["properties"]
        return properties

    # Reading

    def get(self, call: Call) -> Doc:
        ref, doc = self.find(call)
        shown = self._backend.view(ref, doc, self._machine(doc))
        if shown is None:
            self._backend.remove(ref, doc)
            raise resource_not_found(ref)
        return shown

    def items(self, project: str, scope: str = "") -> list[tuple[Ref, Doc]]:
        known = {machine.name: machine for machine in self.context.cloud.machines()}
        return [
            (ref, shown)
            for ref, doc in self.store.each("instances", project, scope)
            if (shown := self._backend.view(ref, doc, known.get(doc.get("_machine", "")))) is not None
        ]

    def listed(self, project: str, scope: str = "") -> list[tuple[Ref, Doc]]:
        late = self.context.surroundings.is_late
        return [(ref, doc) for ref, doc in self.items(project, scope) if not late(("list", doc["id"]))]

    def _machine(self, doc: Doc) -> Machine | None:
        return self._backing.machine(str(doc.get("_machine") or ""))

    def _find_ready(self, call: Call) -> tuple[Ref, Doc]:
        """Return an instance that exists and is not being created. Raises ApiError."""
        self.get(call)
        ref, doc = self.find(call)
        if doc.get("_creating"):
            raise ApiError(400, "resourceNotReady", f"The resource '{ref.path}' is not ready")
        return ref, doc

    def serial_port(self, call: Call) -> Doc:
        """Return the serial output of the machine from an offset on."""
        ref, doc = self._find_ready(call)
        text = self.context.cloud.serial(doc["_machine"]).encode() if call.query.get("port", "1") == "1" else b""
        start = call.query.get("start", "0")
        if not start.lstrip("-").isdigit():
            raise invalid(f"Invalid value for field 'start': '{start}'.")
        begin = int(start) if int(start) >= 0 else max(0, len(text) + int(start))
        return {
            "kind": "compute#serialPortOutput",
            "selfLink": f"{ref.link}/serialPort",
            "contents": text[begin:].decode("utf-8", "replace"),
            "start": str(min(begin, len(text))),
            "next": str(max(begin, len(text))),
        }

    def guest_attributes(self, call: Call) -> Doc:
        """Return attributes that the machine reported: the host keys of its ssh server, and those of its programs."""
        ref, doc = self._find_ready(call)
        found: Doc = {"kind": "compute#guestAttributes", "selfLink": f"{ref.link}/getGuestAttributes"}
        key, path = call.query.get("variableKey", ""), call.query.get("queryPath", "")
        items = [item for item in self._guest_items(doc["_machine"]) if _is_below(item, key or path)]
        if not items:
            # Google's message, which gcloud searches for.
            raise ApiError(404, "notFound", f"The resource '{key or path}' of type 'Guest Attribute' was not found.")
        if key:
            return {**found, "variableKey": key, "variableValue": items[0]["value"]}
        return {**found, "queryPath": path, "queryValue": {"items": items}}

    def _guest_items(self, machine: str) -> list[dict[str, str]]:
        try:
            keys = dict(key.split()[:2] for key in self.context.cloud.access(machine).host_keys)
        except (BadRequest, CloudError):
            keys = {}
        pages = {**self.context.cloud.guest_attributes(machine), **({"hostkeys": keys} if keys else {})}
        return [
            {"namespace": name, "key": key, "value": page[key]}
            for name, page in sorted(pages.items())
            for key in sorted(page)
        ]

    # Power

    def _power(self, call: Call, *, verb: str, power: Callable[[Ref], None]) -> Doc:
        ref, _ = self._find_ready(call)
        return self.context.begin(call, ref, verb, lambda: power(ref))

    def delete(self, call: Call) -> Doc:
        ref = self.ref(call)
        if self.get(call).get("deletionProtection"):
            message = f"Invalid resource usage: 'Resource cannot be deleted if it's protected against deletion. Modify the resource to disable the protection.' ({ref.name})."  # noqa: E501
            raise ApiError(400, "invalidUsage", message)
        return self.context.begin(call, ref, "delete", lambda: self._backend.delete(ref))

    def simulate_maintenance(self, call: Call) -> Doc:
        """Preempt a spot machine; any other is unaffected by maintenance."""
        ref, doc = self._find_ready(call)

        def work() -> None:
            if doc["scheduling"]["preemptible"]:
                self.context.cloud.preempt(doc["_machine"])

        return self.context.begin(call, ref, "compute.instances.simulateMaintenanceEvent", work)

    def set_machine_type(self, call: Call) -> Doc:
        ref, _ = self._find_ready(call)
        given = call.body.get("machineType")
        name = parse(given, near=ref.beside("machineTypes", ""), field="machineType").name
        if google_types.machine_type(name) is None:
            raise invalid(f"Invalid value for field 'machineType': '{given}'. The referenced resource does not exist.")
        return self.context.begin(call, ref, "setMachineType", lambda: self._backend.resize(ref, name))

    # Changes of fields

    def _change(self, call: Call, *, verb: str, change: Change) -> Doc:
        """Change fields of an instance at once, and send the new metadata to its machine."""
        ref, _ = self._find_ready(call)
        with self.store.lock:
            self.context.change(ref, **change(call, ref, self.context.find(ref)))
        return self.context.begin(call, ref, verb, lambda: self._backend.push_metadata(ref))

    def _metadata(self, call: Call, ref: Ref, doc: Doc) -> Doc:
        check_fingerprint(call.body.get("fingerprint"), doc["metadata"]["fingerprint"])
        return {"metadata": metadata_of(check_items(call.body.get("items", [])))}

    def _tags(self, call: Call, ref: Ref, doc: Doc) -> Doc:
        check_fingerprint(call.body.get("fingerprint"), doc["tags"]["fingerprint"])
        return {"tags": tags_of(call.body)}

    def _scheduling(self, call: Call, ref: Ref, doc: Doc) -> Doc:
        rules = changed_scheduling(doc["scheduling"], call.body)
        if rules["preemptible"] != doc["scheduling"]["preemptible"] and (machine := self._machine(doc)) is not None:
            if machine.status != "stopped":
                raise invalid(
                    "Invalid value for field 'resource.scheduling.preemptible': the instance must be stopped."
                )
            self.context.cloud.resize(machine.name, spot=rules["preemptible"])
        return {"scheduling": rules}

    def _service_account(self, call: Call, ref: Ref, doc: Doc) -> Doc:
        if self._backing.is_running(doc):
            raise invalid("The instance must be stopped before the service account can be changed.")
        accounts = service_accounts(ref.project, [call.body]) if call.body.get("email") else []
        return {"serviceAccounts": accounts or None}

    def _deletion_protection(self, call: Call, ref: Ref, doc: Doc) -> Doc:
        return {"deletionProtection": call.query.get("deletionProtection", "true").lower() == "true"}

    def _add_access(self, call: Call, ref: Ref, doc: Doc) -> Doc:
        return _with_access(call, doc, [access_config(call.body)])

    def _delete_access(self, call: Call, ref: Ref, doc: Doc) -> Doc:
        return _with_access(call, doc, [])

    def set_common_metadata(self, call: Call) -> Doc:
        """Set the metadata that all machines of a project share."""
        ref = self._project.ref(call.project)
        with self.store.lock:
            current = self._project.metadata_items(call.project)
            check_fingerprint(call.body.get("fingerprint"), fingerprint(current))
            self.store.put(ref, {"name": call.project, "items": check_items(call.body.get("items", []))})
        work: Work = functools.partial(self._backend.push_project_metadata, call.project)
        verb = "compute.projects.setCommonInstanceMetadata"
        return self.context.begin(call, Ref(call.project, GLOBAL, "", ""), verb, work)


def _stored_field(field: str, call: Call, ref: Ref, doc: Doc) -> Doc:
    return {field: call.body.get(field) if field == "minCpuPlatform" else call.body}


def _with_access(call: Call, doc: Doc, configs: list[Doc]) -> Doc:
    """Return the interfaces of an instance with other access configs for the interface that the call names."""
    name = call.query.get("networkInterface", "nic0")
    interfaces = []
    for interface in doc["networkInterfaces"]:
        if interface["name"] == name:
            interface = {field: value for field, value in interface.items() if field != "accessConfigs"}
            interface |= {"accessConfigs": configs} if configs else {}
        interfaces.append(interface)
    return {"networkInterfaces": interfaces}


def _is_below(item: dict[str, str], path: str) -> bool:
    """Return whether a path selects an attribute: by an empty path, its namespace, or namespace and key."""
    return path.strip("/") in ("", item["namespace"], f"{item['namespace']}/{item['key']}")
