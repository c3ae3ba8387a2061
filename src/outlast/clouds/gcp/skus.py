"""Reads Google's billing catalogue: which SKU is the price of a CPU, a GB of memory or a GPU of which family.

A SKU is identified by its resource group (CPU, RAM, GPU), its usage type and its description. The descriptions of
about 30 families follow five patterns; all others, such as commitments and reservations, are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal

# How a machine is billed: on demand, spot, or queued for a limited time (Google's flex-start).
Billing = Literal["on-demand", "spot", "flex"]
_SPOT, _FLEX = "Spot Preemptible ", "DWS Defined Duration "
# After the name of a GPU.
_ATTACHED = {"attached to Spot Preemptible VMs ": "spot", "attached to DWS Defined Duration VMs ": "flex"}
_FAMILY = re.compile(
    r"([A-Z]\d+[A-Z]?|Compute optimized|Memory-optimized|M3 Memory-optimized)(?: AMD| Arm| Arm64)?(?: Predefined)?"
    r"(?: Instance)? (?:Core|Ram|RAM)",
    re.IGNORECASE,
)
_SERIES = {"compute optimized": "c2", "memory-optimized": "m1", "m3 memory-optimized": "m3"}
# Start of a GPU's description → Google's name of the accelerator. Longer names come before their beginnings.
_GPUS = (
    ("Nvidia Tesla K80 GPU", "nvidia-tesla-k80"),
    ("Nvidia Tesla P4 GPU", "nvidia-tesla-p4"),
    ("Nvidia Tesla T4 GPU", "nvidia-tesla-t4"),
    ("Nvidia Tesla P100 GPU", "nvidia-tesla-p100"),
    ("Nvidia Tesla V100 GPU", "nvidia-tesla-v100"),
    ("Nvidia L4 GPU", "nvidia-l4"),
    ("Nvidia Tesla A100 80GB GPU", "nvidia-a100-80gb"),
    ("Nvidia Tesla A100 GPU", "nvidia-tesla-a100"),
    ("Nvidia H100 80GB Mega GPU", "nvidia-h100-mega-80gb"),
    ("Nvidia H100 80GB Plus GPU", "nvidia-h100-mega-80gb"),
    ("Nvidia H100 80GB GPU", "nvidia-h100-80gb"),
    ("Nvidia H200 141GB GPU", "nvidia-h200-141gb"),
    ("H200 141GB GPU", "nvidia-h200-141gb"),
    # The slice holds CPUs and memory, too.
    ("A4 Nvidia B200 (1 gpu slice)", "nvidia-b200"),
    ("Nvidia B200 GPU", "nvidia-b200"),
    ("RTX 6000 96GB", "nvidia-rtx-pro-6000"),
    ("Nvidia RTX PRO 6000 GPU", "nvidia-rtx-pro-6000"),
)
# Groups whose descriptions could be taken for machines.
_OTHER_GROUPS = ("LocalSSD", "SSD", "PdCapacity", "Licenses", "TPU")
# Types with a price of their own.
_WHOLE = {
    "Micro Instance with burstable CPU": "f1-micro",
    "Small Instance with 1 VCPU": "g1-small",
}


def read_skus(skus: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Return `us-central1/n2/cpu/spot` → USD per hour, for the SKUs that are known."""
    found: dict[str, float] = {}
    for sku in skus:
        category = sku.get("category", {})
        usage = str(category.get("usageType"))
        if category.get("resourceFamily") != "Compute" or usage not in ("OnDemand", "Preemptible"):
            continue
        named, price = identify(str(sku.get("description", "")), str(category.get("resourceGroup", ""))), _price(sku)
        if named is None or price is None or (named[2] == "spot") != (usage == "Preemptible"):
            continue
        for region in sku.get("serviceRegions", []):
            found[key(str(region), *named)] = price
    return found


def key(region: str, family: str, part: str, billing: Billing) -> str:
    return f"{region}/{family}/{part}/{billing}"


def identify(description: str, group: str = "") -> tuple[str, str, Billing] | None:
    """Return family, part (`cpu`, `memory`, `gpu`, `whole`) and billing of a description; None for another SKU."""
    what, running, _ = description.partition("running in ")
    if not running or group in _OTHER_GROUPS:
        return None
    return _gpu(what) or (_machine(what) if group != "GPU" else None)


def _gpu(what: str) -> tuple[str, str, Billing] | None:
    for start, accelerator in _GPUS:
        rest = what.removeprefix(start).lstrip()
        if what.startswith(start) and rest in ("", *_ATTACHED):
            billing: Billing = "on-demand" if not rest else "spot" if _ATTACHED[rest] == "spot" else "flex"
            return accelerator, "gpu", billing
    return None


def _machine(what: str) -> tuple[str, str, Billing] | None:
    billing: Billing = "spot" if what.startswith(_SPOT) else "flex" if what.startswith(_FLEX) else "on-demand"
    what = what.removeprefix(_SPOT).removeprefix(_FLEX).strip()
    if what in _WHOLE:
        return _WHOLE[what], "whole", billing
    if (match := _FAMILY.fullmatch(what)) is None:
        return None
    series = _SERIES.get(match[1].lower(), match[1].lower())
    return series, "memory" if what.lower().endswith("ram") else "cpu", billing


def _price(sku: dict[str, Any]) -> float | None:
    try:
        rate = sku["pricingInfo"][-1]["pricingExpression"]["tieredRates"][-1]["unitPrice"]
        price = float(rate.get("units", 0)) + float(rate.get("nanos", 0)) / 1e9
    except (KeyError, IndexError, TypeError, ValueError):
        return None
    # Placeholders of reservations cost nothing.
    return price or None
