"""Managed groups: so many machines of one template, brought back when they vanish or stop, in a zone or a region."""

from __future__ import annotations

import secrets
import string
import threading
import time
from collections import Counter

from outlast.clouds.local import google
from outlast.clouds.local.serve.compute import instances, machines
from outlast.clouds.local.serve.compute.desk import Call, Desk, aggregated, check_free, listing, new_resource
from outlast.clouds.local.serve.compute.links import (
    GLOBAL,
    Doc,
    Ref,
    check_name,
    fingerprint,
    last,
    number,
    parse,
    ref_of,
    scope_link,
    timestamp,
)
from outlast.clouds.local.serve.compute.operations import Failure, failure_of
from outlast.clouds.local.serve.refusal import Refused, invalid
from outlast.errors import NoCapacity, OutlastError

COLLECTION = "instanceGroupManagers"
_ALPHABET = string.ascii_lowercase + string.digits
# After a zone had no capacity, the next try.
_AGAIN_S = 2.0
_ACTIONS = ["abandoning", "creating", "creatingWithoutRetries", "deleting", "none", "recreating", "refreshing"]
_ACTIONS += ["restarting", "verifying"]
_ONE_AT_A_TIME = threading.Lock()


def insert(desk: Desk, call: Call) -> Doc:
    ref = Ref(call.project, call.scope, COLLECTION, str(call.body.get("name", "")))
    body = call.body
    template = _template(desk, call.project, body.get("instanceTemplate") or _version(body))
    with desk.names:
        doc = new_resource(ref, "instanceGroupManager", body)
        check_free(desk, ref)
        base = check_name(body.get("baseInstanceName") or ref.name[:58], "resource.baseInstanceName")
        doc |= {
            "baseInstanceName": base,
            "instanceTemplate": template.link,
            "versions": [{"instanceTemplate": template.link}],
            "targetSize": number(body.get("targetSize", 0), "resource.targetSize"),
            "instanceGroup": ref.beside("instanceGroups", ref.name).link,
            "fingerprint": fingerprint(ref.path),
        }
        if ref.scope.startswith("regions/"):
            doc["distributionPolicy"] = {"targetShape": "EVEN", "zones": _spread(ref, body)}
        desk.store.put(ref, doc)
    return desk.begin(call, ref, "insert", lambda: _try_to_keep(desk, ref))


def _spread(ref: Ref, body: Doc) -> list[Doc]:
    """The zones of a group that is all over a region."""
    known = google.REGIONS[last(ref.scope)]
    wanted = [last(one.get("zone")) for one in (body.get("distributionPolicy") or {}).get("zones", [])] or known
    if strange := [zone for zone in wanted if zone not in known]:
        raise invalid(f"Invalid value for field 'resource.distributionPolicy.zones': '{strange[0]}'.")
    return [{"zone": scope_link(ref.project, f"zones/{zone}")} for zone in wanted]


def _version(body: Doc) -> object:
    versions = body.get("versions") or [{}]
    return versions[0].get("instanceTemplate")


def _template(desk: Desk, project: str, given: object) -> Ref:
    ref = parse(given, near=Ref(project, GLOBAL, "instanceTemplates", ""), field="resource.instanceTemplate")
    desk.find(ref)
    return ref


def _members(desk: Desk, group: Ref) -> list[tuple[Ref, Doc]]:
    found = desk.store.each("instances", group.project, group.scope if group.scope.startswith("zones/") else "")
    return [(ref, doc) for ref, doc in found if doc.get("_group") == group.link]


def view(desk: Desk, ref: Ref, doc: Doc) -> Doc:
    actions = dict.fromkeys(_ACTIONS, 0)
    for one in _managed(desk, ref):
        actions[one["currentAction"].lower()] += 1
    actions["creating"] += max(0, doc["targetSize"] - sum(actions.values()))
    stable = actions["none"] == doc["targetSize"] == sum(actions.values())
    return {
        **doc,
        "currentActions": actions,
        "status": {
            "isStable": stable,
            "versionTarget": {"isReached": stable},
            "stateful": {"hasStatefulConfig": False},
        },
    }


def _managed(desk: Desk, group: Ref) -> list[Doc]:
    known = {machine.name: machine for machine in desk.cloud.machines()}
    found = []
    for ref, doc in _members(desk, group):
        shown = machines.view(desk, ref, doc, known.get(doc.get("_machine", "")))
        status = shown["status"] if shown is not None else "TERMINATED"
        action = {"RUNNING": "NONE", "PROVISIONING": "CREATING", "STAGING": "CREATING"}.get(status, "RECREATING")
        one = {
            "instance": ref.link,
            "name": ref.name,
            "id": doc["id"],
            "instanceStatus": status,
            "currentAction": action,
            "version": {"instanceTemplate": desk.find(group)["instanceTemplate"]},
        }
        found.append(one)
    return found


def get(desk: Desk, call: Call) -> Doc:
    ref = call.ref(COLLECTION)
    return view(desk, ref, desk.find(ref))


