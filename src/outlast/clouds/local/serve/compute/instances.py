"""Instances: what the API lets a client ask of a machine. What is done to it is in `machines`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outlast.clouds.local import google
from outlast.clouds.local.serve.compute import backing, disks, fixed, machineimages, machines, wish
from outlast.clouds.local.serve.compute.desk import Call, Desk, Handler, aggregated, listing
from outlast.clouds.local.serve.compute.links import (
    GLOBAL,
    Doc,
    Ref,
    check_fingerprint,
    fingerprint,
    not_there,
    parse,
)
from outlast.clouds.local.serve.refusal import Refused, invalid
from outlast.errors import BadRequest, CloudError

Change = Callable[[Ref, Doc], Doc]


def insert(desk: Desk, call: Call) -> Doc:
    ref = Ref(call.project, call.scope, "instances", str(call.body.get("name", "")))
    create(desk, ref, _wanted(desk, call))
    return desk.begin(call, ref, "insert", lambda: machines.launch(desk, ref))


def create(desk: Desk, ref: Ref, body: Doc) -> None:
    """Put a new instance and its new disks on the books; `machines.launch` boots it."""
    with desk.names:
        wanted = wish.Wish(desk, ref, body)
        for disk, doc in wanted.disks.items():
            desk.store.put(disk, doc)
        made = [disk.link for disk in wanted.disks]
        desk.store.put(ref, {**wanted.doc, "_creating": True, "_made": made})
        for attached in wanted.doc["disks"]:
            disks.use(desk, parse(attached["source"], near=ref.beside("disks", ""), field="source"), ref, used=True)


def _wanted(desk: Desk, call: Call) -> Doc:
    """What the request says, over the template or the machine image that it names."""
    if image := call.body.get("sourceMachineImage"):
        return machineimages.instance_like(desk, call, image)
    given = call.query.get("sourceInstanceTemplate")
    if not given:
        return call.body
    near = Ref(call.project, GLOBAL, "instanceTemplates", "")
    template = desk.find(parse(given, near=near, field="sourceInstanceTemplate"))
    return {**template["properties"], **call.body}


def get(desk: Desk, call: Call) -> Doc:
    ref = call.ref("instances")
    doc = desk.find(ref)
    shown = machines.view(desk, ref, doc, _machine(desk, doc))
    if shown is None:
        machines.forget(desk, ref, doc)
        raise not_there(ref)
    return shown


def _machine(desk: Desk, doc: Doc) -> Any:
    return backing.machine_of(desk, doc["_machine"]) if doc.get("_machine") else None


def _every(desk: Desk, project: str, scope: str = "") -> list[tuple[Ref, Doc]]:
    known = {machine.name: machine for machine in desk.cloud.machines()}
    found = []
    for ref, doc in desk.store.each("instances", project, scope):
        shown = machines.view(desk, ref, doc, known.get(doc.get("_machine", "")))
        if shown is not None:
            found.append((ref, shown))
    return found


def list_instances(desk: Desk, call: Call) -> Doc:
    return listing(call, "instance", "instances", [doc for _, doc in _every(desk, call.project, call.scope)])


def aggregate(desk: Desk, call: Call) -> Doc:
    return aggregated(call, "instance", "instances", _every(desk, call.project))


def _ready(desk: Desk, call: Call) -> tuple[Ref, Doc]:
    """An instance that something can be done to."""
    ref = call.ref("instances")
    get(desk, call)
    doc = desk.find(ref)
    if doc.get("_creating"):
        raise Refused(400, "resourceNotReady", f"The resource '{ref.path}' is not ready")
    return ref, doc


# A verb of the API, and what is done to the machine.
POWER = {
    "start": machines.start,
    "stop": machines.stop,
    "suspend": machines.suspend,
    "resume": machines.resume,
    "reset": machines.reset,
    "delete": machines.delete,
}


def power(desk: Desk, verb: str) -> Handler:
    """Whatever has to do with a machine's power."""
    work = POWER[verb]

    def handle(call: Call) -> Doc:
        ref = call.ref("instances")
        doc = _ready(desk, call)[1] if verb != "delete" else get(desk, call)
        if verb == "delete" and doc.get("deletionProtection"):
            told = f"Invalid resource usage: 'Resource cannot be deleted if it's protected against deletion. Modify the resource to disable the protection.' ({ref.name})."  # noqa: E501
            raise Refused(400, "invalidUsage", told)
        return desk.begin(call, ref, verb, lambda: work(desk, ref))

    return handle


