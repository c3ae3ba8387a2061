"""Managed groups: so many machines of one template, brought back when they vanish or stop, in a zone or a region."""

from __future__ import annotations

import secrets
import string
import threading
import time
from collections import Counter

from outlast.clouds.local import google_types
from outlast.errors import NoCapacity, OutlastError
from outlast_gcp_emulator.compute import instance_backend, instances
from outlast_gcp_emulator.compute.context import Call, Context, aggregated, check_free, listing, new_resource
from outlast_gcp_emulator.compute.operations import OperationFailure, failure_of
from outlast_gcp_emulator.compute.refs import (
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
from outlast_gcp_emulator.errors import ApiError, invalid

COLLECTION = "instanceGroupManagers"
_ALPHABET = string.ascii_lowercase + string.digits
# After a zone had no capacity, the next try.
_AGAIN_S = 2.0
_ACTIONS = ["abandoning", "creating", "creatingWithoutRetries", "deleting", "none", "recreating", "refreshing"]
_ACTIONS += ["restarting", "verifying"]
_ONE_AT_A_TIME = threading.Lock()


def insert(context: Context, call: Call) -> Doc:
    ref = Ref(call.project, call.scope, COLLECTION, str(call.body.get("name", "")))
    body = call.body
    template = _template(context, call.project, body.get("instanceTemplate") or _version(body))
    with context.names:
        doc = new_resource(ref, "instanceGroupManager", body)
        check_free(context, ref)
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
        context.store.put(ref, doc)
    return context.begin(call, ref, "insert", lambda: _try_to_keep(context, ref))


def _spread(ref: Ref, body: Doc) -> list[Doc]:
    """The zones of a group that is all over a region."""
    known = google_types.REGIONS[last(ref.scope)]
    wanted = [last(one.get("zone")) for one in (body.get("distributionPolicy") or {}).get("zones", [])] or known
    if strange := [zone for zone in wanted if zone not in known]:
        raise invalid(f"Invalid value for field 'resource.distributionPolicy.zones': '{strange[0]}'.")
    return [{"zone": scope_link(ref.project, f"zones/{zone}")} for zone in wanted]


def _version(body: Doc) -> object:
    versions = body.get("versions") or [{}]
    return versions[0].get("instanceTemplate")


def _template(context: Context, project: str, given: object) -> Ref:
    ref = parse(given, near=Ref(project, GLOBAL, "instanceTemplates", ""), field="resource.instanceTemplate")
    context.find(ref)
    return ref


def _members(context: Context, group: Ref) -> list[tuple[Ref, Doc]]:
    found = context.store.each("instances", group.project, group.scope if group.scope.startswith("zones/") else "")
    return [(ref, doc) for ref, doc in found if doc.get("_group") == group.link]


def view(context: Context, ref: Ref, doc: Doc) -> Doc:
    actions = dict.fromkeys(_ACTIONS, 0)
    for one in _managed(context, ref):
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


def _managed(context: Context, group: Ref) -> list[Doc]:
    known = {machine.name: machine for machine in context.cloud.machines()}
    found = []
    for ref, doc in _members(context, group):
        shown = instance_backend.view(context, ref, doc, known.get(doc.get("_machine", "")))
        status = shown["status"] if shown is not None else "TERMINATED"
        action = {"RUNNING": "NONE", "PROVISIONING": "CREATING", "STAGING": "CREATING"}.get(status, "RECREATING")
        one = {
            "instance": ref.link,
            "name": ref.name,
            "id": doc["id"],
            "instanceStatus": status,
            "currentAction": action,
            "version": {"instanceTemplate": context.find(group)["instanceTemplate"]},
        }
        found.append(one)
    return found


def get(context: Context, call: Call) -> Doc:
    ref = call.ref(COLLECTION)
    return view(context, ref, context.find(ref))


def list_groups(context: Context, call: Call) -> Doc:
    docs = [view(context, ref, doc) for ref, doc in context.store.each(COLLECTION, call.project, call.scope)]
    return listing(call, "instanceGroupManager", COLLECTION, docs)


def aggregate(context: Context, call: Call) -> Doc:
    docs = [(ref, view(context, ref, doc)) for ref, doc in context.store.each(COLLECTION, call.project)]
    return aggregated(call, "instanceGroupManager", COLLECTION, docs)


def managed(context: Context, call: Call) -> Doc:
    ref = call.ref(COLLECTION)
    context.find(ref)
    return {"managedInstances": _managed(context, ref)}


def errors(context: Context, call: Call) -> Doc:
    return {"items": context.find(call.ref(COLLECTION)).get("_errors", [])}


def resize(context: Context, call: Call) -> Doc:
    ref = call.ref(COLLECTION)
    context.find(ref)
    size = number(call.query.get("size", ""), "size")
    context.change(ref, targetSize=size)
    return context.begin(call, ref, "compute.instanceGroupManagers.resize", lambda: _try_to_keep(context, ref))


def set_template(context: Context, call: Call) -> Doc:
    ref = call.ref(COLLECTION)
    context.find(ref)
    _put_template(context, ref, call.body)
    return context.begin(call, ref, "compute.instanceGroupManagers.setInstanceTemplate", lambda: None)


def _put_template(context: Context, ref: Ref, body: Doc) -> None:
    template = _template(context, ref.project, body.get("instanceTemplate") or _version(body))
    name = (body.get("versions") or [{}])[0].get("name")
    version = {"instanceTemplate": template.link, **({"name": name} if name else {})}
    context.change(ref, instanceTemplate=template.link, versions=[version])


def patch(context: Context, call: Call) -> Doc:
    """Change the rules of a group; what is said to go ahead by itself changes its machines as well."""
    ref, body = call.ref(COLLECTION), call.body
    before = context.find(ref)
    if body.get("instanceTemplate") or body.get("versions"):
        _put_template(context, ref, body)
    doc = context.change(ref, **{name: body[name] for name in _RULES if name in body})
    policy = doc.get("updatePolicy") or {}
    ahead = policy.get("type") == "PROACTIVE" and doc["versions"] != before["versions"]
    replace = doc["instanceTemplate"] != before["instanceTemplate"] or policy.get("minimalAction") == "REPLACE"

    def work() -> None:
        for member, _ in _members(context, ref) if ahead else ():
            (instance_backend.delete if replace else instance_backend.reset)(context, member)
        _try_to_keep(context, ref)

    return context.begin(call, ref, "patch", work)


_RULES = ("targetSize", "autoHealingPolicies", "updatePolicy", "instanceLifecyclePolicy", "description")


def end_members(context: Context, call: Call, verb: str) -> Doc:
    """Delete machines of the group, let them be made anew, or let them go on without the group."""
    ref = call.ref(COLLECTION)
    context.find(ref)
    near = Ref(call.project, call.scope, "instances", "")
    wanted = [parse(one, near=near, field="instances") for one in call.body.get("instances", [])]
    members = {member for member, _ in _members(context, ref)}
    if not wanted or not set(wanted) <= members:
        raise invalid("Invalid value for field 'instances': not all are members of this group.")

    def work() -> None:
        with _ONE_AT_A_TIME:
            if verb != "recreateInstances":
                context.change(ref, targetSize=max(0, context.find(ref)["targetSize"] - len(wanted)))
            for member in wanted if verb == "abandonInstances" else ():
                context.change(member, _group=None)
        for member in wanted if verb != "abandonInstances" else ():
            instance_backend.delete(context, member)
        _try_to_keep(context, ref)

    return context.begin(call, ref, f"compute.instanceGroupManagers.{verb}", work)


def delete(context: Context, call: Call) -> Doc:
    ref = call.ref(COLLECTION)
    context.find(ref)
    context.change(ref, targetSize=0)

    def work() -> None:
        with _ONE_AT_A_TIME:
            for member, _ in _members(context, ref):
                instance_backend.delete(context, member)
            context.store.drop(ref)

    return context.begin(call, ref, "delete", work)


def keep(context: Context, ref: Ref) -> None:
    """Bring the group to its size. Raises what the cloud says when it cannot be."""
    with _ONE_AT_A_TIME:
        if (doc := context.store.get(ref)) is None:
            return
        alive = {
            ref_of(one["instance"])
            for one in _managed(context, ref)
            if one["instanceStatus"] not in ("TERMINATED", "STOPPED")
        }
        dead = [member for member, _ in _members(context, ref) if member not in alive]
        for member in sorted(alive)[doc["targetSize"] :]:
            instance_backend.delete(context, member)
        names = [member.name for member in dead]
        for member in dead:
            instance_backend.delete(context, member)
        for _ in range(doc["targetSize"] - len(alive)):
            suffix = "".join(secrets.choice(_ALPHABET) for _ in range(4))
            # A machine that comes back is the same by its name.
            _create(context, ref, doc, names.pop() if names else f"{doc['baseInstanceName']}-{suffix}")
        context.change(ref, _again_at=None)


def _create(context: Context, group: Ref, doc: Doc, name: str) -> None:
    properties = context.find(ref_of(doc["instanceTemplate"]))["properties"]
    places = _places(context, group, doc)
    for scope in places:
        member = Ref(group.project, scope, "instances", name)
        instances.create(context, member, {**properties, "name": name})
        context.change(member, _group=group.link)
        try:
            instance_backend.launch(context, member)
            return
        except NoCapacity:
            if scope == places[-1]:
                raise


def _places(context: Context, group: Ref, doc: Doc) -> list[str]:
    """The zones that a machine may be in, the one with the fewest first."""
    if group.scope.startswith("zones/"):
        return [group.scope]
    crowd = Counter(member.scope for member, _ in _members(context, group))
    places = [f"zones/{last(one['zone'])}" for one in doc["distributionPolicy"]["zones"]]
    return sorted(places, key=lambda scope: crowd[scope])


def _try_to_keep(context: Context, ref: Ref) -> None:
    """A group that cannot have its machines now exists all the same, and tries again."""
    try:
        keep(context, ref)
    except (OutlastError, ApiError, OperationFailure) as problem:
        failure = problem if isinstance(problem, OperationFailure) else failure_of(problem, ref)
        if context.store.get(ref) is not None:
            error = {"code": failure.code, "message": failure.message}
            entry = {"timestamp": timestamp(), "error": error, "instanceActionDetails": {"action": "CREATING"}}
            context.change(ref, _again_at=time.time() + _AGAIN_S, _errors=[entry])


def look_after(context: Context) -> bool:
    """All groups that are not what they should be; True when there were any."""
    acted = False
    for ref, doc in list(context.store.each(COLLECTION)):
        doc = _within_bounds(context, ref, doc)
        if time.time() >= doc.get("_again_at", 0.0) and not view(context, ref, doc)["status"]["isStable"]:
            _try_to_keep(context, ref)
            acted = True
    return acted


def _within_bounds(context: Context, ref: Ref, doc: Doc) -> Doc:
    """The group as its autoscaler lets it be. How busy the machines are is not looked at."""
    for _, scaler in context.store.each("autoscalers", ref.project, ref.scope):
        policy = scaler.get("autoscalingPolicy") or {}
        if last(scaler.get("target")) == ref.name and policy.get("mode", "ON") != "OFF":
            least = int(policy.get("minNumReplicas") or 0)
            size = max(least, min(doc["targetSize"], int(policy.get("maxNumReplicas") or least)))
            if size != doc["targetSize"]:
                return context.change(ref, targetSize=size)
    return doc


# The group itself, which a manager fills


def _group(context: Context, ref: Ref, doc: Doc) -> Doc:
    group = ref.beside("instanceGroups", ref.name)
    return {
        "kind": "compute#instanceGroup",
        "id": doc["id"],
        "creationTimestamp": doc["creationTimestamp"],
        "name": ref.name,
        "description": f"This instance group is controlled by Instance Group Manager '{ref.name}'.",
        **{place: doc[place] for place in ("zone", "region") if place in doc},
        "size": len(_members(context, ref)),
        "network": Ref(ref.project, GLOBAL, "networks", "default").link,
        "fingerprint": doc["fingerprint"],
        "selfLink": group.link,
    }


def get_group(context: Context, call: Call) -> Doc:
    ref = call.ref(COLLECTION)
    return _group(context, ref, context.find(ref))


def list_instance_groups(context: Context, call: Call) -> Doc:
    docs = [_group(context, ref, doc) for ref, doc in context.store.each(COLLECTION, call.project, call.scope)]
    return listing(call, "instanceGroup", "instanceGroups", docs)


def aggregate_groups(context: Context, call: Call) -> Doc:
    docs = [(ref, _group(context, ref, doc)) for ref, doc in context.store.each(COLLECTION, call.project)]
    return aggregated(call, "instanceGroup", "instanceGroups", docs)


def group_instances(context: Context, call: Call) -> Doc:
    ref = call.ref(COLLECTION)
    context.find(ref)
    items = [{"instance": one["instance"], "status": one["instanceStatus"]} for one in _managed(context, ref)]
    return {
        "kind": "compute#instanceGroupsListInstances",
        "id": f"projects/{call.project}/{call.scope}/instanceGroups/{last(ref.name)}/listInstances",
        "items": items,
        "selfLink": f"{ref.beside('instanceGroups', ref.name).link}/listInstances",
    }
