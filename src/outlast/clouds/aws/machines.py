"""Instances in EC2's words and in ours: what a launch asks for, and what a description says. Calls nobody."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Mapping
from typing import Literal

from outlast.clouds.aws import price_table
from outlast.clouds.aws.client import tags, untagged
from outlast.clouds.aws.errors import Doc
from outlast.clouds.aws.userdata import pack
from outlast.clouds.cloud import LABEL_CLUSTER, LABEL_RUN, Boot, Machine, Offer, Status
from outlast.errors import BadRequest

TAG_NAME = "Name"
# On every instance of ours; without it an instance is somebody else's.
TAG_PRICE = "outlast-price"
TAG_MACHINE = "outlast-machine"
TAG_RAN = "outlast-ran-s"
TAG_IMAGE = "outlast-from"
TAG_SET = "outlast-set-"
TAG_KEY = "outlast-key-"
TAG_HOST_KEY = "outlast-host-key"
_OWN = (TAG_NAME, TAG_PRICE, TAG_MACHINE, TAG_RAN, TAG_IMAGE, TAG_HOST_KEY)

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
# Tags that an instance sees in its metadata have no other characters in their names.
_TAG_NAME = re.compile(r"[A-Za-z0-9+=.,_:@-]{1,100}")
_STATUS: dict[str, Status] = {
    "pending": "pending",
    "running": "running",
    "stopping": "stopping",
    "shutting-down": "stopping",
    "stopped": "stopped",
}
_WHEN = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        hint = "lower-case letters, digits and `-`, at most 63, a letter first"
        raise BadRequest(f"`{name}` cannot name a machine", hint=hint)


def check_tags(values: Mapping[str, str]) -> None:
    for name, value in values.items():
        if not _TAG_NAME.fullmatch(name) or name.startswith("aws:"):
            raise BadRequest(f"`{name}` cannot name a tag", hint="letters, digits and `+-=.,_:@`, at most 100")
        if len(value) > 256:
            raise BadRequest(
                f"the value of `{name}` has {len(value)} characters; a tag has 256", hint="make it shorter"
            )


def ends_when_off(labels: Mapping[str, str]) -> Literal["terminate", "stop"]:
    """One of a run or a cluster that switches itself off is done, and its disk would go on billing. People's stay."""
    return "terminate" if LABEL_RUN in labels or LABEL_CLUSTER in labels else "stop"


def launch_data(
    offer: Offer, name: str, *, boot: Boot, labels: Mapping[str, str], image: Doc, group: str, profile: str
) -> Doc:
    """What RunInstances and a launch template have in common. The same for the same machine, to the last byte."""
    check_tags(labels)
    root: Doc = next((disk for disk in image.get("BlockDeviceMappings", []) if "Ebs" in disk), {})
    size_gb = max(int(-(-boot.disk_gb // 1)), int(root.get("Ebs", {}).get("VolumeSize", 1)))
    own = {TAG_NAME: name, TAG_MACHINE: name, TAG_PRICE: f"{offer.price_usd_per_hour:.10g}"}
    every = {**labels, **own, TAG_IMAGE: str(image["Name"])}
    disk = {"VolumeSize": size_gb, "VolumeType": "gp3", "DeleteOnTermination": True}
    data: Doc = {
        "ImageId": image["ImageId"],
        "InstanceType": offer.type,
        "UserData": pack(boot),
        "SecurityGroupIds": [group],
        "InstanceInitiatedShutdownBehavior": ends_when_off(labels),
        "MetadataOptions": {
            "HttpTokens": "required",
            "HttpEndpoint": "enabled",
            "HttpPutResponseHopLimit": 2,
            "InstanceMetadataTags": "enabled",
        },
        "BlockDeviceMappings": [{"DeviceName": image.get("RootDeviceName") or "/dev/sda1", "Ebs": disk}],
        "TagSpecifications": [{"ResourceType": kind, "Tags": tags(every)} for kind in ("instance", "volume")],
    }
    if profile:
        data["IamInstanceProfile"] = {"Name": profile}
    return data


def spot_that_stays() -> Doc:
    """A spot machine that its owner can stop and start, and that is stopped, not ended, when it is wanted back."""
    options = {"SpotInstanceType": "persistent", "InstanceInterruptionBehavior": "stop"}
    return {"MarketType": "spot", "SpotOptions": options}


def is_spot(doc: Doc) -> bool:
    return doc.get("InstanceLifecycle") == "spot"


def labels_of(doc: Doc) -> dict[str, str]:
    hidden = ("aws:", TAG_SET, TAG_KEY)
    every = untagged(doc.get("Tags"))
    return {key: value for key, value in every.items() if key not in _OWN and not key.startswith(hidden)}


def read(doc: Doc, volumes: Mapping[str, Doc]) -> Machine:
    """The machine as its description says; `volumes` by id."""
    known = untagged(doc.get("Tags"))
    disks = [disk["Ebs"] for disk in doc.get("BlockDeviceMappings", []) if "Ebs" in disk]
    launched = _seconds(doc["LaunchTime"])
    # The launch time is that of the last boot; the disk is as old as the machine.
    created = min([launched, *(_seconds(disk["AttachTime"]) for disk in disks if "AttachTime" in disk)])
    size_gb = float(sum(volumes.get(str(disk.get("VolumeId")), {}).get("Size", 0) for disk in disks))
    status = _STATUS.get(str(doc["State"]["Name"]), "broken")
    told = _WHEN.search(str(doc.get("StateTransitionReason", "")))
    stopped = 0.0
    if status == "stopped":
        when = datetime.datetime.fromisoformat(told[1] + "+00:00").timestamp() if told else launched
        stopped = max(when, launched, created)
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
        disk_usd_per_hour=size_gb * price_table.GP3_USD_PER_GB_HOUR,
    )


def _seconds(when: datetime.datetime) -> float:
    return when.timestamp()


def _why(doc: Doc) -> str:
    reason = doc.get("StateReason") or {}
    if str(reason.get("Code", "")).startswith("Server.SpotInstance"):
        return "preempted"
    return str(reason.get("Message", ""))