def maintain(desk: Desk, call: Call) -> Doc:
    """A maintenance event: a spot machine is preempted by it, any other lives on elsewhere."""
    ref, doc = _ready(desk, call)

    def work() -> None:
        if doc["scheduling"]["preemptible"]:
            desk.cloud.preempt(doc["_machine"])

    return desk.begin(call, ref, "compute.instances.simulateMaintenanceEvent", work)


def set_machine_type(desk: Desk, call: Call) -> Doc:
    ref, _ = _ready(desk, call)
    given = call.body.get("machineType")
    kind = parse(given, near=ref.beside("machineTypes", ""), field="machineType").name
    if google.machine_type(kind) is None:
        raise invalid(f"Invalid value for field 'machineType': '{given}'. The referenced resource does not exist.")
    return desk.begin(call, ref, "setMachineType", lambda: machines.resize(desk, ref, kind))


def changing(desk: Desk, verb: str, change: Callable[[Desk, Call, Ref, Doc], Doc]) -> Handler:
    """A handler that changes fields of an instance at once, and lets its machine know."""

    def handle(call: Call) -> Doc:
        ref, _ = _ready(desk, call)
        with desk.store.lock:
            fields = change(desk, call, ref, desk.find(ref))
            desk.change(ref, **fields)
        return desk.begin(call, ref, verb, lambda: machines.tell(desk, ref))

    return handle


def metadata(desk: Desk, call: Call, ref: Ref, doc: Doc) -> Doc:
    check_fingerprint(call.body.get("fingerprint"), doc["metadata"]["fingerprint"])
    return {"metadata": fixed.metadata_of(fixed.check_items(call.body.get("items", [])))}


def tags(desk: Desk, call: Call, ref: Ref, doc: Doc) -> Doc:
    check_fingerprint(call.body.get("fingerprint"), doc["tags"]["fingerprint"])
    return {"tags": wish.tags_of(call.body)}


def labels(desk: Desk, call: Call, ref: Ref, doc: Doc) -> Doc:
    return labels_of(call, doc)


def labels_of(call: Call, doc: Doc) -> Doc:
    """For all resources alike."""
    if call.body.get("labelFingerprint") != doc.get("labelFingerprint", fingerprint({})):
        raise Refused(412, "conditionNotMet", "Labels fingerprint either invalid or resource labels have changed")
    given = call.body.get("labels", {})
    if not isinstance(given, dict):
        raise invalid("Invalid value for field 'labels': an object is wanted.")
    return {"labels": given or None, "labelFingerprint": fingerprint(given)}


def scheduling(desk: Desk, call: Call, ref: Ref, doc: Doc) -> Doc:
    rules = wish.rescheduling(doc["scheduling"], call.body)
    if rules["preemptible"] != doc["scheduling"]["preemptible"] and (machine := _machine(desk, doc)) is not None:
        if machine.status != "stopped":
            raise invalid("Invalid value for field 'resource.scheduling.preemptible': the instance must be stopped.")
        desk.cloud.resize(machine.name, spot=rules["preemptible"])
    return {"scheduling": rules}


def service_account(desk: Desk, call: Call, ref: Ref, doc: Doc) -> Doc:
    if (machine := _machine(desk, doc)) is not None and machine.status != "stopped":
        raise invalid("The instance must be stopped before the service account can be changed.")
    accounts = wish.service_accounts(ref.project, [call.body]) if call.body.get("email") else []
    return {"serviceAccounts": accounts or None}


def protection(desk: Desk, call: Call, ref: Ref, doc: Doc) -> Doc:
    return {"deletionProtection": call.query.get("deletionProtection", "true").lower() == "true"}


