"""The instances of ours in one region: found by their tags, launched once, ended with all that is theirs."""

from __future__ import annotations

import base64
import hashlib
import json
import time
import uuid
from collections.abc import Mapping

from outlast.clouds.aws import machines
from outlast.clouds.aws.client import AwsClient, tags, untagged
from outlast.clouds.aws.errors import AlreadyExists, Doc, TokenSpent, first
from outlast.clouds.cloud import LABEL_RUN, Machine, Offer
from outlast.errors import CloudUnreachable, NotFound

_ALIVE = ["pending", "running", "stopping", "shutting-down", "stopped"]
_WAIT_S_MAX = 300.0
# Of the token, in the name of a launch template.
_MARK_LENGTH = 12


class Instances:
    def __init__(self, client: AwsClient) -> None:
        self._client = client

    def docs(self, wanted: Mapping[str, str]) -> list[Doc]:
        """The instances of ours that carry these tags, oldest first."""
        filters = [
            {"Name": "tag-key", "Values": [machines.TAG_PRICE]},
            {"Name": "instance-state-name", "Values": _ALIVE},
            *({"Name": f"tag:{key}", "Values": [_literal(value)]} for key, value in wanted.items()),
        ]
        pages = self._client.pages("ec2", "describe_instances", "Reservations", Filters=filters)
        found = [doc for reservation in pages for doc in reservation["Instances"]]
        return sorted(found, key=lambda doc: (doc["LaunchTime"], doc["InstanceId"]))

    def find(self, name: str) -> Doc:
        """The instance of that name. Raises NotFound."""
        machines.check_name(name)
        # One that is being terminated is seen, so that nobody takes it for gone; a live one goes first.
        if found := self.docs({machines.TAG_NAME: name}):
            return min(found, key=lambda doc: doc["State"]["Name"] == "shutting-down")
        raise NotFound(f"AWS has no machine `{name}` in {self._client.region}")

    def described(self, docs: list[Doc]) -> list[Machine]:
        """With their disks, which EC2 describes elsewhere. What vanished between the two questions has none."""
        if not docs:
            return []
        wanted = [{"Name": "tag-key", "Values": [machines.TAG_MACHINE]}]
        if len(docs) == 1:
            wanted = [{"Name": "attachment.instance-id", "Values": [docs[0]["InstanceId"]]}]
        pages = self._client.pages("ec2", "describe_volumes", "Volumes", Filters=wanted)
        volumes = {str(doc["VolumeId"]): doc for doc in pages}
        return [machines.read(doc, volumes) for doc in docs]

    def launch(self, offer: Offer, name: str, data: Doc, labels: Mapping[str, str], zones: list[str]) -> Doc:
        """One instance of that name, whoever else launches it at the same time."""
        text = json.dumps([data, zones, offer.spot], sort_keys=True)
        token = hashlib.sha256(f"{name}\n{text}".encode()).hexdigest()[:48]
        # What the token stood for may be a machine that was deleted since: then the next one is taken.
        for mark in (token, f"{token[:40]}-{uuid.uuid4().hex[:12]}"):
            try:
                if offer.spot and LABEL_RUN in labels:
                    self._instant_fleet(name, data, zones, mark)
                else:
                    market = {"InstanceMarketOptions": machines.spot_that_stays()} if offer.spot else {}
                    place = {"Placement": {"AvailabilityZone": zones[0]}}
                    count = {"MinCount": 1, "MaxCount": 1}
                    # Here `boto3` packs the user data itself; in a template it does not.
                    plain = {**data, "UserData": base64.b64decode(data["UserData"])}
                    self._client.ec2("run_instances", **plain, **market, **place, **count, ClientToken=mark)
            except TokenSpent:
                continue
            try:
                return self._one(name)
            except NotFound:
                continue
        raise NotFound(f"machine `{name}` was gone as soon as it was made")

    def _instant_fleet(self, name: str, data: Doc, zones: list[str], token: str) -> None:
        template = f"outlast-{name}-{token[-_MARK_LENGTH:]}"
        # Nothing else may name the type: the fleet chooses.
        common = {key: value for key, value in data.items() if key not in ("InstanceType", "TagSpecifications")}
        common["TagSpecifications"] = [one for one in data["TagSpecifications"] if one["ResourceType"] == "volume"]
        instance = [one for one in data["TagSpecifications"] if one["ResourceType"] == "instance"]
        try:
            self._client.ec2("create_launch_template", LaunchTemplateName=template, LaunchTemplateData=common)
        except AlreadyExists:
            pass
        try:
            answer = self._client.ec2(
                "create_fleet",
                Type="instant",
                ClientToken=token,
                LaunchTemplateConfigs=[
                    {
                        "LaunchTemplateSpecification": {"LaunchTemplateName": template, "Version": "$Latest"},
                        "Overrides": [
                            {"InstanceType": data["InstanceType"], "AvailabilityZone": zone} for zone in zones
                        ],
                    }
                ],
                TargetCapacitySpecification={"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "spot"},
                SpotOptions={"AllocationStrategy": "price-capacity-optimized"},
                TagSpecifications=[*instance, {"ResourceType": "fleet", "Tags": instance[0]["Tags"]}],
            )
        finally:
            self._drop_template(template)
        # The answer says 200 whether there is a machine or not.
        if not any(group.get("InstanceIds") for group in answer.get("Instances", [])):
            raise first(answer.get("Errors", []))

    def _drop_template(self, template: str) -> None:
        try:
            self._client.ec2("delete_launch_template", LaunchTemplateName=template)
        except NotFound:
            pass

    def _one(self, name: str) -> Doc:
        """Of several that were launched at once for different offers the oldest stays."""
        found = [doc for doc in self.docs({machines.TAG_NAME: name}) if doc["State"]["Name"] != "shutting-down"]
        if not found:
            raise NotFound(name)
        for late in found[1:]:
            self.end(late)
        return found[0]

    def end(self, doc: Doc) -> None:
        """The instance, its spot request, its fleet and its disks are gone when this returns."""
        id = str(doc["InstanceId"])
        if request := doc.get("SpotInstanceRequestId"):
            # First: a persistent request would launch another one.
            self._quietly("cancel_spot_instance_requests", SpotInstanceRequestIds=[request])
        self._quietly("terminate_instances", InstanceIds=[id])
        self.wait(id, "terminated")
        name = untagged(doc.get("Tags")).get(machines.TAG_NAME, "")
        wanted = [
            {"Name": f"tag:{machines.TAG_MACHINE}", "Values": [name]},
            {"Name": "status", "Values": ["available"]},
        ]
        for volume in list(self._client.pages("ec2", "describe_volumes", "Volumes", Filters=wanted)):
            self._quietly("delete_volume", VolumeId=volume["VolumeId"])

    def end_fleets(self, name: str) -> None:
        """What is left of the fleets that the machine came from, also when the machine itself is gone already."""
        named = [{"Name": "launch-template-name", "Values": [f"outlast-{name}-*"]}]
        for doc in list(self._client.pages("ec2", "describe_launch_templates", "LaunchTemplates", Filters=named)):
            # A name with more behind it is another machine's.
            if len(str(doc["LaunchTemplateName"])) == len(f"outlast-{name}-") + _MARK_LENGTH:
                self._drop_template(str(doc["LaunchTemplateName"]))
        wanted = [
            {"Name": "resource-type", "Values": ["fleet"]},
            {"Name": "key", "Values": [machines.TAG_MACHINE]},
            {"Name": "value", "Values": [name]},
        ]
        ids = [str(tag["ResourceId"]) for tag in self._client.pages("ec2", "describe_tags", "Tags", Filters=wanted)]
        if not ids:
            return
        fleets = self._client.ec2("describe_fleets", FleetIds=ids).get("Fleets", [])
        if left := [fleet["FleetId"] for fleet in fleets if not str(fleet["FleetState"]).startswith("deleted")]:
            self._quietly("delete_fleets", FleetIds=left, TerminateInstances=True)

    def wait(self, id: str, state: str) -> None:
        """Until the instance is in that state; one that is gone is terminated."""
        give_up_at, pause_s = time.monotonic() + _WAIT_S_MAX, 0.1
        while True:
            try:
                answer = self._client.ec2("describe_instances", InstanceIds=[id])
            except NotFound:
                return
            now = [doc["State"]["Name"] for one in answer["Reservations"] for doc in one["Instances"]]
            if not now or now[0] in (state, "terminated"):
                return
            if time.monotonic() > give_up_at:
                raise CloudUnreachable(f"instance {id} is {now[0]} and not {state} after {_WAIT_S_MAX:g} s")
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 5.0)

    def tag(self, id: str, values: Mapping[str, str]) -> None:
        self._client.ec2("create_tags", Resources=[id], Tags=tags(dict(values)))

    def _quietly(self, operation: str, **parameters: object) -> None:
        try:
            self._client.ec2(operation, **parameters)
        except NotFound:
            pass


def _literal(value: str) -> str:
    """`*` and `?` are wildcards in filters."""
    return value.replace("\\", "\\\\").replace("*", "\\*").replace("?", "\\?")
