"""`resources` of a SkyPilot task as `[machine]`: one machine out of the alternatives that the file allows. No IO."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from outlast.spec.convert import Section, shown

OURS = ("gcp", "aws")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgtp])(?:i|b|ib)?)?(\+?)", re.IGNORECASE)
_GB = {"k": 1e-6, "m": 1e-3, "g": 1.0, "t": 1e3, "p": 1e6, "": 1.0}
_NO_COUNTERPART = {
    "disk_tier": "disks are of the cloud's standard kind",
    "network_tier": "machines are in the default network",
    "local_disk": "machines have a boot disk alone",
    "ephemeral_storage": "machines have a boot disk alone; see `disk`",
    "max_hourly_cost": "say `[limits] cost_usd` for the whole run; `outlast prices` shows what an hour costs",
    "labels": "machines have outlast's own labels alone",
    "accelerator_args": "they belong to TPUs, which cannot be had",
    "priority": "runs of a workspace have no priorities",
    "priority_class": "runs of a workspace have no priorities",
    "volumes": "disks that are attached to one machine; see `outlast volume` for file systems that many mount",
    "_cluster_config_overrides": "it is SkyPilot's own",
}


def machine_of(section: Section) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of `[machine]` and of `[limits]`."""
    lists = [name for name in ("any_of", "ordered", "candidates") if section.table.get(name)]
    base = {field: value for field, value in section.table.items() if field not in lists}
    section.take("any_of")
    section.take("ordered")
    for name in lists[1:]:
        section.left_out(name, f"there is `{lists[0]}` as well")
    if not lists:
        clouds, zones = _place(section)
        machine, limits = _machine(section)
        return _with_place(section, machine, clouds, zones), limits
    section.take(lists[0])
    alternatives = section.table[lists[0]]
    if not isinstance(alternatives, list) or not all(isinstance(item, Mapping) for item in alternatives):
        section.wrong(lists[0], "expected a list of resources")
        return {}, {}
    return _first_of(section, lists[0], [{**base, **item} for item in alternatives])