def _field(name: str) -> Callable[[Desk, Call, Ref, Doc], Doc]:
    return lambda desk, call, ref, doc: {name: call.body}


# What is written down of a machine and changes nothing here: method, and the fields that come of the request.
WRITTEN: dict[str, tuple[str, Callable[[Desk, Call, Ref, Doc], Doc]]] = {
    "setMinCpuPlatform": ("POST", lambda desk, call, ref, doc: {"minCpuPlatform": call.body.get("minCpuPlatform")}),
    "updateShieldedInstanceConfig": ("PATCH", _field("shieldedInstanceConfig")),
    "setShieldedInstanceIntegrityPolicy": ("PATCH", _field("shieldedInstanceIntegrityPolicy")),
    "updateDisplayDevice": ("PATCH", _field("displayDevice")),
}


def add_access(desk: Desk, call: Call, ref: Ref, doc: Doc) -> Doc:
    name = call.query.get("networkInterface", "nic0")
    configs = [wish.access_config(call.body)]
    return {
        "networkInterfaces": [_with(one, configs) if one["name"] == name else one for one in doc["networkInterfaces"]]
    }


def delete_access(desk: Desk, call: Call, ref: Ref, doc: Doc) -> Doc:
    name = call.query.get("networkInterface", "nic0")
    return {"networkInterfaces": [_with(one, []) if one["name"] == name else one for one in doc["networkInterfaces"]]}


def _with(network: Doc, configs: list[Doc]) -> Doc:
    rest = {name: value for name, value in network.items() if name != "accessConfigs"}
    return {**rest, "accessConfigs": configs} if configs else rest


def serial(desk: Desk, call: Call) -> Doc:
    """What the machine printed, from an offset on."""
    ref, doc = _ready(desk, call)
    text = desk.cloud.serial(doc["_machine"]).encode() if call.query.get("port", "1") == "1" else b""
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


def guest_attributes(desk: Desk, call: Call) -> Doc:
    """What the machine has told of itself: the host keys of its ssh server, and what its programs have written."""
    ref, doc = _ready(desk, call)
    found: Doc = {"kind": "compute#guestAttributes", "selfLink": f"{ref.link}/getGuestAttributes"}
    key, path = call.query.get("variableKey", ""), call.query.get("queryPath", "")
    items = [item for item in _told_by(desk, doc["_machine"]) if _is_at(item, key or path)]
    if not items:
        # Google's own words, which gcloud looks for.
        raise Refused(404, "notFound", f"The resource '{key or path}' of type 'Guest Attribute' was not found.")
    if key:
        return {**found, "variableKey": key, "variableValue": items[0]["value"]}
    return {**found, "queryPath": path, "queryValue": {"items": items}}


def _told_by(desk: Desk, machine: str) -> list[dict[str, str]]:
    try:
        keys = dict(key.split()[:2] for key in desk.cloud.access(machine).host_keys)
    except (BadRequest, CloudError):
        keys = {}
    pages = {**desk.cloud.guest_attributes(machine), **({"hostkeys": keys} if keys else {})}
    return [
        {"namespace": name, "key": key, "value": page[key]}
        for name, page in sorted(pages.items())
        for key in sorted(page)
    ]


def _is_at(item: dict[str, str], path: str) -> bool:
    """All of them, those of a namespace, or one."""
    place = path.strip("/")
    return place in ("", item["namespace"], f"{item['namespace']}/{item['key']}")


def set_common_metadata(desk: Desk, call: Call) -> Doc:
    """The metadata that all machines of a project share."""
    ref = fixed.project_ref(call.project)
    with desk.store.lock:
        current = (desk.store.get(ref) or {}).get("items", [])
        check_fingerprint(call.body.get("fingerprint"), fingerprint(current))
        desk.store.put(ref, {"name": call.project, "items": fixed.check_items(call.body.get("items", []))})
    verb = "compute.projects.setCommonInstanceMetadata"
    return desk.begin(call, Ref(call.project, GLOBAL, "", ""), verb, lambda: machines.tell_all(desk, call.project))
