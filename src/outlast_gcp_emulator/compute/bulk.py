"""Many machines by one request, with counted names: in one zone, or in one of a region that has room."""

from __future__ import annotations

import re
import uuid

from outlast.clouds.local import google_types
from outlast.errors import NoCapacity, OverQuota
from outlast_gcp_emulator.compute import instance_backend, instances
from outlast_gcp_emulator.compute.context import Call, Context
from outlast_gcp_emulator.compute.operations import WAIT_S_MAX, OperationFailure
from outlast_gcp_emulator.compute.refs import GLOBAL, Doc, Ref, last, number, parse, ref_of
from outlast_gcp_emulator.errors import ApiError, invalid

_COUNT_MAX = 1000


def insert(context: Context, call: Call) -> Doc:
    """All are on the books, or none; how many of them must run is the client's to say."""
    body, properties = call.body, _properties(context, call)
    named: Doc = body.get("perInstanceProperties") or {}
    count = number(body.get("count") or len(named), "count")
    if not 0 < count <= _COUNT_MAX:
        raise invalid(f"Invalid value for field 'count': '{count}'. It must be from 1 to {_COUNT_MAX}.")
    least = number(body.get("minCount") or count, "minCount")
    scope = _zone(context, call, properties)
    group = str(uuid.uuid4())
    with context.names:
        names = sorted(named)[:count] if named else _counted(context, call, count)
        made: list[Ref] = []
        try:
            for name in names:
                ref = Ref(call.project, scope, "instances", name)
                instances.create(context, ref, {**properties, **named.get(name, {}), "name": name})
                made.append(ref)
        except ApiError:
            for ref in made:
                instance_backend.forget(context, ref, context.find(ref))
            raise
    place = Ref(call.project, call.scope, "", "")
    request_id = call.query.get("requestId", "")
    return context.operations.begin(
        place, "bulkInsert", lambda: _launch(context, made, group, least), request_id=request_id, group=group
    )


def _properties(context: Context, call: Call) -> Doc:
    given: Doc = {}
    if template := call.body.get("sourceInstanceTemplate"):
        near = Ref(call.project, GLOBAL, "instanceTemplates", "")
        given = context.find(parse(template, near=near, field="sourceInstanceTemplate"))["properties"]
    return {**given, **(call.body.get("instanceProperties") or {})}


def _counted(context: Context, call: Call, count: int) -> list[str]:
    """Names by a pattern like `worker-##`, from the first number on that nobody has."""
    pattern = str(call.body.get("namePattern", ""))
    found = re.fullmatch(r"([^#]*)(#+)([^#]*)", pattern)
    if found is None:
        raise invalid(f"Invalid value for field 'namePattern': '{pattern}'. One row of # is wanted, as in worker-##.")
    before, signs, after = found.groups()
    taken = {ref.name for ref, _ in context.store.each("instances", call.project)}
    every = (f"{before}{at:0{len(signs)}}{after}" for at in range(1, 10 ** len(signs)))
    names = [name for name in every if name not in taken][:count]
    if len(names) < count:
        raise invalid(f"Invalid value for field 'namePattern': '{pattern}'. It has not enough # for {count} names.")
    return names


def _zone(context: Context, call: Call, properties: Doc) -> str:
    if call.scope.startswith("zones/"):
        return call.scope
    policy = (call.body.get("locationPolicy") or {}).get("locations") or {}
    barred = {last(place) for place, rule in policy.items() if rule.get("preference") == "DENY"}
    wanted = {last(place) for place, rule in policy.items() if rule.get("preference") == "ALLOW"}
    zones = [
        zone for zone in google_types.REGIONS[last(call.scope)] if zone not in barred and (zone in wanted or not wanted)
    ]
    if not zones:
        raise invalid("Invalid value for field 'locationPolicy': it leaves no zone.")
    rules = properties.get("scheduling") or {}
    spot = bool(rules.get("preemptible")) or rules.get("provisioningModel") == "SPOT"
    for zone in zones:
        try:
            context.cloud.check_room(zone, spot=spot)
            return f"zones/{zone}"
        except (NoCapacity, OverQuota):
            continue
    return f"zones/{zones[0]}"


def _launch(context: Context, refs: list[Ref], group: str, least: int) -> None:
    def launch(ref: Ref) -> Doc:
        target_id = str(context.find(ref)["id"])
        return context.operations.begin(
            ref, "insert", lambda: instance_backend.launch(context, ref), target_id=target_id, group=group
        )

    begun = [(ref, launch(ref)) for ref in refs]
    ended = [(ref, context.operations.wait(ref_of(one["selfLink"]), patience_s=WAIT_S_MAX)) for ref, one in begun]
    failed = [operation["error"]["errors"][0] for _, operation in ended if "error" in operation]
    if len(refs) - len(failed) >= least:
        return
    for ref, operation in ended:
        if "error" not in operation:
            instance_backend.delete(context, ref)
    raise OperationFailure(failed[0]["code"], failed[0]["message"], status=503)
