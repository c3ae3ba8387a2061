"""Volumes of Google Cloud: Filestore instances of the cheapest tier, in the machines' network."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress

from outlast.clouds.gcp import labels as label
from outlast.clouds.gcp.client import GcpClient, check_name, last
from outlast.clouds.gcp.errors import Doc
from outlast.clouds.gcp.network import shared_network
from outlast.clouds.gcp.operations import wait_filestore
from outlast.clouds.local.google_types import region_of
from outlast.clouds.resources import ResourceState, Volume
from outlast.errors import AlreadyExists, BadRequest, NotFound
from outlast.spec.network import network_of

CLOUD = "gcp"
_TIER, _SHARE, _ZONE = "BASIC_HDD", "share", "us-central1-a"
# The smallest size that Google sells.
_LEAST_GIB = 1024
_GIB = 2**30 / 1e9
# The list price in us-central1.
_USD_PER_GIB_MONTH = 0.16
_OPTIONS = "hard,timeo=600,retrans=3,rsize=524288,wsize=524288"
_STATES: Mapping[str, ResourceState] = {
    "CREATING": "creating",
    "READY": "ready",
    "DELETING": "deleting",
    "ERROR": "broken",
}


class GcpVolumes:
    """The volumes of one project. Any number of processes may use it at once."""

    def __init__(self, client: GcpClient) -> None:
        self.client = client

    def usd_per_month(self, size_gb: float) -> float:
        return _gib(size_gb) * _USD_PER_GIB_MONTH

    def create(self, name: str, *, size_gb: float, zone: str = "", labels: Mapping[str, str] | None = None) -> Volume:
        check_name(name, "volume")
        zone = zone or _ZONE
        body = {
            "tier": _TIER,
            "fileShares": [{"name": _SHARE, "capacityGb": str(_gib(size_gb))}],
            "networks": [self._network(zone)],
            "labels": label.encode_all(labels or {}),
        }
        path = f"{self._location(zone)}/instances"
        with suppress(AlreadyExists):  # an answer was lost, or an earlier creation was interrupted
            operation = self.client.call("file", "POST", path, query={"instanceId": name}, body=body).doc
            wait_filestore(self.client, operation, f"the volume {name}")
        return self.find(name)

    def list_all(self, labels: Mapping[str, str] | None = None) -> Sequence[Volume]:
        wanted = set(label.encode_all(labels or {}).items())
        return [_read(doc) for doc in self._docs() if wanted <= set(doc.get("labels", {}).items())]

    def find(self, name: str) -> Volume:
        return _read(self._doc(name))

    def resize(self, name: str, size_gb: float) -> Volume:
        doc = self._doc(name)
        share = doc["fileShares"][0]
        wanted = _gib(size_gb)
        if wanted < int(share["capacityGb"]):
            why = f"cannot shrink volume `{name}` from {share['capacityGb']} GiB to {wanted} GiB: its tier is {_TIER}"
            raise BadRequest(why)
        body = {"fileShares": [{"name": share["name"], "capacityGb": str(wanted)}]}
        answer = self.client.call("file", "PATCH", f"v1/{doc['name']}", query={"updateMask": "fileShares"}, body=body)
        wait_filestore(self.client, answer.doc, f"the volume {name}")
        return self.find(name)

    def delete(self, name: str) -> None:
        with suppress(NotFound):
            answer = self.client.call("file", "DELETE", f"v1/{self._doc(name)['name']}")
            wait_filestore(self.client, answer.doc, f"the volume {name}")

    def _location(self, location: str) -> str:
        return f"v1/projects/{self.client.project}/locations/{location}"

    def _network(self, zone: str) -> Doc:
        path = shared_network(self.client, network_of(CLOUD, os.environ), region_of(zone))
        own = path.removeprefix(f"projects/{self.client.project}/global/networks/")
        # Filestore takes the name of a network of its project; that of a host project needs private services access.
        access = {"connectMode": "PRIVATE_SERVICE_ACCESS"} if own == path else {}
        return {"network": own, "modes": ["MODE_IPV4"], **access}

    def _docs(self) -> Sequence[Doc]:
        found: list[Doc] = []
        token = ""
        while True:
            query = {"pageToken": token} if token else None
            answer = self.client.call("file", "GET", f"{self._location('-')}/instances", query=query).doc
            found += answer.get("instances", [])
            token = str(answer.get("nextPageToken", ""))
            if not token:
                return found

    def _doc(self, name: str) -> Doc:
        for doc in self._docs():
            if last(doc["name"]) == name:
                return doc
        raise NotFound(f"no Filestore instance `{name}` in project `{self.client.project}`")


def _gib(size_gb: float) -> int:
    return max(_LEAST_GIB, math.ceil(size_gb / _GIB))


def _read(doc: Doc) -> Volume:
    share, networks = (doc.get("fileShares") or [{}])[0], doc.get("networks") or [{}]
    addresses = networks[0].get("ipAddresses") or [""]
    zone = str(doc["name"]).split("/")[3]
    size_gib = int(share.get("capacityGb", 0))
    return Volume(
        name=last(doc["name"]),
        cloud=CLOUD,
        state=_STATES.get(str(doc.get("state", "")), "broken"),
        why=str(doc.get("statusMessage", "")),
        zone=zone,
        # Any zone of the network can mount it, but traffic between regions is billed.
        zones=(zone.rpartition("-")[0],),
        source=f"{addresses[0]}:/{share.get('name', '')}" if addresses[0] else "",
        options=_OPTIONS,
        size_gb=round(size_gib * _GIB, 3),
        usd_per_month=size_gib * _USD_PER_GIB_MONTH,
        labels=label.decode_all(doc.get("labels", {})),
    )
