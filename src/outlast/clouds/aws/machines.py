"""Translates machines to and from EC2's documents: launch parameters, and descriptions of instances. Calls nothing."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Mapping
from typing import Literal

from outlast.clouds.aws.client import read_tags, tags
from outlast.clouds.aws.errors import Doc
from outlast.clouds.aws.price_figures import GP3_USD_PER_GB_HOUR
from outlast.clouds.aws.userdata import pack
from outlast.clouds.cloud import LABEL_CLUSTER, LABEL_RUN, Boot, Machine, Offer, Status
from outlast.errors import BadRequest

TAG_NAME = "Name"
# On every instance of outlast, and on no other.
TAG_PRICE = "outlast-price"
TAG_MACHINE = "outlast-machine"
TAG_RAN = "outlast-ran-s"
# On the instances that one request launched together, and on their fleet.
TAG_FLEET = "outlast-fleet"
TAG_DELETED = "outlast-deleted"
TAG_IMAGE = "outlast-from"
TAG_SET = "outlast-set-"
TAG_KEY = "outlast-key-"
TAG_HOST_KEY = "outlast-host-key"
_OWN = (TAG_DELETED, TAG_FLEET, TAG_NAME, TAG_PRICE, TAG_MACHINE, TAG_RAN, TAG_IMAGE, TAG_HOST_KEY)

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
# EC2 allows only these characters in names of tags that an instance reads in its metadata.
_TAG_NAME = re.compile(r"[A-Za-z0-9+=.,_:@-]{1,100}")
_STATUS: dict[str, Status] = {
    "pending": "pending",
    "running": "running",
    "stopping": "stopping",
    "shutting-down": "stopping",
    "stopped": "stopped",
    # Listed only for machines of runs that ended by themselves.
    "terminated": "stopped",
}
_WHEN = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        hint = "use lower-case letters, digits and `-`, at most 63, a letter first"
        raise BadRequest(f"invalid machine name `{name}`", hint=hint)


def check_tags(values: Mapping[str, str]) -> None:
    for name, value in values.items():
        if not _TAG_NAME.fullmatch(name) or name.startswith("aws:"):
            raise BadRequest(f"invalid tag name `{name}`", hint="use letters, digits and `+-=.,_:@`, at most 100")
        if len(value) > 256:
            raise BadRequest(
                f"the value of tag `{name}` has {len(value)} characters; the limit is 256", hint="shorten it"
            )


def price_text(usd_per_hour: float) -> str:
    return f"{usd_per_hour:.10g}"


def shutdown_behavior(labels: Mapping[str, str]) -> Literal["terminate", "stop"]:
    """Return the effect of a power-off: it terminates machines of runs and clusters, so that no disk is billed."""
    return "terminate" if LABEL_RUN in labels or LABEL_CLUSTER in labels else "stop"


def launch_data(
    offer: Offer, name: str, *, boot: Boot, labels: Mapping[str, str], image: Doc, groups: list[str], profile: str
) -> Doc:
    """Return the parameters common to RunInstances and launch templates. Deterministic, for the idempotency token."""
    check_tags(labels)
    root: Doc = next((disk for disk in image.get("BlockDeviceMappings", []) if "Ebs" in disk), {})
    size_gb = max(int(-(-boot.disk_gb // 1)), int(root.get("Ebs", {}).get("VolumeSize", 1)))
    own = {TAG_NAME: name, TAG_MACHINE: name, TAG_PRICE: price_text(offer.price_usd_per_hour)}
    cost_tags = boot.network.labels if boot.network is not None else {}
    all_tags = {**cost_tags, **labels, **own, TAG_IMAGE: str(image["Name"])}
    disk = {"VolumeSize": size_gb, "VolumeType": "gp3", "DeleteOnTermination": True}
    if boot.network is not None and boot.network.encryption_key:
        disk |= {"Encrypted": True, "KmsKeyId": boot.network.encryption_key}
    data: Doc = {
        "ImageId": image["ImageId"],
        "InstanceType": offer.type,
        "UserData": pack(boot),
        "SecurityGroupIds": groups,
        "InstanceInitiatedShutdownBehavior": shutdown_behavior(labels),
        "MetadataOptions": {
            "HttpTokens": "required",
            "HttpEndpoint": "enabled",
            "HttpPutResponseHopLimit": 2,
            "InstanceMetadataTags": "enabled",
        },
        "BlockDeviceMappings": [{"DeviceName": image.get("RootDeviceName") or "/dev/sda1", "Ebs": disk}],
        "TagSpecifications": [{"ResourceType": kind, "Tags": tags(all_tags)} for kind in ("instance", "volume")],
    }
    if boot.reservation:
        kind = "CapacityReservationResourceGroupArn" if boot.reservation.startswith("arn:") else "CapacityReservationId"
        data["CapacityReservationSpecification"] = {"CapacityReservationTarget": {kind: boot.reservation}}
    if profile:
        data["IamInstanceProfile"] = {"Name": profile}
    return data


def persistent_spot() -> Doc:
    """Return options of a spot machine that can be stopped and started, and that a preemption only stops."""
    options = {"SpotInstanceType": "persistent", "InstanceInterruptionBehavior": "stop"}
    return {"MarketType": "spot", "SpotOptions": options}


def one_time_spot() -> Doc:
    """Return options of a spot machine of a run, for accounts that may not have fleets."""
    return {
        "MarketType": "spot",
        "SpotOptions": {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"},
    }


def is_spot(doc: Doc) -> bool:
    return doc.get("InstanceLifecycle") == "spot"


def labels_of(doc: Doc) -> dict[str, str]:
    hidden = ("aws:", TAG_SET, TAG_KEY)
    known = read_tags(doc.get("Tags"))
    return {key: value for key, value in known.items() if key not in _OWN and not key.startswith(hidden)}


def read(doc: Doc, volumes: Mapping[str, Doc]) -> Machine:
    """Return an instance as a machine; `volumes` are documents by id."""
    known = read_tags(doc.get("Tags"))
    disks = [disk["Ebs"] for disk in doc.get("BlockDeviceMappings", []) if "Ebs" in disk]
    launched = _seconds(doc["LaunchTime"])
    # The launch time is that of the last boot. The disk is as old as the machine.
    created = min([launched, *(_seconds(disk["AttachTime"]) for disk in disks if "AttachTime" in disk)])
    size_gb = float(sum(volumes.get(str(disk.get("VolumeId")), {}).get("Size", 0) for disk in disks))
    status = _STATUS.get(str(doc["State"]["Name"]), "broken")
    stopped = max(ended_at(doc), created) if status == "stopped" else 0.0
    return Machine(
        name=known.get(TAG_NAME, str(doc["InstanceId"])),
        cloud="aws",
        zone=str(doc.get("Placement", {}).get("AvailabilityZone", "")),
        type=str(doc["InstanceType"]),
        spot=is_spot(doc),
        status=status,
        labels=labels_of(doc),
        created_at=created,
        price_usd_per_hour=float(known.get(TAG_PRICE) or 0.0),
        stopped_at=stopped,
        started_at=launched if TAG_RAN in known else 0.0,
        ran_before_s=float(known.get(TAG_RAN) or 0.0),
        seen_at=time.time(),
        address=str(doc.get("PublicIpAddress") or doc.get("PrivateIpAddress") or "") if status == "running" else "",
        why=_why(doc),
        image=known.get(TAG_IMAGE, str(doc.get("ImageId", ""))),
        disk_gb=size_gb,
        disk_usd_per_hour=size_gb * GP3_USD_PER_GB_HOUR,
    )


def ended_at(doc: Doc) -> float:
    """Return when an instance stopped or was terminated, as EC2 reports it; its launch time if EC2 does not."""
    found = _WHEN.search(str(doc.get("StateTransitionReason", "")))
    launched = _seconds(doc["LaunchTime"])
    return max(launched, datetime.datetime.fromisoformat(found[1] + "+00:00").timestamp()) if found else launched


def _seconds(when: datetime.datetime) -> float:
    return when.timestamp()


def _why(doc: Doc) -> str:
    reason = doc.get("StateReason") or {}
    if str(reason.get("Code", "")).startswith("Server.SpotInstance"):
        return "preempted"
    return str(reason.get("Message", ""))
