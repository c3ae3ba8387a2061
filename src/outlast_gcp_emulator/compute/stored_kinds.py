"""Resources that are only written down: networks, firewalls, templates, health checks. No packet is stopped by them.

A project begins with the network `default`, a subnetwork in each region, and the rules that Google gives it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outlast.clouds.local import google_types
from outlast_gcp_emulator.compute.context import Call, Context, aggregated, check_free, listing, new_resource
from outlast_gcp_emulator.compute.instances import labels_of
from outlast_gcp_emulator.compute.machineimages import disks_of, properties_of
from outlast_gcp_emulator.compute.refs import GLOBAL, Doc, Ref, fingerprint, number, parse, ref_of, stable_number
from outlast_gcp_emulator.errors import ApiError, invalid

_BORN = "2026-11-01T00:00:00.000+00:00"
Given = Callable[[str, str], list[Doc]]


def _nothing(project: str, scope: str) -> list[Doc]:
    return []


def _as_given(context: Context, ref: Ref, doc: Doc) -> Doc:
    return doc


def _always(context: Context, ref: Ref) -> None:
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Plain:
    """One kind: where it lives, what is there from the beginning, what a new one is filled up with."""

    collection: str
    kind: str
    # `global`, `zones` or `regions`.
    scopes: tuple[str, ...]
    given: Given = _nothing
    fill: Callable[[Context, Ref, Doc], Doc] = _as_given
    # Raises Refused for one that is needed.
    let_go: Callable[[Context, Ref], None] = _always
    # Verbs that change the fields in their body.
    setters: tuple[str, ...] = ()

    def all(self, context: Context, project: str, scope: str) -> list[Doc]:
        made = [doc for _, doc in context.store.each(self.collection, project, scope)]
        names = {doc["name"] for doc in made}
        return [*made, *(doc for doc in self.given(project, scope) if doc["name"] not in names)]

    def get(self, context: Context, call: Call) -> Doc:
        for doc in self.given(call.project, call.scope):
            if doc["name"] == call.name:
                return context.store.get(call.ref(self.collection)) or doc
        return context.find(call.ref(self.collection))

    def list(self, context: Context, call: Call) -> Doc:
        return listing(call, self.kind, self.collection, self.all(context, call.project, call.scope))

    def aggregate(self, context: Context, call: Call) -> Doc:
        places = {
            GLOBAL: [GLOBAL],
            "zones": [],
            "regions": [f"regions/{region}" for region in google_types.REGIONS] if self.given is not _nothing else [],
        }
        scopes = {scope for kind in self.scopes for scope in places[kind]}
        scopes |= {ref.scope for ref, _ in context.store.each(self.collection, call.project)}
        docs = [
            (Ref(call.project, scope, self.collection, doc["name"]), doc)
            for scope in sorted(scopes)
            for doc in self.all(context, call.project, scope)
        ]
        return aggregated(call, self.kind, self.collection, docs)

    def insert(self, context: Context, call: Call) -> Doc:
        ref = Ref(call.project, call.scope, self.collection, str(call.body.get("name", "")))
        with context.names:
            doc = new_resource(ref, self.kind, call.body)
            check_free(context, ref)
            if any(doc["name"] == ref.name for doc in self.given(call.project, call.scope)):
                raise ApiError(409, "alreadyExists", f"The resource '{ref.path}' already exists")
            context.store.put(ref, self.fill(context, ref, doc))
        return context.begin(call, ref, "insert", lambda: None)

    def patch(self, context: Context, call: Call) -> Doc:
        ref = call.ref(self.collection)
        given = {name: value for name, value in call.body.items() if name not in ("name", "id", "kind", "selfLink")}
        context.store.put(ref, self.fill(context, ref, {**self.get(context, call), **given}))
        return context.begin(call, ref, "patch", lambda: None)

    def delete(self, context: Context, call: Call) -> Doc:
        ref = call.ref(self.collection)
        context.find(ref)
        self.let_go(context, ref)
        return context.begin(call, ref, "delete", lambda: context.store.drop(ref))

    def label(self, context: Context, call: Call) -> Doc:
        ref = call.ref(self.collection)
        with context.store.lock:
            context.change(ref, **labels_of(call, context.find(ref)))
        return context.begin(call, ref, "setLabels", lambda: None)


def _born(ref: Ref, kind: str, **fields: object) -> Doc:
    return {
        "kind": f"compute#{kind}",
        "id": str(stable_number(ref.path)),
        "creationTimestamp": _BORN,
        "name": ref.name,
        "selfLink": ref.link,
        **fields,
    }


def _subnetwork(project: str, region: str) -> Ref:
    return Ref(project, f"regions/{region}", "subnetworks", "default")


def _networks(project: str, scope: str) -> list[Doc]:
    ref = Ref(project, GLOBAL, "networks", "default")
    fields = {
        "description": "Default network for the project",
        "autoCreateSubnetworks": True,
        "subnetworks": [_subnetwork(project, region).link for region in google_types.REGIONS],
        "routingConfig": {"routingMode": "REGIONAL"},
        "networkFirewallPolicyEnforcementOrder": "AFTER_CLASSIC_FIREWALL",
    }
    return [_born(ref, "network", **fields)]


def _subnetworks(project: str, scope: str) -> list[Doc]:
    region = scope.removeprefix("regions/")
    ref = _subnetwork(project, region)
    at = sorted(google_types.REGIONS).index(region)
    fields = {
        "network": Ref(project, GLOBAL, "networks", "default").link,
        "ipCidrRange": f"10.{128 + 2 * at}.0.0/20",
        "gatewayAddress": f"10.{128 + 2 * at}.0.1",
        "region": f"{ref.link.rpartition('/subnetworks')[0]}",
        "privateIpGoogleAccess": False,
        "fingerprint": fingerprint(ref.path),
        "purpose": "PRIVATE",
        "stackType": "IPV4_ONLY",
    }
    return [_born(ref, "subnetwork", **fields)]


def _firewalls(project: str, scope: str) -> list[Doc]:
    rules: dict[str, tuple[list[str], list[Doc]]] = {
        "default-allow-icmp": (["0.0.0.0/0"], [{"IPProtocol": "icmp"}]),
        "default-allow-internal": (["10.128.0.0/9"], [{"IPProtocol": "tcp", "ports": ["0-65535"]}]),
        "default-allow-ssh": (["0.0.0.0/0"], [{"IPProtocol": "tcp", "ports": ["22"]}]),
    }
    found = []
    for name, (ranges, allowed) in rules.items():
        ref = Ref(project, GLOBAL, "firewalls", name)
        fields = {"sourceRanges": ranges, "allowed": allowed, "priority": 65534}
        found.append(_firewall(ref, _born(ref, "firewall", **fields)))
    return found


def _firewall(ref: Ref, doc: Doc) -> Doc:
    near = Ref(ref.project, GLOBAL, "networks", "")
    network = parse(doc.get("network") or "default", near=near, field="resource.network")
    ranges = {} if doc.get("sourceTags") or doc.get("direction") == "EGRESS" else {"sourceRanges": ["0.0.0.0/0"]}
    basics = {"priority": 1000, "direction": "INGRESS", "disabled": False, "logConfig": {"enable": False}, **ranges}
    return {**basics, **doc, "network": network.link}


def _fill_firewall(context: Context, ref: Ref, doc: Doc) -> Doc:
    if not doc.get("allowed") and not doc.get("denied"):
        raise invalid("Invalid value for field 'resource': at least one of allowed and denied is wanted.")
    return _firewall(ref, doc)


def _fill_address(context: Context, ref: Ref, doc: Doc) -> Doc:
    number = stable_number(ref.path)
    # From the block that is kept for examples: nobody can be reached there.
    basics = {
        "address": f"203.0.113.{number % 250 + 1}",
        "addressType": "EXTERNAL",
        "networkTier": "PREMIUM",
        "status": "RESERVED",
        "labelFingerprint": fingerprint(doc.get("labels", {})),
    }
    return {**basics, **doc}


def _fill_network(context: Context, ref: Ref, doc: Doc) -> Doc:
    basics = {"routingConfig": {"routingMode": "REGIONAL"}, "autoCreateSubnetworks": True}
    return {**basics, **doc}


def _fill_subnetwork(context: Context, ref: Ref, doc: Doc) -> Doc:
    near = Ref(ref.project, GLOBAL, "networks", "")
    network = parse(doc.get("network") or "default", near=near, field="resource.network")
    basics = {"purpose": "PRIVATE", "stackType": "IPV4_ONLY", "fingerprint": fingerprint(ref.path)}
    return {**basics, **doc, "network": network.link}


def _fill_router(context: Context, ref: Ref, doc: Doc) -> Doc:
    near = Ref(ref.project, GLOBAL, "networks", "")
    return {**doc, "network": parse(doc.get("network") or "default", near=near, field="resource.network").link}


def _fill_policy(context: Context, ref: Ref, doc: Doc) -> Doc:
    return {"status": "READY", **doc}


def _fill_template(context: Context, ref: Ref, doc: Doc) -> Doc:
    if doc.get("sourceInstance"):
        near = Ref(ref.project, GLOBAL, "instances", "")
        instance = context.find(parse(doc["sourceInstance"], near=near, field="resource.sourceInstance"))
        doc = {**doc, "properties": {**properties_of(instance), "disks": _like_those_of(context, instance)}}
    if not isinstance(doc.get("properties"), dict):
        raise invalid("Invalid value for field 'resource.properties': ''. An instance template needs properties.")
    return doc


def _like_those_of(context: Context, instance: Doc) -> list[Doc]:
    """Disks from the images that the instance's own were made from; those that were made from none are empty."""
    sources = (context.find(ref_of(one["source"])) for one in instance["disks"] if one["type"] != "SCRATCH")
    params = [
        {"diskSizeGb": source["sizeGb"], **({"sourceImage": source["sourceImage"]} if "sourceImage" in source else {})}
        for source in sources
    ]
    return [{**disk, "initializeParams": one} for disk, one in zip(disks_of(instance), params, strict=True)]


