"""One node of a cluster file of Ray's on Amazon: the words of RunInstances, as far as they can be honoured. No IO."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from outlast.spec.cluster import NodeKind
from outlast.spec.reader import Reader, of, text

_AMI = re.compile(r"ami-[0-9a-f]{8,17}")
# What is done otherwise, with the way in which it is.
_OTHERWISE = {
    "IamInstanceProfile": "machines are given the profile of `outlast setup aws`",
    "KeyName": "machines are reached with outlast's own key",
    "TagSpecifications": "machines carry outlast's own tags",
    "EbsOptimized": "machines have it where their type has it",
}
_CANNOT = {
    **dict.fromkeys(
        ("SubnetId", "SubnetIds", "NetworkInterfaces", "PrivateIpAddress", "Ipv6Addresses"),
        "machines are in the default network of their zone",
    ),
    **dict.fromkeys(
        ("SecurityGroupIds", "SecurityGroups"), "machines are in the security group of `outlast setup aws`"
    ),
    **dict.fromkeys(("UserData",), "the boot script is outlast's own; use `initialization_commands`"),
    **dict.fromkeys(("LaunchTemplate",), "its fields cannot be seen from here; write them into the file"),
    **dict.fromkeys(
        ("Placement", "CpuOptions", "CreditSpecification", "HibernationOptions", "CapacityReservationSpecification"),
        "machines are what their type is",
    ),
    **dict.fromkeys(("MetadataOptions", "Monitoring", "InstanceInitiatedShutdownBehavior"), "outlast itself says that"),
    **dict.fromkeys(("MinCount", "MaxCount"), "Ray's `min_workers` and `max_workers` say how many"),
}
_EBS = ("VolumeSize", "VolumeType", "DeleteOnTermination", "Encrypted", "Iops", "Throughput")


def read_instance(
    reader: Reader,
    notes: list[str],
    *,
    name: str,
    zones: tuple[str, ...],
    spot: bool | None = None,
    low: int = 0,
    high: int = 0,
    has: dict[str, float] | None = None,
) -> NodeKind:
    """The kind of node; `spot` is what holds when the file says nothing; workers are spot then."""
    for field, how in _OTHERWISE.items():
        if reader.take(field, lambda value: value, None):
            notes.append(f"{reader.section}.{field}: {how}")
    for field, why in _CANNOT.items():
        if reader.take(field, lambda value: value, None) is not None:
            reader.wrong(field, f"cannot be honoured: {why}")
    said = _market(reader)
    kind = NodeKind(
        name=name,
        type=reader.take("InstanceType", text, ""),
        disk_gb=_disk_gb(reader, notes),
        image=reader.take("ImageId", _image, ""),
        zones=zones,
        spot=(name != "head" if spot is None else spot) if said is None else said,
        min=low,
        max=high,
        resources=has or {},
    )
    reader.finish()
    return kind


def _image(value: Any) -> str:
    if not _AMI.fullmatch(text(value)):
        raise ValueError(f"{value!r} is no image of Amazon's; expected one like `ami-0a2363a9cff180a64`, or none")
    return text(value)


def _market(reader: Reader) -> bool | None:
    """Whether it may be taken away."""
    given: dict[str, Any] = reader.take("InstanceMarketOptions", of(dict), {})
    for field in given:
        if field == "SpotOptions" and given[field]:
            reader.wrong(
                "InstanceMarketOptions", "SpotOptions cannot be honoured: spot machines cost what the market says"
            )
        elif field not in ("MarketType", "SpotOptions"):
            reader.wrong("InstanceMarketOptions", f"{field}: unknown field; known here: MarketType, SpotOptions")
    if not given:
        return None
    if given.get("MarketType") != "spot":
        reader.wrong("InstanceMarketOptions", f"MarketType: expected `spot`, got {given.get('MarketType')!r}")
    return True


def _disk_gb(reader: Reader, notes: list[str]) -> float:
    disks: list[Any] = reader.take("BlockDeviceMappings", of(list), [])
    if len(disks) > 1:
        reader.wrong("BlockDeviceMappings", "cannot be honoured: machines have one disk")
    for disk in disks[:1]:
        given = disk.get("Ebs") if isinstance(disk, Mapping) else None
        if not isinstance(given, Mapping):
            reader.wrong("BlockDeviceMappings", f"expected a disk with `Ebs`, got {disk!r}")
            continue
        for field in (*(f"{name}" for name in disk if name not in ("DeviceName", "Ebs")), *given):
            if field not in _EBS:
                reader.wrong("BlockDeviceMappings", f"{field}: unknown field; known here: {', '.join(_EBS)}")
            elif field in ("Iops", "Throughput", "VolumeType") and given[field] != "gp3":
                notes.append(f"{reader.section}.BlockDeviceMappings.{field}: disks are of type gp3")
        size = given.get("VolumeSize", 10)
        if isinstance(size, bool) or not isinstance(size, int | float) or size <= 0:
            reader.wrong("BlockDeviceMappings", f"VolumeSize: expected a number above zero, got {size!r}")
        else:
            return float(size)
    return 10.0
