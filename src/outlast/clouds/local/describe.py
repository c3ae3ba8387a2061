"""A machine of the local cloud as values: its facts at creation, and its description from its files."""

from __future__ import annotations

import secrets as random
import time
from collections.abc import Mapping
from typing import Any, cast

from outlast.clouds.cloud import Boot, HostAccess, Machine, Offer, Status
from outlast.clouds.local import catalog
from outlast.clouds.local.folder import Folder


def facts_of(
    name: str, offer: Offer, boot: Boot, labels: Mapping[str, str], *, mode: str, layers: list[str]
) -> dict[str, Any]:
    """Return the facts of a new machine. The mode never changes: a disk is readable in its own mode only."""
    host = boot.host or HostAccess()
    return {
        "name": name,
        "id": random.randbits(62),
        "labels": dict(labels),
        "zone": offer.zone,
        "type": offer.type,
        "spot": offer.spot,
        "cpus": offer.cpus,
        "memory_gb": offer.memory_gb,
        "price_usd_per_hour": offer.price_usd_per_hour,
        "created_at": time.time(),
        "image": boot.image or catalog.BASE_IMAGE,
        "layers": layers,
        "disk_gb": boot.disk_gb,
        "ssh_keys": list(boot.ssh_keys),
        "writable": list(host.writable),
        "readable": list(host.readable),
        "software": list(host.software),
        "ports": list(host.ports),
        "mode": mode,
        "life_max_s": boot.life_max_s,
    }


def describe(folder: Folder) -> Machine | None:
    """Return the machine as it is now; None if it does not exist, or disappears during the reads."""
    found, facts = folder.status(), folder.facts()
    if found is None or facts is None:
        return None
    status, state = found
    disk_gb = facts.get("disk_gb", 0.0)
    return Machine(
        name=folder.name,
        cloud=catalog.CLOUD,
        # Facts are missing only if the file is damaged. Such a machine must be listed, so that it can be deleted.
        zone=facts.get("zone", ""),
        type=facts.get("type", ""),
        spot=facts.get("spot", False),
        status=cast(Status, status) if facts else "broken",
        labels=facts.get("labels", {}),
        created_at=facts.get("created_at", 0.0),
        price_usd_per_hour=facts.get("price_usd_per_hour", 0.0),
        stopped_at=state.get("stopped_at", 0.0) if status == "stopped" else 0.0,
        started_at=state.get("started_at", 0.0),
        ran_before_s=state.get("ran_before_s", 0.0),
        seen_at=time.time(),
        address=state.get("address", "") if status in ("running", "stopping") else "",
        why=state.get("why", ""),
        image=facts.get("image", ""),
        disk_gb=disk_gb,
        disk_usd_per_hour=disk_gb * catalog.DISK_USD_PER_GB_HOUR,
    )


def billed(machine: Machine) -> dict[str, float]:
    """Return the state that carries the billed time of earlier boots into a new one."""
    return {"started_at": time.time(), "ran_before_s": machine.ran_s}
