"""The instances of outlast in one region: found by tags, launched once, terminated with all their resources."""

from __future__ import annotations

import base64
import hashlib
import json
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from outlast.clouds.aws import machines
from outlast.clouds.aws.client import AwsClient, read_tags, tags
from outlast.clouds.aws.errors import Doc, NoFleets, TokenSpent, UnknownProfile, UnknownResource, from_fleet_errors
from outlast.clouds.cloud import LABEL_RUN, Machine, Offer
from outlast.errors import AlreadyExists, BadRequest, CloudUnreachable, NoCapacity, NotFound

_ENDING = ("shutting-down", "terminated")
_ALIVE = ("pending", "running", "stopping", "shutting-down", "stopped")
# EC2 lists a terminated instance for an hour. For this long a machine of a run that ended by itself is reported as
# stopped, so that its attempt is lost with the reason, instead of launched again.
_ENDED_S = 900.0
# A new instance may be missing in answers for some seconds.
_VISIBLE_S = 60.0
_WAIT_S_MAX = 300.0
T = TypeVar("T")
# Characters of the token in the name of a launch template.
_TOKEN_LENGTH = 12


class AwsInstances:
    """The instances of one account and region."""

    def __init__(self, client: AwsClient) -> None:
        self._client = client
        # Ids of terminated instances that were deleted by this process.
        self._deleted: set[str] = set()
        # A new account may have no quota of fleets.
        self._may_have_fleets = True

    def docs(self, wanted: Mapping[str, str]) -> list[Doc]:
        """Return the instances of outlast with these tags, oldest first: live ones, and ended ones of runs."""
        filters = [
            {"Name": "tag-key", "Values": [machines.TAG_PRICE]},
            {"Name": "instance-state-name", "Values": [*_ALIVE, "terminated"]},
            *({"Name": f"tag:{key}", "Values": [_literal(value)]} for key, value in wanted.items()),
        ]
        pages = self._client.pages("ec2", "describe_instances", "Reservations", Filters=filters)
        found = [doc for reservation in pages for doc in reservation["Instances"] if self._is_shown(doc)]
        return sorted(found, key=lambda doc: (doc["LaunchTime"], doc["InstanceId"]))

    def _is_shown(self, doc: Doc) -> bool:
        """Return whether an instance counts as a machine: alive, or ended by itself a short while ago."""
        if doc["State"]["Name"] not in _ENDING:
            return True
        known = read_tags(doc.get("Tags"))
        if machines.TAG_DELETED in known or doc["InstanceId"] in self._deleted:
            return False
        if doc["State"]["Name"] == "shutting-down":
            return True
        if LABEL_RUN not in known:
            return False
        return time.time() - machines.ended_at(doc) < _ENDED_S

    def find(self, name: str) -> Doc:
        """Return the instance of that name. Raises NotFound."""
        machines.check_name(name)
        # Prefer a live one. One that is being terminated counts too: it is still billed.
        if found := self.docs({machines.TAG_NAME: name}):
            return min(found, key=lambda doc: _ENDING.count(doc["State"]["Name"]))
        raise NotFound(f"no machine `{name}` in AWS region {self._client.region}")

    def describe(self, docs: list[Doc]) -> list[Machine]:
        """Return instances as machines, with their disks. A disk that disappeared between the two calls is omitted."""
        if not docs:
            return []
        wanted = [{"Name": "tag-key", "Values": [machines.TAG_MACHINE]}]
        if len(docs) == 1:
            wanted = [{"Name": "attachment.instance-id", "Values": [docs[0]["InstanceId"]]}]
        pages = self._client.pages("ec2", "describe_volumes", "Volumes", Filters=wanted)
        volumes = {str(doc["VolumeId"]): doc for doc in pages}
        return [machines.read(doc, volumes) for doc in docs]

    def launch(self, offer: Offer, name: str, data: Doc, labels: Mapping[str, str], pools: list[Doc]) -> Doc:
        """Launch one instance of that name, even if other processes launch it at the same time.

        Each pool is a type in a zone or in a subnet, as EC2 names them. A fleet gets all, another launch the first.
        """
        text = json.dumps([data, pools, offer.spot], sort_keys=True)
        token = hashlib.sha256(f"{name}\n{text}".encode()).hexdigest()[:48]
        # The machine of the first token may be deleted by now: then use a new token.
        for client_token in (token, f"{token[:40]}-{uuid.uuid4().hex[:12]}"):
            try:
                id = self._launch_one(offer, name, data, labels, pools, client_token)
            except TokenSpent:
                continue
            launched = self.await_visible(id)
            if launched["State"]["Name"] not in _ENDING:
                return self._keep_oldest(name, launched)
            _check_refused_disk(launched)
        raise NoCapacity(f"EC2 ended machine `{name}` right after its launch, twice", hint="the next zone is tried")

    def _launch_one(
        self, offer: Offer, name: str, data: Doc, labels: Mapping[str, str], pools: list[Doc], token: str
    ) -> str:
        """Launch one instance and return its id."""
        of_run = LABEL_RUN in labels
        if offer.spot and of_run and self._may_have_fleets:
            try:
                return self._instant_fleet(name, data, pools, token)
            except NoFleets:
                self._may_have_fleets = False
        options = machines.one_time_spot() if of_run else machines.persistent_spot()
        market = {"InstanceMarketOptions": options} if offer.spot else {}
        return self._run_instance({**data, **market}, pools[0], token)

    def when_known(self, launch: Callable[[str], T], token: str) -> T:
        """Launch, again while EC2 does not know a new resource.

        The tokens are the same in every process: one that continues the launch of another gets the same instances.
        """
        give_up_at, pause_s, spent = time.monotonic() + _VISIBLE_S, 0.2, 0
        while True:
            try:
                return launch(f"{token}-{spent}" if spent else token)
            except (UnknownProfile, UnknownResource) as problem:
                if time.monotonic() > give_up_at:
                    raise
                spent += problem.spent_token
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 5.0)

    def _run_instance(self, data: Doc, pool: Doc, token: str) -> str:
        """Launch one instance and return its id."""
        # Here `boto3` encodes the user data itself; in a template it does not.
        plain = {**data, "UserData": base64.b64decode(data["UserData"])}
        place = {key: value for key, value in pool.items() if key != "InstanceType"}
        placement: Doc = {} if "SubnetId" in place else {"Placement": place}
        if "SubnetId" in place:
            plain["NetworkInterfaces"] = [{**data["NetworkInterfaces"][0], **place}]
        plain |= {**placement, "MinCount": 1, "MaxCount": 1}
        answer = self.when_known(lambda one: self._client.ec2("run_instances", **plain, ClientToken=one), token)
        return str(answer["Instances"][0]["InstanceId"])

    def await_visible(self, id: str) -> Doc:
        """Return a new instance by its id. Raises CloudUnreachable if EC2 does not know it yet.

        Without the id, a listing that lags behind would look like a failed launch, and a second machine would follow.
        """
        give_up_at, pause_s = time.monotonic() + _VISIBLE_S, 0.2
        while True:
            try:
                answer = self._client.ec2("describe_instances", InstanceIds=[id])
                for reservation in answer["Reservations"]:
                    for doc in reservation["Instances"]:
                        found: Doc = doc
                        return found
            except NotFound:
                pass
            if time.monotonic() > give_up_at:
                raise CloudUnreachable(f"EC2 launched instance {id} and does not list it", hint="it is retried later")
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 5.0)

    def _instant_fleet(self, name: str, data: Doc, pools: list[Doc], token: str) -> str:
        """Launch one spot instance and return its id."""
        target = {"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "spot"}
        options = {"SpotOptions": {"AllocationStrategy": "price-capacity-optimized"}}
        return self.instant_fleet(name, data, pools, token, TargetCapacitySpecification=target, **options)[0]

    def instant_fleet(self, name: str, data: Doc, pools: list[Doc], token: str, **rules: Doc) -> list[str]:
        """Launch instances by a fleet, and return their ids. Raises the fleet's error if it launched none."""
        template = f"outlast-{name}-{token[-_TOKEN_LENGTH:]}"
        # The template must not contain the type: the fleet's overrides do.
        common = {key: value for key, value in data.items() if key not in ("InstanceType", "TagSpecifications")}
        common["TagSpecifications"] = [one for one in data["TagSpecifications"] if one["ResourceType"] == "volume"]
        instance = [one for one in data["TagSpecifications"] if one["ResourceType"] == "instance"]
        try:
            self._client.ec2("create_launch_template", LaunchTemplateName=template, LaunchTemplateData=common)
        except AlreadyExists:
            pass
        wanted = {
            "Type": "instant",
            "LaunchTemplateConfigs": [
                {
                    "LaunchTemplateSpecification": {"LaunchTemplateName": template, "Version": "$Latest"},
                    "Overrides": pools,
                }
            ],
            **rules,
            "TagSpecifications": [*instance, {"ResourceType": "fleet", "Tags": instance[0]["Tags"]}],
        }
        try:
            return self.when_known(lambda one: self._create_fleet(wanted, one), token)
        finally:
            self._delete_template(template)

    def _create_fleet(self, wanted: Doc, token: str) -> list[str]:
        answer = self._client.ec2("create_fleet", ClientToken=token, **wanted)
        # The status is 200 whether an instance was launched or not.
        ids = [str(id) for group in answer.get("Instances", []) for id in group.get("InstanceIds", [])]
        if not ids:
            problem = from_fleet_errors(answer.get("Errors", []))
            if isinstance(problem, UnknownProfile | UnknownResource):
                problem.spent_token = True
            raise problem
        return ids

    def _delete_template(self, template: str) -> None:
        try:
            self._client.ec2("delete_launch_template", LaunchTemplateName=template)
        except NotFound:
            pass

    def _await_listed(self, name: str, id: str) -> dict[str, Doc]:
        """Return the instances of that name by id, once a list contains the new one.

        Lists lag behind. Until they show the machine, another process would not find it.
        """
        give_up_at, pause_s = time.monotonic() + _VISIBLE_S, 0.1
        while True:
            listed = {str(doc["InstanceId"]): doc for doc in self.docs({machines.TAG_NAME: name})}
            if id in listed or time.monotonic() > give_up_at:
                return listed
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 5.0)

    def _keep_oldest(self, name: str, launched: Doc) -> Doc:
        """Return the oldest instance of that name; terminate others that were launched at the same time."""
        listed = self._await_listed(name, str(launched["InstanceId"]))
        listed.setdefault(str(launched["InstanceId"]), launched)
        found = [doc for doc in listed.values() if doc["State"]["Name"] not in _ENDING]
        oldest = min(found, key=lambda doc: (doc["LaunchTime"], doc["InstanceId"]))
        for late in found:
            if late is not oldest:
                self.terminate(late)
        return oldest

    def terminate(self, doc: Doc) -> None:
        """Terminate the instance and delete its spot request and disks.

        EC2 stops billing an instance as soon as it shuts down, which takes minutes for large types: do not wait for the
        end of that. Its root disk goes with it.
        """
        id = str(doc["InstanceId"])
        self._deleted.add(id)
        # Other processes must not take it for a machine that ended by itself. A terminated instance may refuse tags;
        # then they see it until `_ENDED_S` has passed.
        with suppress(BadRequest):
            self._call_if_exists("create_tags", Resources=[id], Tags=tags({machines.TAG_DELETED: "true"}))
        if request := doc.get("SpotInstanceRequestId"):
            # First, because a persistent request would launch another instance.
            self._call_if_exists("cancel_spot_instance_requests", SpotInstanceRequestIds=[request])
        self._call_if_exists("terminate_instances", InstanceIds=[id])
        self.wait(id, "shutting-down")
        name = read_tags(doc.get("Tags")).get(machines.TAG_NAME, "")
        wanted = [
            {"Name": f"tag:{machines.TAG_MACHINE}", "Values": [name]},
            {"Name": "status", "Values": ["available"]},
        ]
        for volume in list(self._client.pages("ec2", "describe_volumes", "Volumes", Filters=wanted)):
            self._call_if_exists("delete_volume", VolumeId=volume["VolumeId"])

    def delete_fleets(self, name: str) -> None:
        """Delete the fleets and launch templates of a machine, even if the machine is gone already."""
        named = [{"Name": "launch-template-name", "Values": [f"outlast-{name}-*"]}]
        for doc in list(self._client.pages("ec2", "describe_launch_templates", "LaunchTemplates", Filters=named)):
            # A longer name belongs to another machine.
            if len(str(doc["LaunchTemplateName"])) == len(f"outlast-{name}-") + _TOKEN_LENGTH:
                self._delete_template(str(doc["LaunchTemplateName"]))
        self.delete_fleets_tagged(machines.TAG_MACHINE, name)

    def delete_fleets_tagged(self, key: str, value: str) -> None:
        """Delete the fleets with this tag, and their instances."""
        wanted = [
            {"Name": "resource-type", "Values": ["fleet"]},
            {"Name": "key", "Values": [key]},
            {"Name": "value", "Values": [value]},
        ]
        ids = [str(tag["ResourceId"]) for tag in self._client.pages("ec2", "describe_tags", "Tags", Filters=wanted)]
        if not ids:
            return
        fleets = self._client.ec2("describe_fleets", FleetIds=ids).get("Fleets", [])
        if left := [fleet["FleetId"] for fleet in fleets if not str(fleet["FleetState"]).startswith("deleted")]:
            self._call_if_exists("delete_fleets", FleetIds=left, TerminateInstances=True)

    def wait(self, id: str, state: str) -> None:
        """Wait until the instance is in that state; one that is gone counts as terminated. Raises CloudUnreachable."""
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
                raise CloudUnreachable(f"instance {id} is still {now[0]}, not {state}, after {_WAIT_S_MAX:g} s")
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 5.0)

    def tag(self, id: str, values: Mapping[str, str]) -> None:
        self._client.ec2("create_tags", Resources=[id], Tags=tags(dict(values)))

    def _call_if_exists(self, operation: str, **parameters: object) -> None:
        try:
            self._client.ec2(operation, **parameters)
        except NotFound:
            pass


def _check_refused_disk(doc: Doc) -> None:
    """Raise BadRequest if EC2 ended an instance for a reason that holds for the next one, too."""
    reason = doc.get("StateReason") or {}
    if reason.get("Code") == "Client.InternalError":
        hint = "mostly spot machines may not use the key that encrypts disks: `outlast doctor --cloud aws` checks it"
        raise BadRequest(f"EC2 ended the machine at once: {reason.get('Message', '')}", hint=hint)


def _literal(value: str) -> str:
    """Escape `*` and `?`, which are wildcards in filters."""
    return value.replace("\\", "\\\\").replace("*", "\\*").replace("?", "\\?")