def list_groups(desk: Desk, call: Call) -> Doc:
    docs = [view(desk, ref, doc) for ref, doc in desk.store.each(COLLECTION, call.project, call.scope)]
    return listing(call, "instanceGroupManager", COLLECTION, docs)


def aggregate(desk: Desk, call: Call) -> Doc:
    docs = [(ref, view(desk, ref, doc)) for ref, doc in desk.store.each(COLLECTION, call.project)]
    return aggregated(call, "instanceGroupManager", COLLECTION, docs)


def managed(desk: Desk, call: Call) -> Doc:
    ref = call.ref(COLLECTION)
    desk.find(ref)
    return {"managedInstances": _managed(desk, ref)}


def errors(desk: Desk, call: Call) -> Doc:
    return {"items": desk.find(call.ref(COLLECTION)).get("_errors", [])}


def resize(desk: Desk, call: Call) -> Doc:
    ref = call.ref(COLLECTION)
    desk.find(ref)
    size = number(call.query.get("size", ""), "size")
    desk.change(ref, targetSize=size)
    return desk.begin(call, ref, "compute.instanceGroupManagers.resize", lambda: _try_to_keep(desk, ref))


def set_template(desk: Desk, call: Call) -> Doc:
    ref = call.ref(COLLECTION)
    desk.find(ref)
    _put_template(desk, ref, call.body)
    return desk.begin(call, ref, "compute.instanceGroupManagers.setInstanceTemplate", lambda: None)


def _put_template(desk: Desk, ref: Ref, body: Doc) -> None:
    template = _template(desk, ref.project, body.get("instanceTemplate") or _version(body))
    name = (body.get("versions") or [{}])[0].get("name")
    version = {"instanceTemplate": template.link, **({"name": name} if name else {})}
    desk.change(ref, instanceTemplate=template.link, versions=[version])


def patch(desk: Desk, call: Call) -> Doc:
    """Change the rules of a group; what is said to go ahead by itself changes its machines as well."""
    ref, body = call.ref(COLLECTION), call.body
    before = desk.find(ref)
    if body.get("instanceTemplate") or body.get("versions"):
        _put_template(desk, ref, body)
    doc = desk.change(ref, **{name: body[name] for name in _RULES if name in body})
    policy = doc.get("updatePolicy") or {}
    ahead = policy.get("type") == "PROACTIVE" and doc["versions"] != before["versions"]
    replace = doc["instanceTemplate"] != before["instanceTemplate"] or policy.get("minimalAction") == "REPLACE"

    def work() -> None:
        for member, _ in _members(desk, ref) if ahead else ():
            (machines.delete if replace else machines.reset)(desk, member)
        _try_to_keep(desk, ref)

    return desk.begin(call, ref, "patch", work)


_RULES = ("targetSize", "autoHealingPolicies", "updatePolicy", "instanceLifecyclePolicy", "description")


def end_members(desk: Desk, call: Call, verb: str) -> Doc:
    """Delete machines of the group, let them be made anew, or let them go on without the group."""
    ref = call.ref(COLLECTION)
    desk.find(ref)
    near = Ref(call.project, call.scope, "instances", "")
    wanted = [parse(one, near=near, field="instances") for one in call.body.get("instances", [])]
    members = {member for member, _ in _members(desk, ref)}
    if not wanted or not set(wanted) <= members:
        raise invalid("Invalid value for field 'instances': not all are members of this group.")

    def work() -> None:
        with _ONE_AT_A_TIME:
            if verb != "recreateInstances":
                desk.change(ref, targetSize=max(0, desk.find(ref)["targetSize"] - len(wanted)))
            for member in wanted if verb == "abandonInstances" else ():
                desk.change(member, _group=None)
        for member in wanted if verb != "abandonInstances" else ():
            machines.delete(desk, member)
        _try_to_keep(desk, ref)

    return desk.begin(call, ref, f"compute.instanceGroupManagers.{verb}", work)


def delete(desk: Desk, call: Call) -> Doc:
    ref = call.ref(COLLECTION)
    desk.find(ref)
    desk.change(ref, targetSize=0)

    def work() -> None:
        with _ONE_AT_A_TIME:
            for member, _ in _members(desk, ref):
                machines.delete(desk, member)
            desk.store.drop(ref)

    return desk.begin(call, ref, "delete", work)


def keep(desk: Desk, ref: Ref) -> None:
    """Bring the group to its size. Raises what the cloud says when it cannot be."""
    with _ONE_AT_A_TIME:
        if (doc := desk.store.get(ref)) is None:
            return
        alive = {
            ref_of(one["instance"])
            for one in _managed(desk, ref)
            if one["instanceStatus"] not in ("TERMINATED", "STOPPED")
        }
        dead = [member for member, _ in _members(desk, ref) if member not in alive]
        for member in sorted(alive)[doc["targetSize"] :]:
            machines.delete(desk, member)
        names = [member.name for member in dead]
        for member in dead:
            machines.delete(desk, member)
        for _ in range(doc["targetSize"] - len(alive)):
            suffix = "".join(secrets.choice(_ALPHABET) for _ in range(4))
            # A machine that comes back is the same by its name.
            _create(desk, ref, doc, names.pop() if names else f"{doc['baseInstanceName']}-{suffix}")
        desk.change(ref, _again_at=None)


