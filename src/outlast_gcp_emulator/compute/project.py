"""The project: its quotas, its service account, and the metadata that all its machines share."""

from __future__ import annotations

from collections.abc import Mapping

from outlast_gcp_emulator.compute.context import Call, Context
from outlast_gcp_emulator.compute.refs import GLOBAL, Doc, Ref, fingerprint, scope_link, stable_number
from outlast_gcp_emulator.errors import invalid

# The creation time of everything that Google provides.
CREATED_AT = "2014-05-30T18:35:16.413+00:00"
_QUOTAS = ("CPUS_ALL_REGIONS", "GPUS_ALL_REGIONS", "IMAGES", "NETWORKS", "SNAPSHOTS")


class ProjectResource:
    """Settings of projects. Every project exists."""

    def __init__(self, context: Context) -> None:
        self._store = context.store
        self._surroundings = context.surroundings

    def ref(self, project: str) -> Ref:
        """Return where the settings are stored; Google has no such resource."""
        return Ref(project, GLOBAL, "project", project)

    def metadata_items(self, project: str) -> list[Doc]:
        items: list[Doc] = (self._store.get(self.ref(project)) or {}).get("items", [])
        return items

    def common_metadata(self, project: str) -> dict[str, str]:
        """Return the attributes that all machines of a project share."""
        return {str(item["key"]): str(item.get("value", "")) for item in self.metadata_items(project)}

    def get(self, call: Call) -> Doc:
        return {
            "kind": "compute#project",
            "id": str(stable_number(call.project)),
            "creationTimestamp": CREATED_AT,
            "name": call.project,
            "commonInstanceMetadata": metadata_of(self.metadata_items(call.project)),
            "quotas": quotas(_QUOTAS, self._surroundings.now.quotas),
            "selfLink": scope_link(call.project, "").rstrip("/"),
            "defaultServiceAccount": service_account(call.project),
            "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
            "defaultNetworkTier": "PREMIUM",
        }


def quotas(metrics: tuple[str, ...], limits: Mapping[str, int]) -> list[Doc]:
    return [{"metric": metric, "limit": limits.get(metric, 1000000), "usage": 0} for metric in metrics]


def service_account(project: str) -> str:
    return f"{stable_number(project)}-compute@developer.gserviceaccount.com"


def metadata_of(items: list[Doc]) -> Doc:
    metadata: Doc = {"kind": "compute#metadata", "fingerprint": fingerprint(items)}
    return {**metadata, "items": items} if items else metadata


def check_items(items: object) -> list[Doc]:
    """Return metadata items as text. Raises ApiError for invalid or duplicate keys."""
    if not isinstance(items, list):
        raise invalid("Invalid value for field 'resource.items': expected a list.")
    for at, item in enumerate(items):
        if not isinstance(item, dict) or not isinstance(item.get("key"), str) or not item["key"]:
            raise invalid(f"Invalid value for field 'resource.items[{at}].key': expected a text.")
    keys = [item["key"] for item in items]
    if len(set(keys)) != len(keys):
        raise invalid("Invalid value for field 'resource.items': duplicate keys.")
    return [{"key": str(item["key"]), "value": str(item.get("value", ""))} for item in items]
