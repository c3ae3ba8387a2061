"""Bulk inserts: many instances by one request, in one zone, or in a zone of a region that has room."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator

from outlast.clouds.local import google_types
from outlast.errors import NoCapacity, OverQuota
from outlast_gcp_emulator.compute.context import Call, Context
from outlast_gcp_emulator.compute.instance_backend import InstanceBackend
from outlast_gcp_emulator.compute.instances import Instances
from outlast_gcp_emulator.compute.operations import OperationFailure
from outlast_gcp_emulator.compute.refs import Doc, Ref, last, number, ref_of
from outlast_gcp_emulator.compute.resource import REGIONAL, ZONAL, RouteEntry
from outlast_gcp_emulator.errors import ApiError, invalid

_COUNT_MAX = 1000


class BulkInsert:
    """Creates all instances of a request or none, and deletes them again if fewer than `minCount` boot."""

    def __init__(self, context: Context, instances: Instances, backend: InstanceBackend) -> None:
        self._context = context
        self._instances = instances
        self._backend = backend

    def routes(self) -> Iterator[RouteEntry]:
        for place in (ZONAL, REGIONAL):
            yield "POST", f"{place}/instances/bulkInsert", self.insert

    def insert(self, call: Call) -> Doc:
        body, properties = call.body, self._properties(call)
        named: Doc = body.get("perInstanceProperties") or {}
        count = number(body.get("count") or len(named), "count")
        if not 0 < count <= _COUNT_MAX:
            raise invalid(f"Invalid value for field 'count': '{count}'. It must be from 1 to {_COUNT_MAX}.")
        least = number(body.get("minCount") or count, "minCount")
        scope = self._scope(call, properties)
        group = str(uuid.uuid4())
        with self._context.names:
            names = sorted(named)[:count] if named else self._names(call, count)
            created: list[Ref] = []
            try:
                for name in names:
                    ref = Ref(call.project, scope, "instances", name)
                    self._instances.create(ref, {**properties, **named.get(name, {}), "name": name})
                    created.append(ref)
            except ApiError:
                for ref in created:
                    self._backend.remove(ref, self._context.find(ref))
                raise
        return self._context.operations.begin(
            Ref(call.project, call.scope, "", ""),
            "bulkInsert",
            lambda: self._launch(created, group, least),
            request_id=call.query.get("requestId", ""),
            group=group,
        )

    def _properties(self, call: Call) -> Doc:
        template = call.body.get("sourceInstanceTemplate")
        given = self._instances.template_properties(call.project, template) if template else {}
        return {**given, **(call.body.get("instanceProperties") or {})}

    def _names(self, call: Call, count: int) -> list[str]:
        """Return free names by a pattern such as `worker-##`, in the order of their numbers."""
        pattern = str(call.body.get("namePattern", ""))
        found = re.fullmatch(r"([^#]*)(#+)([^#]*)", pattern)
        if found is None:
            raise invalid(
                f"Invalid value for field 'namePattern': '{pattern}'. Expected one row of #, as in worker-##."
            )
        before, signs, after = found.groups()
        taken = {ref.name for ref, _ in self._context.store.each("instances", call.project)}
        numbered = (f"{before}{at:0{len(signs)}}{after}" for at in range(1, 10 ** len(signs)))
        names = [name for name in numbered if name not in taken][:count]
        if len(names) < count:
            raise invalid(f"Invalid value for field 'namePattern': '{pattern}'. It has too few # for {count} names.")
        return names

    def _scope(self, call: Call, properties: Doc) -> str:
        """Return the zone of the request, or the first zone of its region that has room."""
        if call.scope.startswith("zones/"):
            return call.scope
        policy = (call.body.get("locationPolicy") or {}).get("locations") or {}
        denied = {last(place) for place, rule in policy.items() if rule.get("preference") == "DENY"}
        allowed = {last(place) for place, rule in policy.items() if rule.get("preference") == "ALLOW"}
        known = google_types.REGIONS[last(call.scope)]
        zones = [zone for zone in known if zone not in denied and (zone in allowed or not allowed)]
        if not zones:
            raise invalid("Invalid value for field 'locationPolicy': no zone is left.")
        rules = properties.get("scheduling") or {}
        spot = bool(rules.get("preemptible")) or rules.get("provisioningModel") == "SPOT"
        for zone in zones:
            try:
                self._context.cloud.check_room(zone, spot=spot)
                return f"zones/{zone}"
            except (NoCapacity, OverQuota):
                continue
        return f"zones/{zones[0]}"

    def _launch(self, refs: list[Ref], group: str, least: int) -> None:
        operations = self._context.operations

        def begin(ref: Ref) -> Doc:
            target_id = str(self._context.find(ref)["id"])
            return operations.begin(ref, "insert", lambda: self._backend.launch(ref), target_id=target_id, group=group)

        begun = [(ref, begin(ref)) for ref in refs]
        ended = [(ref, operations.wait(ref_of(operation["selfLink"]))) for ref, operation in begun]
        failed = [operation["error"]["errors"][0] for _, operation in ended if "error" in operation]
        if len(refs) - len(failed) >= least:
            return
        for ref, operation in ended:
            if "error" not in operation:
                self._backend.delete(ref)
        raise OperationFailure(failed[0]["code"], failed[0]["message"], status=503)
