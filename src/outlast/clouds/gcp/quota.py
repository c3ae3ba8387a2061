"""Quotas that are used up, or were never given: the usual reason why a first run does not start. Only asks."""

from __future__ import annotations

from outlast.clouds.gcp.client import GcpClient, last

# Quota → what it limits. Of regions, those that new projects begin with at zero are not told: only what is in use.
_METRICS = {
    "CPUS": "processors",
    "PREEMPTIBLE_CPUS": "processors of spot machines",
    "GPUS_ALL_REGIONS": "GPUs, in all regions together",
    "INSTANCES": "machines",
    "IN_USE_ADDRESSES": "machines with an address of their own",
    "DISKS_TOTAL_GB": "GB of disks",
    "SSD_TOTAL_GB": "GB of SSD disks",
}
_ASK = "ask for more at https://console.cloud.google.com/iam-admin/quotas"
_NEAR = 0.9


def tight(client: GcpClient) -> list[tuple[str, str]]:
    """Quotas that are nearly used up, in words. Two requests. Raises a CloudError."""
    project = client.compute("GET", "", query={"fields": "quotas(metric,limit,usage)"}).doc
    found = _tight(project.get("quotas", []), "the project")
    fields = "items(name,quotas(metric,limit,usage)),nextPageToken"
    for page in client.pages("regions", query={"fields": fields}):
        for region in page.doc.get("items", []):
            found += _tight(region.get("quotas", []), last(region["name"]))
    return [(told, _ASK) for told in found]


def _tight(quotas: list[dict[str, object]], where: str) -> list[str]:
    told = []
    for quota in quotas:
        metric, limit, usage = str(quota.get("metric")), _number(quota.get("limit")), _number(quota.get("usage"))
        none_at_all = limit == 0 and metric == "GPUS_ALL_REGIONS"
        if metric in _METRICS and (none_at_all or (usage > 0 and usage >= limit * _NEAR)):
            told.append(f"quota {metric} ({_METRICS[metric]}) of {where}: {usage:g} of {limit:g} are used")
    return told


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
