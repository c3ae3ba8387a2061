"""The conversion of SkyPilot's `resources` to `[machine]`: one of the alternatives in the file. No IO."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from outlast.spec.convert import Section, shown

OURS = ("gcp", "aws")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgtp])(?:i|b|ib)?)?(\+?)", re.IGNORECASE)
_GB = {"k": 1e-6, "m": 1e-3, "g": 1.0, "t": 1e3, "p": 1e6, "": 1.0}
_NO_COUNTERPART = {
    "disk_tier": "disks have the cloud's standard type",
    "network_tier": "machines are in the default network",
    "local_disk": "machines have a boot disk only",
    "ephemeral_storage": "machines have a boot disk only; see `disk`",
    "max_hourly_cost": "set `[limits] cost_usd` for the whole run; `outlast prices` lists prices per hour",
    "labels": "machines have outlast's labels only",
    "accelerator_args": "TPUs are not supported",
    "priority": "runs of a workspace have no priorities",
    "priority_class": "runs of a workspace have no priorities",
    "volumes": "disks of one machine; see `outlast volume` for shared file systems",
    "_cluster_config_overrides": "internal to SkyPilot",
}


def machine_of(section: Section) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of `[machine]` and of `[limits]`."""
    lists = [name for name in ("any_of", "ordered", "candidates") if section.table.get(name)]
    base = {field: value for field, value in section.table.items() if field not in lists}
    section.take("any_of")
    section.take("ordered")
    for name in lists[1:]:
        section.left_out(name, f"`{lists[0]}` is used instead")
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
    """Use the first alternative on a supported cloud, with the clouds, zones and spot settings of all of them."""
    clouds: list[str] = []
    zones: list[str] = []
    everywhere = False
    usable: list[tuple[Section, dict[str, Any]]] = []
    for index, table in enumerate(alternatives):
        inner = Section(table, f"{section.where}.{field}[{index}]", section.findings)
        if strangers := _unsupported_cloud(table):
            inner.left_out("infra" if "infra" in table else "cloud", f"cloud `{strangers}` is not supported")
            continue
        found, places = _place(inner)
        clouds += [cloud for cloud in found if cloud not in clouds]
        zones += [zone for zone in places if zone not in zones]
        everywhere |= not places
        usable.append((inner, table))
    section._taken |= set(section.table)
    if not usable:
        section.wrong(field, "none of these clouds is supported: expected gcp or aws")
        return {}, {}
    first, chosen = usable[0]
    machine, limits = _machine(first)
    spots = {bool(table.get("use_spot", False)) for _, table in usable}
    if spots == {True, False}:
        machine["spot"], machine["fallback"] = True, True
    for inner, table in usable[1:]:
        for name in sorted(set(table) | set(chosen)):
            if name not in ("infra", "cloud", "region", "zone", "use_spot") and table.get(name) != chosen.get(name):
                inner.left_out(name, f"a run has one kind of machine: {first.where}")
    return _with_place(section, machine, clouds, [*zones, "*"] if zones and everywhere else zones), limits


def _with_place(section: Section, machine: dict[str, Any], clouds: list[str], zones: list[str]) -> dict[str, Any]:
    if not clouds:
        clouds = list(OURS)
        if section.table.get("instance_type"):
            clouds = ["aws" if "." in str(section.table["instance_type"]) else "gcp"]
        section.otherwise(
            "infra", f"no cloud is set: using {', then '.join(clouds)}; change `[machine] cloud` if needed"
        )
    if len(clouds) > 1 and "type" in machine:
        section.left_out("instance_type", "no two clouds have the same machine types")
        del machine["type"]
    found: dict[str, Any] = {"cloud": clouds[0] if len(clouds) == 1 else clouds}
    return {**found, **machine, **({"zones": zones} if zones else {})}


def _unsupported_cloud(table: Mapping[str, Any]) -> str:
    """Return the cloud of this alternative if it is not supported."""
    cloud = str(table.get("infra") or table.get("cloud") or "").partition("/")[0].lower()
    return "" if cloud in ("", "*", *OURS) else cloud


def _place(section: Section) -> tuple[list[str], list[str]]:
    """Return clouds and zones; empty means any."""
    cloud, region, zone = section.take("cloud"), section.take("region"), section.take("zone")
    infra = section.take("infra")
    if isinstance(infra, str):
        parts = [None if part == "*" else part for part in infra.split("/")]
        cloud, region, zone = (*parts, None, None)[:3]
    clouds = [str(cloud).lower()] if cloud else []
    if clouds and clouds[0] not in OURS:
        section.wrong("infra" if infra else "cloud", f"unsupported cloud `{cloud}`: expected gcp or aws")
        return [], []
    given = zone or region
    zones = given if isinstance(given, list) else [given] if given else []
    return clouds, [str(item) for item in zones]