def _create(desk: Desk, group: Ref, doc: Doc, name: str) -> None:
    properties = desk.find(ref_of(doc["instanceTemplate"]))["properties"]
    places = _places(desk, group, doc)
    for scope in places:
        member = Ref(group.project, scope, "instances", name)
        instances.create(desk, member, {**properties, "name": name})
        desk.change(member, _group=group.link)
        try:
            machines.launch(desk, member)
            return
        except NoCapacity:
            if scope == places[-1]:
                raise


def _places(desk: Desk, group: Ref, doc: Doc) -> list[str]:
    """The zones that a machine may be in, the one with the fewest first."""
    if group.scope.startswith("zones/"):
        return [group.scope]
    crowd = Counter(member.scope for member, _ in _members(desk, group))
    places = [f"zones/{last(one['zone'])}" for one in doc["distributionPolicy"]["zones"]]
    return sorted(places, key=lambda scope: crowd[scope])


def _try_to_keep(desk: Desk, ref: Ref) -> None:
    """A group that cannot have its machines now exists all the same, and tries again."""
    try:
        keep(desk, ref)
    except (OutlastError, Refused, Failure) as problem:
        failure = problem if isinstance(problem, Failure) else failure_of(problem, ref)
        if desk.store.get(ref) is not None:
            error = {"code": failure.code, "message": failure.message}
            entry = {"timestamp": timestamp(), "error": error, "instanceActionDetails": {"action": "CREATING"}}
            desk.change(ref, _again_at=time.time() + _AGAIN_S, _errors=[entry])


def look_after(desk: Desk) -> bool:
    """All groups that are not what they should be; True when there were any."""
    acted = False
    for ref, doc in list(desk.store.each(COLLECTION)):
        doc = _within_bounds(desk, ref, doc)
        if time.time() >= doc.get("_again_at", 0.0) and not view(desk, ref, doc)["status"]["isStable"]:
            _try_to_keep(desk, ref)
            acted = True
    return acted


def _within_bounds(desk: Desk, ref: Ref, doc: Doc) -> Doc:
    """The group as its autoscaler lets it be. How busy the machines are is not looked at."""
    for _, scaler in desk.store.each("autoscalers", ref.project, ref.scope):
        policy = scaler.get("autoscalingPolicy") or {}
        if last(scaler.get("target")) == ref.name and policy.get("mode", "ON") != "OFF":
            least = int(policy.get("minNumReplicas") or 0)
            size = max(least, min(doc["targetSize"], int(policy.get("maxNumReplicas") or least)))
            if size != doc["targetSize"]:
                return desk.change(ref, targetSize=size)
    return doc


# The group itself, which a manager fills


def _group(desk: Desk, ref: Ref, doc: Doc) -> Doc:
    group = ref.beside("instanceGroups", ref.name)
    return {
        "kind": "compute#instanceGroup",
        "id": doc["id"],
        "creationTimestamp": doc["creationTimestamp"],
        "name": ref.name,
        "description": f"This instance group is controlled by Instance Group Manager '{ref.name}'.",
        **{place: doc[place] for place in ("zone", "region") if place in doc},
        "size": len(_members(desk, ref)),
        "network": Ref(ref.project, GLOBAL, "networks", "default").link,
        "fingerprint": doc["fingerprint"],
        "selfLink": group.link,
    }


def get_group(desk: Desk, call: Call) -> Doc:
    ref = call.ref(COLLECTION)
    return _group(desk, ref, desk.find(ref))


def list_instance_groups(desk: Desk, call: Call) -> Doc:
    docs = [_group(desk, ref, doc) for ref, doc in desk.store.each(COLLECTION, call.project, call.scope)]
    return listing(call, "instanceGroup", "instanceGroups", docs)


def aggregate_groups(desk: Desk, call: Call) -> Doc:
    docs = [(ref, _group(desk, ref, doc)) for ref, doc in desk.store.each(COLLECTION, call.project)]
    return aggregated(call, "instanceGroup", "instanceGroups", docs)


def group_instances(desk: Desk, call: Call) -> Doc:
    ref = call.ref(COLLECTION)
    desk.find(ref)
    items = [{"instance": one["instance"], "status": one["instanceStatus"]} for one in _managed(desk, ref)]
    return {
        "kind": "compute#instanceGroupsListInstances",
        "id": f"projects/{call.project}/{call.scope}/instanceGroups/{last(ref.name)}/listInstances",
        "items": items,
        "selfLink": f"{ref.beside('instanceGroups', ref.name).link}/listInstances",
    }