def _unused_template(context: Context, ref: Ref) -> None:
    for user, doc in context.store.each("instanceGroupManagers", ref.project):
        if doc["instanceTemplate"] == ref.link:
            told = f"The instance_template resource '{ref.path}' is already being used by '{user.path}'"
            raise ApiError(400, "resourceInUseByAnotherResource", told)


def _fill_autoscaler(context: Context, ref: Ref, doc: Doc) -> Doc:
    policy = doc.get("autoscalingPolicy") or {}
    if not policy.get("maxNumReplicas"):
        raise invalid("Invalid value for field 'resource.autoscalingPolicy.maxNumReplicas': ''. It is required.")
    for bound in ("minNumReplicas", "maxNumReplicas"):
        number(policy.get(bound) or 0, f"resource.autoscalingPolicy.{bound}")
    group = parse(doc.get("target"), near=ref.beside("instanceGroupManagers", ""), field="resource.target")
    context.find(group)
    return {"status": "ACTIVE", **doc, "target": group.link}


TEMPLATES = Plain(
    collection="instanceTemplates",
    kind="instanceTemplate",
    scopes=(GLOBAL,),
    fill=_fill_template,
    let_go=_unused_template,
)
KINDS = (
    Plain(collection="networks", kind="network", scopes=(GLOBAL,), given=_networks, fill=_fill_network),
    Plain(
        collection="subnetworks",
        kind="subnetwork",
        scopes=("regions",),
        given=_subnetworks,
        fill=_fill_subnetwork,
        setters=("setPrivateIpGoogleAccess",),
    ),
    Plain(collection="firewalls", kind="firewall", scopes=(GLOBAL,), given=_firewalls, fill=_fill_firewall),
    Plain(collection="routes", kind="route", scopes=(GLOBAL,)),
    Plain(collection="routers", kind="router", scopes=("regions",), fill=_fill_router),
    Plain(collection="addresses", kind="address", scopes=("regions", GLOBAL), fill=_fill_address),
    TEMPLATES,
    Plain(collection="healthChecks", kind="healthCheck", scopes=(GLOBAL, "regions")),
    Plain(collection="autoscalers", kind="autoscaler", scopes=("zones", "regions"), fill=_fill_autoscaler),
    Plain(collection="resourcePolicies", kind="resourcePolicy", scopes=("regions",), fill=_fill_policy),
)
# Listed by clients beside others, and always empty here.
EMPTY = {
    "commitments": ("commitment", ("regions",)),
    "reservations": ("reservation", ("zones",)),
}
