"""Instances: what the API lets a client ask of a machine. What is done to it is in `machines`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outlast.clouds.local import google_types
from outlast.errors import BadRequest, CloudError
from outlast_gcp_emulator.compute import (
    builtin_kinds,
    disk_backing,
    disks,
    instance_backend,
    instance_spec,
    machineimages,
)
from outlast_gcp_emulator.compute.context import Call, Context, Handler, aggregated, listing
from outlast_gcp_emulator.compute.refs import (
    GLOBAL,
    Doc,
    Ref,
    check_fingerprint,
    fingerprint,
    not_there,
    parse,
)
from outlast_gcp_emulator.errors import ApiError, invalid

Change = Callable[[Ref, Doc], Doc]


def insert(context: Context, call: Call) -> Doc:
    ref = Ref(call.project, call.scope, "instances", str(call.body.get("name", "")))
    create(context, ref, _wanted(context, call))
    return context.begin(call, ref, "insert", lambda: instance_backend.launch(context, ref))


def create(context: Context, ref: Ref, body: Doc) -> None:
    """Put a new instance and its new disks on the books; `machines.launch` boots it."""
    with context.names:
        wanted = instance_spec.InstanceSpec(context, ref, body)
        for disk, doc in wanted.disks.items():
            context.store.put(disk, doc)
        made = [disk.link for disk in wanted.disks]
        context.store.put(ref, {**wanted.doc, "_creating": True, "_made": made})
        for attached in wanted.doc["disks"]:
            disks.use(context, parse(attached["source"], near=ref.beside("disks", ""), field="source"), ref, used=True)


def _wanted(context: Context, call: Call) -> Doc:
    """What the request says, over the template or the machine image that it names."""
    if image := call.body.get("sourceMachineImage"):
        return machineimages.instance_like(context, call, image)
    given = call.query.get("sourceInstanceTemplate")
    if not given:
        return call.body
    near = Ref(call.project, GLOBAL, "instanceTemplates", "")
    template = context.find(parse(given, near=near, field="sourceInstanceTemplate"))
    return {**template["properties"], **call.body}


def get(context: Context, call: Call) -> Doc:
    ref = call.ref("instances")
    doc = context.find(ref)
    shown = instance_backend.view(context, ref, doc, _machine(context, doc))
    if shown is None:
        instance_backend.forget(context, ref, doc)
        raise not_there(ref)
    return shown


def _machine(context: Context, doc: Doc) -> Any:
    return disk_backing.machine_of(context, doc["_machine"]) if doc.get("_machine") else None


def _every(context: Context, project: str, scope: str = "") -> list[tuple[Ref, Doc]]:
    known = {machine.name: machine for machine in context.cloud.machines()}
    found = []
    for ref, doc in context.store.each("instances", project, scope):
        shown = instance_backend.view(context, ref, doc, known.get(doc.get("_machine", "")))
        if shown is not None:
            found.append((ref, shown))
    return found


def list_instances(context: Context, call: Call) -> Doc:
    return listing(call, "instance", "instances", [doc for _, doc in _every(context, call.project, call.scope)])


def aggregate(context: Context, call: Call) -> Doc:
    return aggregated(call, "instance", "instances", _every(context, call.project))


def _ready(context: Context, call: Call) -> tuple[Ref, Doc]:
    """An instance that something can be done to."""
    ref = call.ref("instances")
    get(context, call)
    doc = context.find(ref)
    if doc.get("_creating"):
        raise ApiError(400, "resourceNotReady", f"The resource '{ref.path}' is not ready")
    return ref, doc


# A verb of the API, and what is done to the machine.
POWER = {
    "start": instance_backend.start,
    "stop": instance_backend.stop,
    "suspend": instance_backend.suspend,
    "resume": instance_backend.resume,
    "reset": instance_backend.reset,
    "delete": instance_backend.delete,
}


def power(context: Context, verb: str) -> Handler:
    """Whatever has to do with a machine's power."""
    work = POWER[verb]

    def handle(call: Call) -> Doc:
        ref = call.ref("instances")
        doc = _ready(context, call)[1] if verb != "delete" else get(context, call)
        if verb == "delete" and doc.get("deletionProtection"):
            told = f"Invalid resource usage: 'Resource cannot be deleted if it's protected against deletion. Modify the resource to disable the protection.' ({ref.name})."  # noqa: E501
            raise ApiError(400, "invalidUsage", told)
        return context.begin(call, ref, verb, lambda: work(context, ref))

    return handle


