"""`advice.capacity`: where there is room, by what was set for the zones of the local cloud. Promises nothing."""

from __future__ import annotations

from outlast.clouds.local import google_types
from outlast.errors import NoCapacity, OverQuota
from outlast_gcp_emulator.compute.context import Call, Context
from outlast_gcp_emulator.compute.refs import GLOBAL, Doc, Ref, last, not_there
from outlast_gcp_emulator.errors import invalid

_SURE, _NONE = 0.9, 0.1
# What a spot machine may count on where nothing is set.
_UPTIME_S = 86400.0


def capacity(context: Context, call: Call) -> Doc:
    """One recommendation: the first zone that has room, for the first type that was asked for."""
    if call.name not in google_types.REGIONS:
        raise not_there(Ref(call.project, GLOBAL, "regions", call.name))
    policy = call.body.get("distributionPolicy", {})
    zones = [zone for zone in google_types.ZONES if google_types.region_of(zone) == call.name]
    asked = [last(one.get("zone")) for one in policy.get("zones", [])]
    if unknown := [zone for zone in asked if zone not in zones]:
        raise invalid(f"Invalid value for field 'distributionPolicy.zones': '{unknown[0]}' is not in {call.name}")
    selections = call.body.get("instanceFlexibilityPolicy", {}).get("instanceSelections", {})
    types = [str(name) for one in selections.values() for name in one.get("machineTypes", [])]
    model = call.body.get("instanceProperties", {}).get("scheduling", {}).get("provisioningModel", "STANDARD")
    if not types or not call.body.get("size"):
        raise invalid("Required field 'size' or 'instanceFlexibilityPolicy.instanceSelections' not specified")
    chances = {zone: _chance(context, zone, spot=model == "SPOT") for zone in asked or zones}
    best = max(chances, key=lambda zone: chances[zone])
    uptime_s = context.cloud.zone_settings().get(best, {}).get("mean_life_s") or _UPTIME_S
    shard = {
        "zone": best,
        "machineType": types[0],
        "instanceCount": int(call.body["size"]),
        "provisioningModel": model,
    }
    scores = {"obtainability": chances[best], "estimatedUptime": f"{float(uptime_s):.0f}s"}
    return {"recommendations": [{"scores": scores, "shards": [shard]}]}


def _chance(context: Context, zone: str, *, spot: bool) -> float:
    try:
        context.cloud.check_room(zone, spot=spot)
    except (NoCapacity, OverQuota):
        return _NONE
    return _SURE
