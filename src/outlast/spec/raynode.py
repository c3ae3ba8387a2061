"""The reader of a GCP node in a Ray cluster file: the supported fields of an instance. No IO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from outlast.spec.cluster import NodeKind
from outlast.spec.reader import Reader, of, text

_GPUS = ("nvidia-tesla-", "nvidia-")
_SCHEDULING = (
    *("preemptible", "provisioningModel", "onHostMaintenance", "automaticRestart"),
    "instanceTerminationAction",
)


def read_machine(reader: Reader, notes: list[str], base: NodeKind) -> NodeKind:
    """Read a kind of node. `base` has the fields that do not depend on the cloud, and the default of `spot`."""
    disk_gb, image = _disk(reader)
    gpu, gpus = _accelerators(reader)
    given = _spot(reader)
    if reader.take("serviceAccounts", lambda value: value, None):
        notes.append(f"{reader.section}.serviceAccounts: machines use the account of `outlast setup gcp`")
    for field in ("networkInterfaces", "minCpuPlatform"):
        if reader.take(field, lambda value: value, None):
            reader.wrong(field, "not supported: machines are in the default network, on any CPU platform")
    for field in ("labels", "tags"):
        if reader.take(field, lambda value: value, None):
            notes.append(f"{reader.section}.{field}: machines carry outlast's labels and tags")
    kind = msgspec.structs.replace(
        base,
        type=reader.take("machineType", _last, ""),
        gpu=gpu,
        gpus=gpus,
        disk_gb=disk_gb,
        image=image,
        spot=base.spot if given is None else given,
        metadata=_metadata(reader),
    )
    reader.finish()
    return kind


def _last(value: Any) -> str:
    return text(value).rstrip("/").rpartition("/")[2]


def _disk(reader: Reader) -> tuple[float, str]:
    disks: list[Any] = reader.take("disks", of(list), [])
    if len(disks) > 1:
        reader.wrong("disks", "not supported: machines have one disk")
    size_gb, image = 10.0, ""
    for disk in disks[:1]:
        given = disk.get("initializeParams", {}) if isinstance(disk, Mapping) else None
        if not isinstance(given, Mapping):
            reader.wrong("disks", f"expected a disk with `initializeParams`, got {disk!r}")
            continue
        size = given.get("diskSizeGb", 10)
        if isinstance(size, bool) or not isinstance(size, int | float) or size <= 0:
            reader.wrong("disks", f"diskSizeGb: expected a number above zero, got {size!r}")
        else:
            size_gb = float(size)
        source = given.get("sourceImage", "")
        if not isinstance(source, str):
            reader.wrong("disks", f"sourceImage: expected text, got {source!r}")
        else:
            image = source.partition("/compute/v1/")[2] or source
        for field in given:
            if field not in ("diskSizeGb", "sourceImage", "diskType"):
                reader.wrong("disks", f"initializeParams.{field}: unknown field")
    return size_gb, image


def _accelerators(reader: Reader) -> tuple[str, int]:
    listed: list[Any] = reader.take("guestAccelerators", of(list), [])
    if len(listed) > 1:
        reader.wrong("guestAccelerators", "not supported: a machine has one kind of GPU")
    for one in listed[:1]:
        kind, count = (one.get("acceleratorType"), one.get("acceleratorCount")) if isinstance(one, Mapping) else ("", 0)
        if not isinstance(kind, str) or not kind or isinstance(count, bool) or not isinstance(count, int) or count < 1:
            reader.wrong("guestAccelerators", f"expected acceleratorType and acceleratorCount, got {one!r}")
            continue
        short = kind.rpartition("/")[2]
        for prefix in _GPUS:
            short = short.removeprefix(prefix)
        return short.upper(), count
    return "", 0


def _spot(reader: Reader) -> bool | None:
    """Return whether the file asks for a spot machine; None if it does not say. Old files have a list of tables."""
    if "scheduling" not in reader.table:
        return None
    given = reader.take("scheduling", lambda value: value, None)
    tables = given if isinstance(given, list) else [given]
    found: dict[str, Any] = {}
    for table in tables:
        if not isinstance(table, Mapping):
            reader.wrong("scheduling", f"expected a table, got {table!r}")
            continue
        found |= dict(table)
    for field, value in found.items():
        if field not in _SCHEDULING:
            reader.wrong("scheduling", f"{field}: unknown field; known here: {', '.join(_SCHEDULING)}")
        elif field in ("preemptible", "automaticRestart") and not isinstance(value, bool):
            reader.wrong("scheduling", f"{field}: expected true or false, got {value!r}")
    return found.get("preemptible") is True or found.get("provisioningModel") == "SPOT"


def _metadata(reader: Reader) -> dict[str, str]:
    given: dict[str, Any] = reader.take("metadata", of(dict), {})
    found: dict[str, str] = {}
    items = given.get("items", [])
    if not isinstance(items, list):
        reader.wrong("metadata", f"items: expected a list, got {items!r}")
        items = []
    for item in items:
        if not isinstance(item, Mapping) or not isinstance(item.get("key"), str):
            reader.wrong("metadata", f"expected an item with `key` and `value`, got {item!r}")
            continue
        if item["key"] == "startup-script" or item["key"].startswith("outlast-"):
            reader.wrong("metadata", f"`{item['key']}` is reserved; use `initialization_commands`")
            continue
        found[item["key"]] = str(item.get("value", ""))
    return found