def maintain(context: Context, call: Call) -> Doc:
    """A maintenance event: a spot machine is preempted by it, any other lives on elsewhere."""
    ref, doc = _ready(context, call)

    def work() -> None:
        if doc["scheduling"]["preemptible"]:
            context.cloud.preempt(doc["_machine"])

    return context.begin(call, ref, "compute.instances.simulateMaintenanceEvent", work)


def set_machine_type(context: Context, call: Call) -> Doc:
    ref, _ = _ready(context, call)
    given = call.body.get("machineType")
    kind = parse(given, near=ref.beside("machineTypes", ""), field="machineType").name
    if google_types.machine_type(kind) is None:
        raise invalid(f"Invalid value for field 'machineType': '{given}'. The referenced resource does not exist.")
    return context.begin(call, ref, "setMachineType", lambda: instance_backend.resize(context, ref, kind))


def changing(context: Context, verb: str, change: Callable[[Context, Call, Ref, Doc], Doc]) -> Handler:
    """A handler that changes fields of an instance at once, and lets its machine know."""

    def handle(call: Call) -> Doc:
        ref, _ = _ready(context, call)
        with context.store.lock:
            fields = change(context, call, ref, context.find(ref))
            context.change(ref, **fields)
        return context.begin(call, ref, verb, lambda: instance_backend.tell(context, ref))

    return handle


def metadata(context: Context, call: Call, ref: Ref, doc: Doc) -> Doc:
    check_fingerprint(call.body.get("fingerprint"), doc["metadata"]["fingerprint"])
    return {"metadata": builtin_kinds.metadata_of(builtin_kinds.check_items(call.body.get("items", [])))}


def tags(context: Context, call: Call, ref: Ref, doc: Doc) -> Doc:
    check_fingerprint(call.body.get("fingerprint"), doc["tags"]["fingerprint"])
    return {"tags": instance_spec.tags_of(call.body)}


def labels(context: Context, call: Call, ref: Ref, doc: Doc) -> Doc:
    return labels_of(call, doc)


def labels_of(call: Call, doc: Doc) -> Doc:
    """For all resources alike."""
    if call.body.get("labelFingerprint") != doc.get("labelFingerprint", fingerprint({})):
        raise ApiError(412, "conditionNotMet", "Labels fingerprint either invalid or resource labels have changed")
    given = call.body.get("labels", {})
    if not isinstance(given, dict):
        raise invalid("Invalid value for field 'labels': an object is wanted.")
    return {"labels": given or None, "labelFingerprint": fingerprint(given)}


def scheduling(context: Context, call: Call, ref: Ref, doc: Doc) -> Doc:
    rules = instance_spec.rescheduling(doc["scheduling"], call.body)
    if rules["preemptible"] != doc["scheduling"]["preemptible"] and (machine := _machine(context, doc)) is not None:
        if machine.status != "stopped":
            raise invalid("Invalid value for field 'resource.scheduling.preemptible': the instance must be stopped.")
        context.cloud.resize(machine.name, spot=rules["preemptible"])
    return {"scheduling": rules}


def service_account(context: Context, call: Call, ref: Ref, doc: Doc) -> Doc:
    if (machine := _machine(context, doc)) is not None and machine.status != "stopped":
        raise invalid("The instance must be stopped before the service account can be changed.")
    accounts = instance_spec.service_accounts(ref.project, [call.body]) if call.body.get("email") else []
    return {"serviceAccounts": accounts or None}


def protection(context: Context, call: Call, ref: Ref, doc: Doc) -> Doc:
    return {"deletionProtection": call.query.get("deletionProtection", "true").lower() == "true"}


