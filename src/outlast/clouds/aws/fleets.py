"""Fleets of several instances for a distributed run: all or none, each under a separate name.

A fleet gives all its instances the same tags. They begin with the name of the first machine, and get their own names
right afterwards. If the caller dies in between, the next launch continues, and deleting the first name deletes all.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence

from outlast.clouds.aws import machines
from outlast.clouds.aws.client import AwsClient, read_tags, tags
from outlast.clouds.aws.errors import Doc, TokenSpent
from outlast.clouds.aws.instances import AwsInstances
from outlast.clouds.cloud import Offer
from outlast.errors import CloudUnreachable, NoCapacity

_ENDING = ("shutting-down", "terminated")
# Not a name of a machine, so that an instance waits for its own.
_UNNAMED = "-"
_LISTED_S = 60.0


class FleetsOfMany:
    """The machines of distributed runs in one account and region."""

    def __init__(self, client: AwsClient, instances: AwsInstances) -> None:
        self._client = client
        self._instances = instances

    def launch(
        self, offer: Offer, names: Sequence[str], data: Doc, labels: Mapping[str, str], pool: Doc
    ) -> dict[str, Doc]:
        """Return the instances of these names, and launch those that are missing: all or none."""
        found = self._assign(names, self._instances.docs(labels))
        missing = [name for name in names if name not in found]
        if not missing:
            return found
        ids = self._create(offer, missing, data, pool)
        found |= self._assign(missing, [self._instances.await_visible(id) for id in ids])
        self._await_listed(labels, ids)
        if left := [name for name in names if name not in found]:
            raise CloudUnreachable(f"EC2 ended {', '.join(left)} right after their launch", hint="it is retried later")
        return found

    def delete_unused(self, docs: Iterable[Doc]) -> None:
        """Delete the fleets of these instances that have no other instance left."""
        for fleet in {read_tags(doc.get("Tags")).get(machines.TAG_FLEET, "") for doc in docs} - {""}:
            left = self._instances.docs({machines.TAG_FLEET: fleet})
            if all(_has_ended(doc) for doc in left):
                self._instances.delete_fleets_tagged(machines.TAG_FLEET, fleet)

    def _create(self, offer: Offer, names: Sequence[str], data: Doc, pool: Doc) -> list[str]:
        """Launch so many instances at once, and return their ids. The same call returns the same instances again."""
        count, kind = len(names), "spot" if offer.spot else "on-demand"
        text = json.dumps([list(names), data, pool, kind], sort_keys=True)
        token = hashlib.sha256(text.encode()).hexdigest()[:48]
        rule: Doc = {"MinTargetCapacity": count, "SingleAvailabilityZone": True, "SingleInstanceType": True}
        if offer.spot:
            rule["AllocationStrategy"] = "price-capacity-optimized"
        rules: dict[str, Doc] = {
            "SpotOptions" if offer.spot else "OnDemandOptions": rule,
            "TargetCapacitySpecification": {"TotalTargetCapacity": count, "DefaultTargetCapacityType": kind},
        }
        # The machines of the first token may be deleted by now: then use a new token.
        for client_token in (token, f"{token[:40]}-{uuid.uuid4().hex[:12]}"):
            own = {machines.TAG_NAME: names[0], machines.TAG_MACHINE: _UNNAMED, machines.TAG_FLEET: client_token}
            tagged = _tagged(data, own)

            try:
                ids = self._instances.instant_fleet(names[0], tagged, [pool], client_token, **rules)
            except TokenSpent:
                continue
            if len(ids) < count:
                self._terminate(ids)
                raise NoCapacity(f"EC2 launched {len(ids)} of {count} instances", hint="the next zone is tried")
            return ids
        raise CloudUnreachable(f"EC2 ended {', '.join(names)} right after their launch", hint="it is retried later")

    def _assign(self, names: Sequence[str], docs: Iterable[Doc]) -> dict[str, Doc]:
        """Give each live instance a separate name, and return them by name. Delete those for which none is left."""
        ours = [doc for doc in docs if _name_of(doc) in names]
        # An instance that was named before keeps its name. The order is the same in every process.
        ours.sort(key=lambda doc: (_has_ended(doc), not _is_named(doc), doc["LaunchTime"], doc["InstanceId"]))
        found: dict[str, Doc] = {}
        rest: list[Doc] = []
        for doc in ours:
            if _name_of(doc) in found:
                rest.append(doc)
            else:
                found[_name_of(doc)] = doc
        free = [name for name in names if name not in found]
        for doc in rest:
            if _has_ended(doc):
                continue
            if free:
                found[free.pop(0)] = doc
            else:
                self._instances.terminate(doc)
        return {name: self._named(doc, name) for name, doc in found.items()}

    def _named(self, doc: Doc, name: str) -> Doc:
        own = {machines.TAG_NAME: name, machines.TAG_MACHINE: name}
        known = read_tags(doc.get("Tags"))
        if all(known.get(key) == value for key, value in own.items()) or _has_ended(doc):
            return doc
        disks = [str(disk["Ebs"]["VolumeId"]) for disk in doc.get("BlockDeviceMappings", []) if "Ebs" in disk]
        self._client.ec2("create_tags", Resources=[str(doc["InstanceId"]), *disks], Tags=tags(own))
        return {**doc, "Tags": tags({**known, **own})}

    def _await_listed(self, labels: Mapping[str, str], ids: Sequence[str]) -> None:
        """Wait until lists show these instances: until then, a deletion by name would not find them."""
        give_up_at, pause_s = time.monotonic() + _LISTED_S, 0.1
        while not {*ids} <= {str(doc["InstanceId"]) for doc in self._instances.docs(labels)}:
            if time.monotonic() > give_up_at:
                return
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 5.0)

    def _terminate(self, ids: Sequence[str]) -> None:
        for id in ids:
            self._instances.terminate(self._instances.await_visible(id))


def _has_ended(doc: Doc) -> bool:
    return doc["State"]["Name"] in _ENDING


def _name_of(doc: Doc) -> str:
    return read_tags(doc.get("Tags")).get(machines.TAG_NAME, "")


def _is_named(doc: Doc) -> bool:
    known = read_tags(doc.get("Tags"))
    return known.get(machines.TAG_MACHINE) == known.get(machines.TAG_NAME)


def _tagged(data: Doc, own: Mapping[str, str]) -> Doc:
    """Return the parameters of a launch with other tags."""
    specifications = [{**one, "Tags": tags({**read_tags(one["Tags"]), **own})} for one in data["TagSpecifications"]]
    return {**data, "TagSpecifications": specifications}
