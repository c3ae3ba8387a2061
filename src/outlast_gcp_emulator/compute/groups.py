"""Managed instance groups: machines of one template, recreated when they stop or vanish, in a zone or a region."""

from __future__ import annotations

import functools
import secrets
import string
import threading
import time
from collections import Counter
from collections.abc import Iterator

from outlast.clouds.local import google_types
from outlast.errors import NoCapacity, OutlastError
from outlast_gcp_emulator.compute.context import Call, Context
from outlast_gcp_emulator.compute.instance_backend import InstanceBackend
from outlast_gcp_emulator.compute.instances import Instances
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
from outlast_gcp_emulator.compute.resource import REGIONAL, ZONAL, Resource, RouteEntry
from outlast_gcp_emulator.errors import ApiError, invalid

_ALPHABET = string.ascii_lowercase + string.digits
# The pause after a failed attempt to fill a group.
_RETRY_S = 2.0
_ACTIONS = ["abandoning", "creating", "creatingWithoutRetries", "deleting", "none", "recreating", "refreshing"]
_ACTIONS += ["restarting", "verifying"]
# Fields that a patch stores.
_PATCHED = ("targetSize", "autoHealingPolicies", "updatePolicy", "instanceLifecyclePolicy", "description")


class GroupManagers(Resource):
    """Managers of instance groups. A group has as many machines as the `targetSize` of its manager."""

    kind = "instanceGroupManager"

    def __init__(self, context: Context, instances: Instances, backend: InstanceBackend) -> None:
        super().__init__(context)
        self._instances = instances
        self._backend = backend
        # Held while the machines of a group are created or deleted.
        self._lock = threading.Lock()

    def routes(self) -> Iterator[RouteEntry]:
        yield self.aggregated_route()
        yield from self.read_routes(ZONAL, REGIONAL)
        for place in (ZONAL, REGIONAL):
            group = f"{place}/instanceGroupManagers/{{name}}"
            yield "POST", f"{place}/instanceGroupManagers", self.insert
            yield "PATCH", group, self.patch
            yield "DELETE", group, self.delete
            yield "POST", f"{group}/resize", self.resize
            yield "POST", f"{group}/setInstanceTemplate", self.set_template
            yield "POST", f"{group}/listManagedInstances", self.list_managed
            yield "GET", f"{group}/listErrors", self.list_errors
            for verb in ("abandonInstances", "deleteInstances", "recreateInstances"):
                yield "POST", f"{group}/{verb}", functools.partial(self.end_members, verb=verb)

    # Reading

    def view(self, ref: Ref, doc: Doc) -> Doc:
        actions = dict.fromkeys(_ACTIONS, 0)
        for member in self.managed(ref):
            actions[member["currentAction"].lower()] += 1
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

    def _member_docs(self, group: Ref) -> list[tuple[Ref, Doc]]:
        scope = group.scope if group.scope.startswith("zones/") else ""
        found = self.store.each("instances", group.project, scope)
        return [(ref, doc) for ref, doc in found if doc.get("_group") == group.link]

    def members(self, group: Ref) -> list[Ref]:
        return [ref for ref, _ in self._member_docs(group)]

    def managed(self, group: Ref) -> list[Doc]:
        """Return the members of a group with their status."""
        known = {machine.name: machine for machine in self.context.cloud.machines()}
        found = []
        for ref, doc in self._member_docs(group):
            shown = self._backend.view(ref, doc, known.get(doc.get("_machine", "")))
            status = shown["status"] if shown is not None else "TERMINATED"
            action = {"RUNNING": "NONE", "PROVISIONING": "CREATING", "STAGING": "CREATING"}.get(status, "RECREATING")
            member = {
                "instance": ref.link,
                "name": ref.name,
                "id": doc["id"],
                "instanceStatus": status,
                "currentAction": action,
                "version": {"instanceTemplate": self.context.find(group)["instanceTemplate"]},
            }
            found.append(member)
        return found

    def list_managed(self, call: Call) -> Doc:
        return {"managedInstances": self.managed(self.find(call)[0])}

    def list_errors(self, call: Call) -> Doc:
        return {"items": self.find(call)[1].get("_errors", [])}

    # Handlers that change a group

    def insert(self, call: Call) -> Doc:
        ref, body = self.new_ref(call), call.body
        template = self._template(call.project, body)
        with self.context.names:
            doc = self.new(ref, body)
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
                doc["distributionPolicy"] = {"targetShape": "EVEN", "zones": _zones(ref, body)}
            self.store.put(ref, doc)
        return self.context.begin(call, ref, "insert", lambda: self._try_fill(ref))

    def resize(self, call: Call) -> Doc:
        ref, _ = self.find(call)
        self.context.change(ref, targetSize=number(call.query.get("size", ""), "size"))
        return self.context.begin(call, ref, "compute.instanceGroupManagers.resize", lambda: self._try_fill(ref))

    def set_template(self, call: Call) -> Doc:
        ref, _ = self.find(call)
        self._put_template(ref, call.body)
        return self.context.begin(call, ref, "compute.instanceGroupManagers.setInstanceTemplate")

    def _template(self, project: str, body: Doc) -> Ref:
        given = body.get("instanceTemplate") or (body.get("versions") or [{}])[0].get("instanceTemplate")
        ref = self.global_ref(project, given, "instanceTemplates", "resource.instanceTemplate")
        self.context.find(ref)
        return ref

    def _put_template(self, ref: Ref, body: Doc) -> None:
        template = self._template(ref.project, body)
        name = (body.get("versions") or [{}])[0].get("name")
        version = {"instanceTemplate": template.link, **({"name": name} if name else {})}
        self.context.change(ref, instanceTemplate=template.link, versions=[version])

    def patch(self, call: Call) -> Doc:
        """Change a manager. A PROACTIVE update policy also replaces or restarts the machines."""
        body = call.body
        ref, before = self.find(call)
        if body.get("instanceTemplate") or body.get("versions"):
            self._put_template(ref, body)
        doc = self.context.change(ref, **{name: body[name] for name in _PATCHED if name in body})
        policy = doc.get("updatePolicy") or {}
        proactive = policy.get("type") == "PROACTIVE" and doc["versions"] != before["versions"]
        replace = doc["instanceTemplate"] != before["instanceTemplate"] or policy.get("minimalAction") == "REPLACE"
        update = self._backend.delete if replace else self._backend.reset

        def work() -> None:
            for member in self.members(ref) if proactive else ():
                update(member)
            self._try_fill(ref)

        return self.context.begin(call, ref, "patch", work)

    def end_members(self, call: Call, *, verb: str) -> Doc:
        """Delete or recreate members, or abandon them, which keeps their machines outside of the group."""
        ref, _ = self.find(call)
        near = ref.beside("instances", "")
        chosen = [parse(link, near=near, field="instances") for link in call.body.get("instances", [])]
        if not chosen or not set(chosen) <= set(self.members(ref)):
            raise invalid("Invalid value for field 'instances': not all are members of this group.")

        def work() -> None:
            with self._lock:
                if verb != "recreateInstances":
                    size = self.context.find(ref)["targetSize"] - len(chosen)
                    self.context.change(ref, targetSize=max(0, size))
                for member in chosen if verb == "abandonInstances" else ():
                    self.context.change(member, _group=None)
            for member in chosen if verb != "abandonInstances" else ():
                self._backend.delete(member)
            self._try_fill(ref)

        return self.context.begin(call, ref, f"compute.instanceGroupManagers.{verb}", work)

    def delete(self, call: Call) -> Doc:
        ref, _ = self.find(call)
        self.context.change(ref, targetSize=0)
        return super().delete(call)

    def discard(self, ref: Ref) -> None:
        with self._lock:
            for member in self.members(ref):
                self._backend.delete(member)
            self.store.drop(ref)

    # Reconciliation

    def reconcile(self) -> bool:
        """Fill or shrink all groups that differ from their size. Returns whether there were any."""
        acted = False
        for ref, doc in list(self.store.each(self.collection)):
            doc = self._apply_autoscaler(ref, doc)
            if time.time() >= doc.get("_again_at", 0.0) and not self.view(ref, doc)["status"]["isStable"]:
                self._try_fill(ref)
                acted = True
        return acted

    def _apply_autoscaler(self, ref: Ref, doc: Doc) -> Doc:
        """Clamp the size of a group to the bounds of its autoscaler. Machine load has no influence."""
        for _, scaler in self.store.each("autoscalers", ref.project, ref.scope):
            policy = scaler.get("autoscalingPolicy") or {}
            if last(scaler.get("target")) == ref.name and policy.get("mode", "ON") != "OFF":
                least = int(policy.get("minNumReplicas") or 0)
                size = max(least, min(doc["targetSize"], int(policy.get("maxNumReplicas") or least)))
                if size != doc["targetSize"]:
                    return self.context.change(ref, targetSize=size)
        return doc

    def _try_fill(self, ref: Ref) -> None:
        """Fill a group; on failure record the error for `listErrors`, and retry later."""
        try:
            self._fill(ref)
        except (OutlastError, ApiError, OperationFailure) as problem:
            failure = problem if isinstance(problem, OperationFailure) else failure_of(problem, ref)
            if self.store.get(ref) is not None:
                error = {"code": failure.code, "message": failure.message}
                entry = {"timestamp": timestamp(), "error": error, "instanceActionDetails": {"action": "CREATING"}}
                self.context.change(ref, _again_at=time.time() + _RETRY_S, _errors=[entry])

    def _fill(self, ref: Ref) -> None:
        """Delete dead and surplus members, and create missing ones. Raises the error of the cloud."""
        with self._lock:
            if (doc := self.store.get(ref)) is None:
                return
            alive = {
                ref_of(member["instance"])
                for member in self.managed(ref)
                if member["instanceStatus"] not in ("TERMINATED", "STOPPED")
            }
            dead = [member for member in self.members(ref) if member not in alive]
            for member in [*sorted(alive)[doc["targetSize"] :], *dead]:
                self._backend.delete(member)
            names = [member.name for member in dead]
            for _ in range(doc["targetSize"] - len(alive)):
                suffix = "".join(secrets.choice(_ALPHABET) for _ in range(4))
                # A recreated machine keeps its name.
                self._create(ref, doc, names.pop() if names else f"{doc['baseInstanceName']}-{suffix}")
            self.context.change(ref, _again_at=None)

    def _create(self, group: Ref, doc: Doc, name: str) -> None:
        properties = self.context.find(ref_of(doc["instanceTemplate"]))["properties"]
        scopes = self._scopes(group, doc)
        for scope in scopes:
            member = Ref(group.project, scope, "instances", name)
            self._instances.create(member, {**properties, "name": name})
            self.context.change(member, _group=group.link)
            try:
                self._backend.launch(member)
                return
            except NoCapacity:
                if scope == scopes[-1]:
                    raise

    def _scopes(self, group: Ref, doc: Doc) -> list[str]:
        """Return the zones of a group, the one with the fewest members first."""
        if group.scope.startswith("zones/"):
            return [group.scope]
        counts = Counter(member.scope for member in self.members(group))
        scopes = [f"zones/{last(zone['zone'])}" for zone in doc["distributionPolicy"]["zones"]]
        return sorted(scopes, key=lambda scope: counts[scope])


