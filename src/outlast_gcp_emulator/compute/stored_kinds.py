"""Resources without a machine behind them: networks, firewalls, templates, health checks. They block no traffic.

A project begins with the network `default`, a subnetwork in each region, and Google's default firewall rules.
"""

from __future__ import annotations

from collections.abc import Iterator

from outlast.clouds.local import google_types
from outlast_gcp_emulator.compute.context import Call, Context
from outlast_gcp_emulator.compute.machineimages import instance_disks, instance_properties
from outlast_gcp_emulator.compute.refs import GLOBAL, Doc, Ref, fingerprint, number, parse, ref_of, stable_number
from outlast_gcp_emulator.compute.resource import (
    PROJECT_WIDE,
    REGIONAL,
    ZONAL,
    Resource,
    RouteEntry,
    already_exists,
    builtin_resource,
)
from outlast_gcp_emulator.errors import ApiError, invalid

_CREATED_AT = "2026-11-01T00:00:00.000+00:00"
_PLACES = {GLOBAL: PROJECT_WIDE, "zones": ZONAL, "regions": REGIONAL}
# Fields that a patch cannot change.
_FIXED_FIELDS = ("name", "id", "kind", "selfLink")


class StoredKind(Resource):
    """A kind that is stored as it was sent. Subclasses add default resources and default fields."""

    # `global`, `zones` or `regions`.
    scopes: tuple[str, ...] = (GLOBAL,)
    # Verbs that change the fields in their body.
    setters: tuple[str, ...] = ()

    def default_scopes(self) -> set[str]:
        """Return the scopes that an aggregated list always reads."""
        return {GLOBAL} & set(self.scopes)

    def defaults(self, project: str, scope: str) -> list[Doc]:
        """Return the resources that exist in a new project."""
        return []

    def fill(self, ref: Ref, doc: Doc) -> Doc:
        """Return the resource with default fields. Raises ApiError for an invalid one."""
        return doc

    def routes(self) -> Iterator[RouteEntry]:
        for scope in self.scopes:
            path = f"{_PLACES[scope]}/{self.collection}"
            yield from self.read_routes(_PLACES[scope])
            yield "POST", path, self.insert
            # The name of an autoscaler is in the query.
            for method in ("PATCH", "PUT"):
                yield method, f"{path}/{{name}}", self.patch
                yield method, path, self.patch
            yield "DELETE", f"{path}/{{name}}", self.delete
            yield self.label_route(_PLACES[scope])
            for verb in self.setters:
                yield "POST", f"{path}/{{name}}/{verb}", self.patch
        yield self.aggregated_route()

    def items(self, project: str, scope: str = "") -> list[tuple[Ref, Doc]]:
        stored = super().items(project, scope)
        scopes = [scope] if scope else sorted(self.default_scopes() | {ref.scope for ref, _ in stored})
        taken = {ref for ref, _ in stored}
        defaults = [
            (ref, doc)
            for place in scopes
            for doc in self.defaults(project, place)
            if (ref := Ref(project, place, self.collection, doc["name"])) not in taken
        ]
        return [*stored, *defaults]

    def get(self, call: Call) -> Doc:
        if (default := self._default(self.ref(call))) is not None:
            return self.store.get(self.ref(call)) or default
        return super().get(call)

    def _default(self, ref: Ref) -> Doc | None:
        return next((doc for doc in self.defaults(ref.project, ref.scope) if doc["name"] == ref.name), None)

    def insert(self, call: Call) -> Doc:
        ref = self.new_ref(call)
        with self.context.names:
            doc = self.new(ref, call.body)
            if self._default(ref) is not None:
                raise already_exists(ref)
            self.store.put(ref, self.fill(ref, doc))
        return self.context.begin(call, ref, "insert")

    def patch(self, call: Call) -> Doc:
        ref = self.ref(call)
        given = {name: value for name, value in call.body.items() if name not in _FIXED_FIELDS}
        self.store.put(ref, self.fill(ref, {**self.get(call), **given}))
        return self.context.begin(call, ref, "patch")

    def network(self, ref: Ref, doc: Doc) -> str:
        """Return the link of the network that a resource names, or of the default network."""
        return self.global_ref(ref.project, doc.get("network") or "default", "networks", "resource.network").link


