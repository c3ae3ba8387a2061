"""Volumes of AWS: EFS file systems with a mount target in every zone, or in the requested one.

They grow by themselves and are billed by their content. The requested size is a tag, and an upper bound of the cost.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from outlast.clouds.aws import security_groups
from outlast.clouds.aws.client import AwsClient
from outlast.clouds.aws.errors import Doc
from outlast.clouds.aws.machines import check_name
from outlast.clouds.aws.network import AwsNetwork
from outlast.clouds.resources import ResourceState, Volume
from outlast.errors import AlreadyExists, BadRequest, CloudUnreachable, NotFound
from outlast.spec.network import network_of

CLOUD = "aws"
_GROUP, _PORT = "outlast-volumes", 2049
_SIZE_TAG = "outlast-size-gb"
# The list price in us-east-1, per GB of content.
_USD_PER_GB_MONTH = 0.30
_OPTIONS = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport"
_STATES: Mapping[str, ResourceState] = {"creating": "creating", "available": "ready", "deleting": "deleting"}
_PAUSE_S, _S_MAX = 2.0, 600.0


class AwsVolumes:
    """The volumes of one region. Any number of processes may use it at once."""

    def __init__(self, client: AwsClient) -> None:
        self.client = client

    def usd_per_month(self, size_gb: float) -> float:
        return size_gb * _USD_PER_GB_MONTH

    def create(self, name: str, *, size_gb: float, zone: str = "", labels: Mapping[str, str] | None = None) -> Volume:
        check_name(name)
        subnets = [str(doc["SubnetId"]) for doc in self._network().zone_subnets(zone)]
        tags = {"Name": name, **(labels or {}), _SIZE_TAG: f"{size_gb:g}"}
        with suppress(AlreadyExists):  # an answer was lost, or an earlier creation was interrupted
            self.client.call("efs", "create_file_system", CreationToken=name, Encrypted=True, Tags=_tags(tags))
        self._wait(lambda: self._doc(name)["LifeCycleState"] == "available", name)
        id = self._doc(name)["FileSystemId"]
        network = self._network()
        group = security_groups.security_group(
            self.client,
            _GROUP,
            port=_PORT,
            note="volumes of outlast: machines mount them",
            machines=network.groups(peers=False),
            vpc=network.vpc(),
        )
        for subnet in subnets:
            with suppress(AlreadyExists):
                self.client.call("efs", "create_mount_target", FileSystemId=id, SubnetId=subnet, SecurityGroups=[group])
        self._wait(lambda: all(one["LifeCycleState"] == "available" for one in self._targets(id)), name)
        return self.find(name)

    def list_all(self, labels: Mapping[str, str] | None = None) -> Sequence[Volume]:
        wanted = set((labels or {}).items())
        found, marker = [], ""
        while True:
            answer = self.client.call("efs", "describe_file_systems", **({"Marker": marker} if marker else {}))
            found += [doc for doc in answer["FileSystems"] if _SIZE_TAG in _labels(doc)]
            marker = str(answer.get("NextMarker", ""))
            if not marker:
                return [self._read(doc) for doc in found if wanted <= set(_labels(doc).items())]

    def find(self, name: str) -> Volume:
        return self._read(self._doc(name))

    def resize(self, name: str, size_gb: float) -> Volume:
        doc = self._doc(name)
        if size_gb < doc["SizeInBytes"]["Value"] / 1e9:
            why = f"cannot shrink volume `{name}` to {size_gb:g} GB: it holds more"
            raise BadRequest(why, hint="delete files from it first")
        tags = _tags({_SIZE_TAG: f"{size_gb:g}"})
        self.client.call("efs", "tag_resource", ResourceId=doc["FileSystemId"], Tags=tags)
        return self.find(name)

    def delete(self, name: str) -> None:
        with suppress(NotFound):
            id = self._doc(name)["FileSystemId"]
            for target in self._targets(id):
                with suppress(NotFound):
                    self.client.call("efs", "delete_mount_target", MountTargetId=target["MountTargetId"])
            self._wait(lambda: not self._targets(id), name)
            self.client.call("efs", "delete_file_system", FileSystemId=id)
        if not any(volume.name != name for volume in self.list_all()):
            with suppress(BadRequest):  # another mount target still uses it
                security_groups.remove(self.client, _GROUP)

    def _doc(self, name: str) -> Doc:
        found = self.client.call("efs", "describe_file_systems", CreationToken=name)["FileSystems"]
        alive = [doc for doc in found if doc["LifeCycleState"] not in ("deleted", "deleting")]
        if not alive:
            raise NotFound(f"no EFS file system `{name}` in {self.client.region}")
        first: Doc = alive[0]
        return first

    def _targets(self, id: str) -> list[Doc]:
        targets: list[Doc] = self.client.call("efs", "describe_mount_targets", FileSystemId=id)["MountTargets"]
        return targets

    def _network(self) -> AwsNetwork:
        """Return the network in which machines run."""
        return AwsNetwork(self.client, network_of(CLOUD, os.environ))

    def _wait(self, is_done: Callable[[], bool], name: str) -> None:
        give_up_at = time.monotonic() + _S_MAX
        while not is_done():
            if time.monotonic() > give_up_at:
                raise CloudUnreachable(f"volume {name} is not ready after {_S_MAX:g} s", hint="check again later")
            time.sleep(_PAUSE_S)

    def _read(self, doc: Doc) -> Volume:
        labels = _labels(doc)
        size_gb = float(labels.pop(_SIZE_TAG, 0.0))
        zones = sorted(str(one.get("AvailabilityZoneName", "")) for one in self._targets(doc["FileSystemId"]))
        return Volume(
            name=str(doc["CreationToken"]),
            cloud=CLOUD,
            state=_STATES.get(str(doc["LifeCycleState"]), "broken"),
            zone=zones[0] if len(zones) == 1 else self.client.region,
            zones=tuple(zones),
            source=f"{doc['FileSystemId']}.efs.{self.client.region}.amazonaws.com:/",
            options=_OPTIONS,
            size_gb=size_gb,
            used_gb=doc["SizeInBytes"]["Value"] / 1e9,
            created_at=doc["CreationTime"].timestamp(),
            usd_per_month=size_gb * _USD_PER_GB_MONTH,
            labels=labels,
        )


def _tags(labels: Mapping[str, str]) -> list[Doc]:
    return [{"Key": key, "Value": value} for key, value in labels.items()]


def _labels(doc: Doc) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in doc.get("Tags", []) if tag["Key"] != "Name"}