class InstanceGroups(Resource):
    """The groups themselves, each filled by the manager of the same name."""

    kind = "instanceGroup"

    def __init__(self, context: Context, managers: GroupManagers) -> None:
        super().__init__(context)
        self._managers = managers

    def routes(self) -> Iterator[RouteEntry]:
        yield self.aggregated_route()
        yield from self.read_routes(ZONAL, REGIONAL)
        for place in (ZONAL, REGIONAL):
            yield "POST", f"{place}/instanceGroups/{{name}}/listInstances", self.list_instances

    def find(self, call: Call) -> tuple[Ref, Doc]:
        return self._managers.find(call)

    def items(self, project: str, scope: str = "") -> list[tuple[Ref, Doc]]:
        managers = self.store.each(self._managers.collection, project, scope)
        return [(ref, self.view(ref, doc)) for ref, doc in managers]

    def view(self, ref: Ref, doc: Doc) -> Doc:
        return {
            "kind": "compute#instanceGroup",
            "id": doc["id"],
            "creationTimestamp": doc["creationTimestamp"],
            "name": ref.name,
            "description": f"This instance group is controlled by Instance Group Manager '{ref.name}'.",
            **{place: doc[place] for place in ("zone", "region") if place in doc},
            "size": len(self._managers.members(ref)),
            "network": Ref(ref.project, GLOBAL, "networks", "default").link,
            "fingerprint": doc["fingerprint"],
            "selfLink": ref.beside(self.collection, ref.name).link,
        }

    def list_instances(self, call: Call) -> Doc:
        manager, _ = self.find(call)
        ref = manager.beside(self.collection, manager.name)
        members = self._managers.managed(manager)
        return {
            "kind": "compute#instanceGroupsListInstances",
            "id": f"{ref.path}/listInstances",
            "items": [{"instance": member["instance"], "status": member["instanceStatus"]} for member in members],
            "selfLink": f"{ref.link}/listInstances",
        }


def _zones(ref: Ref, body: Doc) -> list[Doc]:
    """Return the zones of a regional group: the requested ones, or all zones of the region."""
    known = google_types.REGIONS[last(ref.scope)]
    requested = [last(zone.get("zone")) for zone in (body.get("distributionPolicy") or {}).get("zones", [])] or known
    if unknown := [zone for zone in requested if zone not in known]:
        raise invalid(f"Invalid value for field 'resource.distributionPolicy.zones': '{unknown[0]}'.")
    return [{"zone": scope_link(ref.project, f"zones/{zone}")} for zone in requested]