class Networks(StoredKind):
    kind = "network"

    def defaults(self, project: str, scope: str) -> list[Doc]:
        if not self.context.surroundings.now.default_network:
            return []
        fields = {
            "description": "Default network for the project",
            "autoCreateSubnetworks": True,
            "subnetworks": [_default_subnetwork(project, region).link for region in google_types.REGIONS],
            "routingConfig": {"routingMode": "REGIONAL"},
            "networkFirewallPolicyEnforcementOrder": "AFTER_CLASSIC_FIREWALL",
        }
        return [builtin_resource(Ref(project, GLOBAL, "networks", "default"), self.kind, _CREATED_AT, **fields)]

    def routes(self) -> Iterator[RouteEntry]:
        yield from super().routes()
        yield "GET", "/global/networks/{name}/getEffectiveFirewalls", self._effective_firewalls

    def _effective_firewalls(self, call: Call) -> Doc:
        """Return the rules of the network, without those of policies, which are not emulated."""
        self.get(call)
        link = Ref(call.project, GLOBAL, "networks", call.name).link
        rules = [doc for _, doc in Firewalls(self.context).items(call.project, GLOBAL) if doc["network"] == link]
        return {"firewalls": rules, "firewallPolicys": []}

    def fill(self, ref: Ref, doc: Doc) -> Doc:
        return {"routingConfig": {"routingMode": "REGIONAL"}, "autoCreateSubnetworks": True, **doc}


class Subnetworks(StoredKind):
    kind = "subnetwork"
    scopes = ("regions",)
    setters = ("setPrivateIpGoogleAccess",)

    def default_scopes(self) -> set[str]:
        return {f"regions/{region}" for region in google_types.REGIONS}

    def defaults(self, project: str, scope: str) -> list[Doc]:
        if not self.context.surroundings.now.default_network:
            return []
        region = scope.removeprefix("regions/")
        ref = _default_subnetwork(project, region)
        block = 128 + 2 * sorted(google_types.REGIONS).index(region)
        fields = {
            "network": Ref(project, GLOBAL, "networks", "default").link,
            "ipCidrRange": f"10.{block}.0.0/20",
            "gatewayAddress": f"10.{block}.0.1",
            "region": f"{ref.link.rpartition('/subnetworks')[0]}",
            "privateIpGoogleAccess": False,
            "fingerprint": fingerprint(ref.path),
            "purpose": "PRIVATE",
            "stackType": "IPV4_ONLY",
        }
        return [builtin_resource(ref, self.kind, _CREATED_AT, **fields)]

    def fill(self, ref: Ref, doc: Doc) -> Doc:
        basics = {"purpose": "PRIVATE", "stackType": "IPV4_ONLY", "fingerprint": fingerprint(ref.path)}
        return {**basics, **doc, "network": self.network(ref, doc)}


class Firewalls(StoredKind):
    kind = "firewall"

    def defaults(self, project: str, scope: str) -> list[Doc]:
        rules: dict[str, tuple[list[str], list[Doc]]] = {
            "default-allow-icmp": (["0.0.0.0/0"], [{"IPProtocol": "icmp"}]),
            "default-allow-internal": (["10.128.0.0/9"], [{"IPProtocol": "tcp", "ports": ["0-65535"]}]),
            "default-allow-ssh": (["0.0.0.0/0"], [{"IPProtocol": "tcp", "ports": ["22"]}]),
        }
        found = []
        for name, (ranges, allowed) in rules.items():
            ref = Ref(project, GLOBAL, self.collection, name)
            fields = {"sourceRanges": ranges, "allowed": allowed, "priority": 65534}
            found.append(self.fill(ref, builtin_resource(ref, self.kind, _CREATED_AT, **fields)))
        return found

    def fill(self, ref: Ref, doc: Doc) -> Doc:
        if not doc.get("allowed") and not doc.get("denied"):
            raise invalid("Invalid value for field 'resource': at least one of allowed and denied is required.")
        ranges = {} if doc.get("sourceTags") or doc.get("direction") == "EGRESS" else {"sourceRanges": ["0.0.0.0/0"]}
        basics = {"priority": 1000, "direction": "INGRESS", "disabled": False, "logConfig": {"enable": False}, **ranges}
        return {**basics, **doc, "network": self.network(ref, doc)}


class Routers(StoredKind):
    kind = "router"
    scopes = ("regions",)

    def fill(self, ref: Ref, doc: Doc) -> Doc:
        return {**doc, "network": self.network(ref, doc)}