def _machine(section: Section) -> tuple[dict[str, Any], dict[str, Any]]:
    machine: dict[str, Any] = {}
    # In SkyPilot the default is on demand, in outlast it is spot.
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
            section.wrong("disk_size", f"expected a size, got {shown(size)}")
        else:
            machine["disk"] = f"{float(match[1]) * _GB[(match[2] or '').lower()]:g}GB"
    _image(section, machine)
    if section.take("autostop") not in (None, False):
        section.otherwise("autostop", "a machine is deleted as soon as its run ends")
    ports = section.take("ports")
    for port in ports if isinstance(ports, list) else [ports] if ports is not None else []:
        section.left_out("ports", f"no port is public; use `outlast tunnel RUN {port}`")
    limits = _recovery(section)
    section.drop(_NO_COUNTERPART)
    section.take("_no_missing_accel_warnings")
    section.finish("SkyPilot's resources")
    return machine, limits


def _cpus(section: Section, value: Any) -> Any:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(?:(\+)|-(\d+))?", str(value).strip())
    if match is None:
        section.wrong("cpus", f"expected a number of CPUs, got {shown(value)}")
        return None
    if float(match[1]) < 1:
        section.otherwise("cpus", "a machine has at least one CPU")
        return "1+"
    if match[3]:
        return f"{match[1]}..{match[3]}"
    return f"{match[1]}{match[2] or ''}"


def _memory(section: Section, value: Any) -> Any:
    size = str(value).strip()
    if re.fullmatch(r"\d+(?:\.\d+)?x", size):
        section.left_out("memory", f"`{size}` is a multiple of the CPUs; set it in GB")
        return None
    match = _SIZE.fullmatch(size)
    if match is None:
        section.wrong("memory", f"expected a size, got {shown(value)}")
        return None
    return f"{float(match[1]) * _GB[(match[2] or '').lower()]:g}GB{match[3]}"


def _gpu(section: Section) -> str | list[str]:
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
        section.wrong("accelerators", f"expected a GPU such as `A100:8`, got {shown(value)}")
        return ""
    tpus = [text for text in wanted if text.lower().startswith("tpu")]
    if tpus and len(tpus) < len(wanted):
        section.left_out("accelerators", f"TPUs are not supported: {', '.join(tpus)}")
        wanted = [text for text in wanted if text not in tpus]
    found = list(dict.fromkeys(one for text in wanted if (one := _one_gpu(section, text))))
    if len(found) > 1 and not tpus and not isinstance(value, list):
        section.otherwise("accelerators", f"tried in this order: {', '.join(found)}")
    return found[0] if len(found) == 1 else found


def _one_gpu(section: Section, text: str) -> str:
    kind, _, count = text.partition(":")
    if kind.lower().startswith("tpu"):
        section.wrong("accelerators", f"`{kind}`: TPUs are not supported")
        return ""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", kind) or not re.fullmatch(r"(\d+(\.\d+)?)?", count):
        section.wrong("accelerators", f"expected a GPU such as `A100:8`, got `{text}`")
        return ""
    number = float(count or 1)
    if number != int(number) or number < 1:
        section.otherwise("accelerators", f"`{text}`: rounded to whole GPUs")
    return f"{kind}:{max(1, int(number))}"


def _image(section: Section, machine: dict[str, Any]) -> None:
    image = section.take("image_id")
    if image in (None, ""):
        return
    if not isinstance(image, str):
        section.left_out("image_id", "a run has one image: set `[machine] image`, or build one with `[image]`")
    elif image.startswith("docker:"):
        machine["container"] = image.removeprefix("docker:")
    elif image.startswith("skypilot:"):
        section.left_out("image_id", f"`{image}` is an image of SkyPilot; the cloud's default image is used")
    else:
        machine["image"] = image


def _recovery(section: Section) -> dict[str, Any]:
    value = section.take("job_recovery")
    # SkyPilot's old name.
    before = section.take("spot_recovery")
    if isinstance(value, Mapping):
        inner = Section(value, section.name("job_recovery"), section.findings)
        if strategy := inner.take("strategy"):
            inner.otherwise("strategy", f"`{strategy}`: every run recovers in the cheapest zone with capacity")
        inner.drop({"recover_on_exit_codes": "all crashes count, see `[limits] crashes`"})
        restarts = inner.take("max_restarts_on_errors")
        inner.finish("SkyPilot's job_recovery")
        if isinstance(restarts, int) and not isinstance(restarts, bool):
            return {"crashes": max(1, restarts + 1)}
    elif value or before:
        field = "job_recovery" if value else "spot_recovery"
        section.otherwise(field, "every run recovers in the cheapest zone with capacity")
    return {}