def _first_of(
    section: Section, field: str, alternatives: list[dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first alternative that can be had; where the others differ in clouds, zones or spot, they are honoured."""
    clouds: list[str] = []
    zones: list[str] = []
    everywhere = False
    usable: list[tuple[Section, dict[str, Any]]] = []
    for index, table in enumerate(alternatives):
        inner = Section(table, f"{section.where}.{field}[{index}]", section.findings)
        if strangers := _strangers(table):
            inner.left_out("infra" if "infra" in table else "cloud", f"machines of `{strangers}` cannot be had")
            continue
        found, places = _place(inner)
        clouds += [cloud for cloud in found if cloud not in clouds]
        zones += [zone for zone in places if zone not in zones]
        everywhere |= not places
        usable.append((inner, table))
    section._taken |= set(section.table)
    if not usable:
        section.wrong(field, "machines of none of these clouds can be had; known are gcp and aws")
        return {}, {}
    first, chosen = usable[0]
    machine, limits = _machine(first)
    spots = {bool(table.get("use_spot", False)) for _, table in usable}
    if spots == {True, False}:
        machine["spot"], machine["fallback"] = True, True
    for inner, table in usable[1:]:
        for name in sorted(set(table) | set(chosen)):
            if name not in ("infra", "cloud", "region", "zone", "use_spot") and table.get(name) != chosen.get(name):
                inner.left_out(name, f"one kind of machine can be asked for: that of {first.where}")
    return _with_place(section, machine, clouds, [*zones, "*"] if zones and everywhere else zones), limits


def _with_place(section: Section, machine: dict[str, Any], clouds: list[str], zones: list[str]) -> dict[str, Any]:
    if not clouds:
        clouds = list(OURS)
        if section.table.get("instance_type"):
            clouds = ["aws" if "." in str(section.table["instance_type"]) else "gcp"]
        section.otherwise("infra", f"no cloud is named: {', then '.join(clouds)}; change `[machine] cloud` as you like")
    if len(clouds) > 1 and "type" in machine:
        section.left_out("instance_type", "no two clouds have the same machine types")
        del machine["type"]
    found: dict[str, Any] = {"cloud": clouds[0] if len(clouds) == 1 else clouds}
    return {**found, **machine, **({"zones": zones} if zones else {})}


def _strangers(table: Mapping[str, Any]) -> str:
    """The cloud of this alternative if it is none of ours."""
    cloud = str(table.get("infra") or table.get("cloud") or "").partition("/")[0].lower()
    return "" if cloud in ("", "*", *OURS) else cloud


def _place(section: Section) -> tuple[list[str], list[str]]:
    """Clouds and zones; both empty for any."""
    cloud, region, zone = section.take("cloud"), section.take("region"), section.take("zone")
    infra = section.take("infra")
    if isinstance(infra, str):
        parts = [None if part == "*" else part for part in infra.split("/")]
        cloud, region, zone = (*parts, None, None)[:3]
    clouds = [str(cloud).lower()] if cloud else []
    if clouds and clouds[0] not in OURS:
        section.wrong("infra" if infra else "cloud", f"machines of `{cloud}` cannot be had; known are gcp and aws")
        return [], []
    given = zone or region
    zones = given if isinstance(given, list) else [given] if given else []
    return clouds, [str(item) for item in zones]


def _machine(section: Section) -> tuple[dict[str, Any], dict[str, Any]]:
    machine: dict[str, Any] = {}
    # Here machines are spot unless it is said, there they are not.
    spot = section.take("use_spot")
    machine["spot"] = bool(spot) if isinstance(spot, bool) or spot is None else False
    if spot is not None and not isinstance(spot, bool):
        section.wrong("use_spot", f"expected true or false, got {shown(spot)}")
    for field, read in (("cpus", _cpus), ("memory", _memory)):
        value = section.take(field)
        if value is not None and (found := read(section, value)):
            machine[field] = found
    if gpu := _gpu(section):
        machine["gpu"] = gpu
    if kind := section.take("instance_type"):
        machine["type"] = str(kind)
    size = section.take("disk_size")
    if size is not None:
        match = _SIZE.fullmatch(str(size))
        if match is None:
            section.wrong("disk_size", f"{shown(size)} is no size")
        else:
            machine["disk"] = f"{float(match[1]) * _GB[(match[2] or '').lower()]:g}GB"
    _image(section, machine)
    if section.take("autostop") not in (None, False):
        section.otherwise("autostop", "a machine is deleted as soon as its run is over")
    ports = section.take("ports")
    for port in ports if isinstance(ports, list) else [ports] if ports is not None else []:
        section.left_out("ports", f"no port is opened to the world; `outlast tunnel RUN {port}` brings it here")
    limits = _recovery(section)
    section.drop(_NO_COUNTERPART)
    section.take("_no_missing_accel_warnings")
    section.finish("SkyPilot's resources")
    return machine, limits


def _cpus(section: Section, value: Any) -> Any:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(?:(\+)|-(\d+))?", str(value).strip())
    if match is None:
        section.wrong("cpus", f"{shown(value)} is no number of processors")
        return None
    if float(match[1]) < 1:
        section.otherwise("cpus", "a machine has at least one processor")
        return "1+"
    if match[3]:
        return f"{match[1]}..{match[3]}"
    return f"{match[1]}{match[2] or ''}"


def _memory(section: Section, value: Any) -> Any:
    argv = str(value).strip()
    if re.fullmatch(r"\d+(?:\.\d+)?x", argv):
        section.left_out("memory", f"`{argv}` is a multiple of the processors; say it in GB")
        return None
    match = _SIZE.fullmatch(argv)
    if match is None:
        section.wrong("memory", f"{shown(value)} is no size of memory")
        return None
    return f"{float(match[1]) * _GB[(match[2] or '').lower()]:g}GB{match[3]}"


def _gpu(section: Section) -> str:
    value = section.take("accelerators")
    if value in (None, "", {}, []):
        return ""
    if isinstance(value, str):
        wanted = [piece.strip(" {}'\"") for piece in value.split(",")]
    elif isinstance(value, Mapping):
        wanted = [str(name) if count is None else f"{name}:{count}" for name, count in value.items()]
    elif isinstance(value, list):
        wanted = [str(item) for item in value]
    else:
        section.wrong("accelerators", f"{shown(value)} is no accelerator")
        return ""
    first, *others = wanted
    kind, _, count = first.partition(":")
    if kind.lower().startswith("tpu"):
        section.wrong("accelerators", f"`{kind}`: machines have no TPUs here")
        return ""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", kind) or not re.fullmatch(r"(\d+(\.\d+)?)?", count):
        section.wrong("accelerators", f"`{first}` is no GPU that can be asked for here")
        return ""
    if others:
        section.left_out("accelerators", f"one kind of GPU can be asked for: `{first}`, not {', '.join(others)}")
    number = float(count or 1)
    if number != int(number) or number < 1:
        section.otherwise("accelerators", f"`{first}`: a machine has whole GPUs")
    return f"{kind}:{max(1, int(number))}"


def _image(section: Section, machine: dict[str, Any]) -> None:
    image = section.take("image_id")
    if image in (None, ""):
        return
    if not isinstance(image, str):
        section.left_out("image_id", "one image a run: name it in `[machine] image`, or build one with `[image]`")
    elif image.startswith("docker:"):
        machine["container"] = image.removeprefix("docker:")
    elif image.startswith("skypilot:"):
        section.left_out("image_id", f"`{image}` is SkyPilot's own; the cloud's base image is used")
    else:
        machine["image"] = image


def _recovery(section: Section) -> dict[str, Any]:
    value = section.take("job_recovery")
    # SkyPilot's name of it before.
    before = section.take("spot_recovery")
    if isinstance(value, Mapping):
        inner = Section(value, section.name("job_recovery"), section.findings)
        if strategy := inner.take("strategy"):
            inner.otherwise("strategy", f"`{strategy}`: every run is recovered, in the cheapest zone that has room")
        inner.drop({"recover_on_exit_codes": "all crashes count alike, see `[limits] crashes`"})
        restarts = inner.take("max_restarts_on_errors")
        inner.finish("SkyPilot's job_recovery")
        if isinstance(restarts, int) and not isinstance(restarts, bool):
            return {"crashes": max(1, restarts + 1)}
    elif value or before:
        field = "job_recovery" if value else "spot_recovery"
        section.otherwise(field, "every run is recovered, in the cheapest zone that has room")
    return {}
