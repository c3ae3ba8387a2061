"""The reader of an AWS node in a Ray cluster file: the supported fields of RunInstances. No IO."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from outlast.spec.cluster import NodeKind
from outlast.spec.reader import Reader, of, text

_AMI = re.compile(r"ami-[0-9a-f]{8,17}")
# Fields that work differently, with the difference.
_OTHERWISE = {
    "IamInstanceProfile": "machines are given the profile of `outlast setup aws`",
    "KeyName": "outlast connects with its own key",
    "TagSpecifications": "machines carry outlast's own tags",
    "EbsOptimized": "depends on the machine type",
}
_CANNOT = {
    **dict.fromkeys(
        ("SubnetId", "SubnetIds", "NetworkInterfaces", "PrivateIpAddress", "Ipv6Addresses"),
        "machines are in the default network of their zone",
    ),
    **dict.fromkeys(
        ("SecurityGroupIds", "SecurityGroups"), "machines are in the security group of `outlast setup aws`"
    ),
    **dict.fromkeys(("UserData",), "outlast sets the boot script; use `initialization_commands`"),
    **dict.fromkeys(("LaunchTemplate",), "its fields are unknown here; write them into the file"),
    **dict.fromkeys(
        ("Placement", "CpuOptions", "CreditSpecification", "HibernationOptions", "CapacityReservationSpecification"),
        "the machine type decides",
    ),
    **dict.fromkeys(("MetadataOptions", "Monitoring", "InstanceInitiatedShutdownBehavior"), "outlast sets it"),
    **dict.fromkeys(("MinCount", "MaxCount"), "use Ray's `min_workers` and `max_workers`"),
}
_EBS = ("VolumeSize", "VolumeType", "DeleteOnTermination", "Encrypted", "Iops", "Throughput")


def read_instance(reader: Reader, notes: list[str], base: NodeKind) -> NodeKind:
    """Read a kind of node. `base` has the fields that do not depend on the cloud, and the default of `spot`."""
    for field, how in _OTHERWISE.items():
        if reader.take(field, lambda value: value, None):
            notes.append(f"{reader.section}.{field}: {how}")
    for field, why in _CANNOT.items():
        if reader.take(field, lambda value: value, None) is not None:
            reader.wrong(field, f"not supported: {why}")
    given = _market(reader)
    kind = msgspec.structs.replace(
        base,
        type=reader.take("InstanceType", text, ""),
        disk_gb=_disk_gb(reader, notes),
        image=reader.take("ImageId", _image, ""),
        spot=base.spot if given is None else given,
    )
    reader.finish()
    return kind


def _image(value: Any) -> str:
    if not _AMI.fullmatch(text(value)):
        raise ValueError(f"invalid image {value!r}: expected e.g. `ami-0a2363a9cff180a64`")
    return text(value)


def _market(reader: Reader) -> bool | None:
    """Return whether the file asks for a spot machine; None if it does not say."""
    given: dict[str, Any] = reader.take("InstanceMarketOptions", of(dict), {})
    for field in given:
        if field == "SpotOptions" and given[field]:
            reader.wrong("InstanceMarketOptions", "SpotOptions is not supported: spot machines cost the market price")
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
        reader.wrong("BlockDeviceMappings", "not supported: machines have one disk")
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