def _field(name: str) -> Callable[[Context, Call, Ref, Doc], Doc]:
    return lambda context, call, ref, doc: {name: call.body}


# What is written down of a machine and changes nothing here: method, and the fields that come of the request.
WRITTEN: dict[str, tuple[str, Callable[[Context, Call, Ref, Doc], Doc]]] = {
    "setMinCpuPlatform": ("POST", lambda context, call, ref, doc: {"minCpuPlatform": call.body.get("minCpuPlatform")}),
    "updateShieldedInstanceConfig": ("PATCH", _field("shieldedInstanceConfig")),
    "setShieldedInstanceIntegrityPolicy": ("PATCH", _field("shieldedInstanceIntegrityPolicy")),
    "updateDisplayDevice": ("PATCH", _field("displayDevice")),
}


def add_access(context: Context, call: Call, ref: Ref, doc: Doc) -> Doc:
    name = call.query.get("networkInterface", "nic0")
    configs = [instance_spec.access_config(call.body)]
    return {
        "networkInterfaces": [_with(one, configs) if one["name"] == name else one for one in doc["networkInterfaces"]]
    }


def delete_access(context: Context, call: Call, ref: Ref, doc: Doc) -> Doc:
    name = call.query.get("networkInterface", "nic0")
    return {"networkInterfaces": [_with(one, []) if one["name"] == name else one for one in doc["networkInterfaces"]]}


def _with(network: Doc, configs: list[Doc]) -> Doc:
    rest = {name: value for name, value in network.items() if name != "accessConfigs"}
    return {**rest, "accessConfigs": configs} if configs else rest


def serial(context: Context, call: Call) -> Doc:
    """What the machine printed, from an offset on."""
    ref, doc = _ready(context, call)
    text = context.cloud.serial(doc["_machine"]).encode() if call.query.get("port", "1") == "1" else b""
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


def guest_attributes(context: Context, call: Call) -> Doc:
    """What the machine has told of itself: the host keys of its ssh server, and what its programs have written."""
    ref, doc = _ready(context, call)
    found: Doc = {"kind": "compute#guestAttributes", "selfLink": f"{ref.link}/getGuestAttributes"}
    key, path = call.query.get("variableKey", ""), call.query.get("queryPath", "")
    items = [item for item in _told_by(context, doc["_machine"]) if _is_at(item, key or path)]
    if not items:
        # Google's own words, which gcloud looks for.
        raise ApiError(404, "notFound", f"The resource '{key or path}' of type 'Guest Attribute' was not found.")
    if key:
        return {**found, "variableKey": key, "variableValue": items[0]["value"]}
    return {**found, "queryPath": path, "queryValue": {"items": items}}


def _told_by(context: Context, machine: str) -> list[dict[str, str]]:
    try:
        keys = dict(key.split()[:2] for key in context.cloud.access(machine).host_keys)
    except (BadRequest, CloudError):
        keys = {}
    pages = {**context.cloud.guest_attributes(machine), **({"hostkeys": keys} if keys else {})}
    return [
        {"namespace": name, "key": key, "value": page[key]}
        for name, page in sorted(pages.items())
        for key in sorted(page)
    ]


def _is_at(item: dict[str, str], path: str) -> bool:
    """All of them, those of a namespace, or one."""
    place = path.strip("/")
    return place in ("", item["namespace"], f"{item['namespace']}/{item['key']}")


def set_common_metadata(context: Context, call: Call) -> Doc:
    """The metadata that all machines of a project share."""
    ref = builtin_kinds.project_ref(call.project)
    with context.store.lock:
        current = (context.store.get(ref) or {}).get("items", [])
        check_fingerprint(call.body.get("fingerprint"), fingerprint(current))
        context.store.put(ref, {"name": call.project, "items": builtin_kinds.check_items(call.body.get("items", []))})
    verb = "compute.projects.setCommonInstanceMetadata"
    return context.begin(
        call, Ref(call.project, GLOBAL, "", ""), verb, lambda: instance_backend.tell_all(context, call.project)
    )
