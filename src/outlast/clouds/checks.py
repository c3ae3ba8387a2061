"""Findings of the set-up checks of remote clouds: their form, and the cost of bucket settings."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.clouds.cloud import SetupCheck
from outlast.clouds.resources import HOURS_PER_MONTH

# A problem, and its fix.
Finding = tuple[str, str]
# The amount of checkpoints for which the cost of a bucket's settings is stated: 5 GB every half an hour.
_GB_PER_HOUR = 10.0
_AT = f"at {_GB_PER_HOUR:g} GB of checkpoints per hour"


def rows(name: str, findings: Sequence[Finding], *, fine: str) -> list[SetupCheck]:
    """Return a warning for each finding; without any, that all is fine."""
    found = [SetupCheck(name=name, state="warning", text=text, fix=fix) for text, fix in findings]
    return found or [SetupCheck(name=name, state="ok", text=fine)]


def kept_deleted(url: str, kept_s: float, *, usd_per_gb_month: float) -> str:
    """Describe the cost of a bucket that keeps deleted objects for a time."""
    usd = _GB_PER_HOUR * kept_s / 3600.0 * usd_per_gb_month
    return f"{url} bills deleted objects for {kept_s / 86400:g} more days: ${usd:,.0f} per month {_AT}"


def replicated(url: str, where: str, *, usd_per_gb: float) -> str:
    """Describe the cost of a bucket that copies every object to other regions."""
    usd = _GB_PER_HOUR * HOURS_PER_MONTH * usd_per_gb
    return f"{url} is in {where}: replication costs ${usd:,.0f} per month {_AT}"


def kept_forever(url: str, *, usd_per_gb_month: float) -> str:
    """Describe the cost of a bucket that keeps old versions of objects."""
    usd = _GB_PER_HOUR * HOURS_PER_MONTH * usd_per_gb_month
    return f"{url} keeps deleted objects as old versions: the bill grows by ${usd:,.0f} per month {_AT}"


def parts_stay(url: str, *, usd_per_gb_month: float) -> str:
    """Describe the cost of a bucket in which the parts of interrupted uploads stay."""
    text = "parts of interrupted uploads stay, are never listed"
    return f"{url}: {text} and cost ${usd_per_gb_month:.3f} per GB and month"
