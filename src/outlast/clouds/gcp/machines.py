"""Translates machines to and from Google's documents: the body of an insert, and an instance. Sends nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from outlast.clouds.cloud import LABEL_RUN, Boot, Machine, Offer, Status
from outlast.clouds.gcp import labels as label
from outlast.clouds.gcp.client import last
from outlast.clouds.gcp.errors import Doc
from outlast.clouds.gcp.network import interface
from outlast.clouds.gcp.offers import CLOUD
from outlast.clouds.gcp.prices import DISK_USD_PER_GB_HOUR, series_of
from outlast.clouds.gcp.types import accelerators
from outlast.spec.network import NetworkSpec

# The price at the launch, in millionths of a dollar per hour: it does not change when tables do.
LABEL_PRICE = "outlast-price"
# The billed seconds of all boots before the last one, which Google does not report.
LABEL_RAN = "outlast-ran"
TAG = "outlast-ssh"
# The fields of an instance in a listing. Without this mask, scripts in the metadata would be most of the answer.
FIELDS = (
    "id,name,zone,machineType,status,statusMessage,labels,labelFingerprint,creationTimestamp,lastStartTimestamp,"
    "lastStopTimestamp,scheduling(provisioningModel,preemptible,instanceTerminationAction,preemptionNoticeDuration),"
    "guestAccelerators,disks(source,diskSizeGb,boot),networkInterfaces(networkIP,accessConfigs/natIP)"
)
# The notice that we request for spot machines, and the one that Google gives without a request.
NOTICE_S, SHORT_NOTICE_S = 120, 30
# The agent reads here how long it has after a notice.
GRACE = "outlast-grace-s"
_NOTICE_FIELD = "preemptionNoticeDuration"
_LIFE_S_MIN, _LIFE_S_MAX = 30.0, 120 * 86400.0

_AUTH = "https://www.googleapis.com/auth/"
# The bucket, and Compute Engine, by which a machine deletes itself: the disk of a stopped one would still be billed.
# The roles of its account, which `outlast setup gcp` creates, allow nothing else.
_SCOPES = [f"{_AUTH}devstorage.read_write", f"{_AUTH}compute"]
# Secret Manager, Artifact Registry and impersonation of the machines' account have no narrower scope. Only machines of
# runs with secrets or with such a container, and the supervisor machine get it.
_SCOPES_WIDE = [f"{_AUTH}cloud-platform"]

_STATUS: dict[str, Status] = {
    "PENDING": "pending",
    "PROVISIONING": "pending",
    "STAGING": "pending",
    "RUNNING": "running",
    "PENDING_STOP": "stopping",
    "STOPPING": "stopping",
    "SUSPENDING": "stopping",
    "DEPROVISIONING": "stopping",
    "TERMINATED": "stopped",
    "STOPPED": "stopped",
    "SUSPENDED": "stopped",
    "REPAIRING": "broken",
}


def insert_body(
    offer: Offer, name: str, *, boot: Boot, labels: Mapping[str, str], image: str, account: str, user: str
) -> Doc:
    """Return the body of the request that creates a machine."""
    zone, network = f"zones/{offer.zone}", boot.network or NetworkSpec()
    labels = {**network.labels, **labels}
    own = {**labels, LABEL_PRICE: str(round(offer.price_usd_per_hour * 1e6))}
    disk = {
        "sourceImage": image,
        "diskSizeGb": str(math.ceil(boot.disk_gb)),
        "diskType": f"{zone}/diskTypes/{_disk_type(offer.type)}",
        "labels": label.encode_all(labels),
    }
    body: Doc = {
        "name": name,
        "machineType": f"{zone}/machineTypes/{offer.type}",
        "labels": label.encode_all(own),
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": disk}],
        "networkInterfaces": [interface(network, offer.zone)],
        "metadata": {"items": items_of(metadata_of(offer, boot, user=user))},
        "scheduling": scheduling(offer, boot, run=LABEL_RUN in labels),
        "tags": {"items": [TAG, *network.tags]},
    }
    if boot.reservation:
        own_name = {"key": "compute.googleapis.com/reservation-name", "values": [boot.reservation]}
        body["reservationAffinity"] = {"consumeReservationType": "SPECIFIC_RESERVATION", **own_name}
    if network.encryption_key:
        body["disks"][0]["diskEncryptionKey"] = {"kmsKeyName": network.encryption_key}
    if account:
        wide = "outlast-secrets" in boot.metadata or boot.rights == "supervisor" or _own_registry(boot)
        body["serviceAccounts"] = [{"email": account, "scopes": _SCOPES_WIDE if wide else _SCOPES}]
    if offer.gpus and series_of(offer.type) == "n1":
        accelerator = (*accelerators(offer.gpu), offer.gpu)[0]
        body["guestAccelerators"] = [
            {"acceleratorType": f"{zone}/acceleratorTypes/{accelerator}", "acceleratorCount": offer.gpus}
        ]
    return body


def bulk_body(body: Doc, names: Sequence[str]) -> Doc:
    """Return the body of a request that creates all machines of these names or none, from that of one machine.

    The properties of a bulk request contain names of types instead of their paths.
    """
    common = {key: value for key, value in body.items() if key != "name"}
    common["machineType"] = last(body["machineType"])
    (disk,) = body["disks"]
    new = {**disk["initializeParams"], "diskType": last(disk["initializeParams"]["diskType"])}
    common["disks"] = [{**disk, "initializeParams": new}]
    if "guestAccelerators" in body:
        common["guestAccelerators"] = [
            {**one, "acceleratorType": last(one["acceleratorType"])} for one in body["guestAccelerators"]
        ]
    count = str(len(names))
    named: Doc = {name: {} for name in names}
    return {"count": count, "minCount": count, "perInstanceProperties": named, "instanceProperties": common}


def _own_registry(boot: Boot) -> bool:
    """Return whether a machine runs a container from Artifact Registry, which has no narrower scope."""
    host = boot.metadata.get("outlast-container", "").partition("/")[0]
    return f".{host}".endswith(("-docker.pkg.dev", ".gcr.io"))


def _disk_type(type: str) -> str:
    # The newer series support nothing else.
    newer = series_of(type) in ("n4", "c4", "c4a", "c4d", "n4a", "n4d", "a4", "g4") or type.startswith("a3-ultragpu")
    return "hyperdisk-balanced" if newer else "pd-balanced"


def scheduling(offer: Offer, boot: Boot, *, run: bool) -> Doc:
    """Return the scheduling rules of a machine.

    A run's machine holds nothing that the workspace lacks. When it is preempted or reaches its maximum lifetime, Google
    deletes it, so that it costs nothing even without a supervisor. A user's machine is only stopped.
    """
    rules: Doc = {"automaticRestart": not offer.spot and not run}
    if offer.spot:
        rules |= {"provisioningModel": "SPOT", "onHostMaintenance": "TERMINATE"}
        rules[_NOTICE_FIELD] = {"seconds": str(NOTICE_S)}
    elif offer.gpus:
        rules |= {"provisioningModel": "STANDARD", "onHostMaintenance": "TERMINATE"}
    else:
        rules |= {"provisioningModel": "STANDARD", "onHostMaintenance": "MIGRATE"}
    if boot.life_max_s:
        seconds = min(max(boot.life_max_s, _LIFE_S_MIN), _LIFE_S_MAX)
        rules["maxRunDuration"] = {"seconds": str(int(seconds))}
    if offer.spot or boot.life_max_s:
        rules["instanceTerminationAction"] = "DELETE" if run else "STOP"
    return rules


def with_short_notice(body: Doc) -> Doc:
    """Return the body of an insert without the longer notice, which some machine series may not have."""
    rules = {name: value for name, value in body["scheduling"].items() if name != _NOTICE_FIELD}
    items = [item for item in body["metadata"]["items"] if item["key"] != GRACE]
    return {**body, "scheduling": rules, "metadata": {"items": items}}


def refuses_notice(message: str) -> bool:
    """Return whether an error names the longer notice."""
    return _NOTICE_FIELD.lower() in message.lower()


def granted_notice_s(doc: Doc) -> int:
    """Return the notice that Google stored with a spot machine."""
    return int(doc.get("scheduling", {}).get(_NOTICE_FIELD, {}).get("seconds", 0)) or SHORT_NOTICE_S


def metadata_of(offer: Offer, boot: Boot, *, user: str) -> dict[str, str]:
    # Clients read the host keys of the machine's ssh server from its guest attributes.
    found = {"enable-guest-attributes": "TRUE", **boot.metadata}
    if offer.spot:
        # A launch corrects it if Google stored another one. If the machine shuts down sooner, systemd stops the agent.
        found[GRACE] = str(NOTICE_S)
    if boot.script:
        found["startup-script"] = boot.script
    if boot.ssh_keys:
        found["ssh-keys"] = "\n".join(f"{user}:{key.strip()}" for key in boot.ssh_keys)
    return found


def items_of(metadata: Mapping[str, str]) -> list[Doc]:
    return [{"key": key, "value": value} for key, value in sorted(metadata.items())]


def read_items(doc: Doc) -> dict[str, str]:
    """Return the metadata of an instance."""
    return {str(item["key"]): str(item.get("value", "")) for item in doc.get("metadata", {}).get("items", [])}


def read(doc: Doc, *, seen_at: float, price_usd_per_hour: float, why: str = "") -> Machine:
    """Return an instance as a machine; `price_usd_per_hour` is for one without a price label."""
    given = dict(doc.get("labels", {}))
    promised, ran = given.pop(LABEL_PRICE, ""), given.pop(LABEL_RAN, "")
    status = _STATUS.get(str(doc.get("status")), "broken")
    created_at, started_at = when(doc.get("creationTimestamp")), when(doc.get("lastStartTimestamp"))
    stopped_at = when(doc.get("lastStopTimestamp")) if status == "stopped" else 0.0
    disk_gb = sum(float(disk.get("diskSizeGb", 0)) for disk in doc.get("disks", []))
    return Machine(
        name=str(doc["name"]),
        cloud=CLOUD,
        zone=last(doc.get("zone")),
        type=last(doc.get("machineType")),
        spot=is_spot(doc),
        status=status,
        labels=label.decode_all(given),
        created_at=created_at,
        price_usd_per_hour=int(promised) / 1e6 if promised.isdigit() else price_usd_per_hour,
        # A stopped machine without a stop time was stopped before it started.
        stopped_at=stopped_at or (created_at if status == "stopped" else 0.0),
        started_at=started_at if ran else 0.0,
        ran_before_s=float(ran) if ran.isdigit() else 0.0,
        seen_at=seen_at,
        address=_address(doc),
        why=why or str(doc.get("statusMessage", "")),
        disk_gb=disk_gb,
        disk_usd_per_hour=disk_gb * DISK_USD_PER_GB_HOUR,
    )


def age_key(doc: Doc) -> tuple[float, str]:
    """Return a sort key by age that is the same in every process."""
    return when(doc.get("creationTimestamp")), str(doc.get("id", ""))


def is_spot(doc: Doc) -> bool:
    rules = doc.get("scheduling", {})
    return rules.get("provisioningModel") == "SPOT" or bool(rules.get("preemptible"))


def accelerators_of(doc: Doc) -> tuple[str, int]:
    for one in doc.get("guestAccelerators", []):
        return last(one.get("acceleratorType")), int(one.get("acceleratorCount", 0))
    return "", 0


def _address(doc: Doc) -> str:
    """Return the public address, else the private one."""
    inner = ""
    for network in doc.get("networkInterfaces", []):
        for config in network.get("accessConfigs", []):
            if config.get("natIP"):
                return str(config["natIP"])
        inner = inner or str(network.get("networkIP", ""))
    return inner


def when(text: Any) -> float:
    """Return a timestamp as seconds since 1970; 0 if it is missing."""
    try:
        return datetime.fromisoformat(str(text)).timestamp() if text else 0.0
    except ValueError:
        return 0.0