class Addresses(StoredKind):
    kind = "address"
    collection = "addresses"
    scopes = ("regions", GLOBAL)

    def fill(self, ref: Ref, doc: Doc) -> Doc:
        # From a block that is reserved for documentation: no host has such an address.
        basics = {
            "address": f"203.0.113.{stable_number(ref.path) % 250 + 1}",
            "addressType": "EXTERNAL",
            "networkTier": "PREMIUM",
            "status": "RESERVED",
            "labelFingerprint": fingerprint(doc.get("labels", {})),
        }
        return {**basics, **doc}


class ResourcePolicies(StoredKind):
    kind = "resourcePolicy"
    collection = "resourcePolicies"
    scopes = ("regions",)

    def fill(self, ref: Ref, doc: Doc) -> Doc:
        return {"status": "READY", **doc}


class InstanceTemplates(StoredKind):
    kind = "instanceTemplate"

    def fill(self, ref: Ref, doc: Doc) -> Doc:
        if source := doc.get("sourceInstance"):
            field = "resource.sourceInstance"
            instance = self.context.find(self.global_ref(ref.project, source, "instances", field))
            doc = {**doc, "properties": {**instance_properties(instance), "disks": self._disks_like(instance)}}
        if not isinstance(doc.get("properties"), dict):
            raise invalid("Invalid value for field 'resource.properties': ''. An instance template needs properties.")
        return doc

    def _disks_like(self, instance: Doc) -> list[Doc]:
        """Return new disks from the images of the instance's disks; a disk without an image becomes an empty one."""
        sources = (self.context.find(ref_of(disk["source"])) for disk in instance["disks"] if disk["type"] != "SCRATCH")
        params = [
            {
                "diskSizeGb": source["sizeGb"],
                **({"sourceImage": source["sourceImage"]} if "sourceImage" in source else {}),
            }
            for source in sources
        ]
        disks = zip(instance_disks(instance), params, strict=True)
        return [{**disk, "initializeParams": initial} for disk, initial in disks]

    def check_deletable(self, ref: Ref, doc: Doc) -> None:
        for user, manager in self.store.each("instanceGroupManagers", ref.project):
            if manager["instanceTemplate"] == ref.link:
                message = f"The instance_template resource '{ref.path}' is already being used by '{user.path}'"
                raise ApiError(400, "resourceInUseByAnotherResource", message)


class Autoscalers(StoredKind):
    kind = "autoscaler"
    scopes = ("zones", "regions")

    def fill(self, ref: Ref, doc: Doc) -> Doc:
        policy = doc.get("autoscalingPolicy") or {}
        if not policy.get("maxNumReplicas"):
            raise invalid("Invalid value for field 'resource.autoscalingPolicy.maxNumReplicas': ''. It is required.")
        for bound in ("minNumReplicas", "maxNumReplicas"):
            number(policy.get(bound) or 0, f"resource.autoscalingPolicy.{bound}")
        group = parse(doc.get("target"), near=ref.beside("instanceGroupManagers", ""), field="resource.target")
        self.context.find(group)
        return {"status": "ACTIVE", **doc, "target": group.link}


class HealthChecks(StoredKind):
    kind = "healthCheck"
    scopes = (GLOBAL, "regions")


class NetworkRoutes(StoredKind):
    kind = "route"


class EmptyKind(Resource):
    """A kind that clients list together with others, and of which no resource exists."""

    def __init__(self, context: Context, kind: str, place: str) -> None:
        self.kind, self._place = kind, place
        super().__init__(context)

    def routes(self) -> Iterator[RouteEntry]:
        yield "GET", f"{self._place}/{self.collection}", self.listing
        yield self.aggregated_route()


def stored_kinds(context: Context) -> list[Resource]:
    kinds = (Networks, Subnetworks, Firewalls, NetworkRoutes, Routers, Addresses, InstanceTemplates, HealthChecks)
    return [
        *(kind(context) for kind in (*kinds, Autoscalers, ResourcePolicies)),
        EmptyKind(context, "commitment", REGIONAL),
        EmptyKind(context, "reservation", ZONAL),
    ]


def _default_subnetwork(project: str, region: str) -> Ref:
    return Ref(project, f"regions/{region}", "subnetworks", "default")
