"""The instances of `moto`, each backed by a machine of the local cloud that follows its state."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shlex
import subprocess
from typing import Any

from outlast.clouds.aws import ssh_access, userdata
from outlast.clouds.cloud import Boot, HostAccess, Requirements
from outlast.clouds.local.cloud import LocalCloud
from outlast.clouds.local.folder import Folder
from outlast.clouds.local.metadata_server import ATTRIBUTE_IMDS
from outlast.errors import BadRequest, CloudError, NotFound
from outlast.testing.motoconditions import MotoSurroundings, admits_itself

# moto's only account
_ACCOUNT = "123456789012"
_ZONE, _TYPE = "local1-a", "local-2"
_EXPORTS = """#!/bin/bash
export AWS_ENDPOINT_URL={endpoint} AWS_DEFAULT_REGION={region}
export AWS_EC2_METADATA_SERVICE_ENDPOINT="http://${{GCE_METADATA_HOST:-169.254.169.254}}"
"""


class Life:
    def __init__(self, root: str) -> None:
        self.local = LocalCloud(root)
        self.endpoint = ""
        self._states: dict[str, str] = {}
        self._tags: dict[str, dict[str, str]] = {}
        self._rebalanced: set[str] = set()
        self.surroundings = MotoSurroundings()
        # When instances were terminated, and which machines may connect to others of their group.
        self._ended_at: dict[str, float] = {}
        self._open: dict[str, bool] = {}

    def boot_from(self, base: str, *, names: bool) -> None:
        """Boot later machines from another root file system; only with `names` they can look up other computers."""
        self.local.base, self.local.base_names = base, names

    def _backends(self) -> dict[str, Any]:
        from moto.ec2.models import ec2_backends

        return dict(ec2_backends[_ACCOUNT].items())

    def instances(self) -> dict[str, Any]:
        return {
            instance.id: instance
            for backend in self._backends().values()
            for reservation in backend.reservations.values()
            for instance in reservation.instances
        }

    def vanish(self) -> None:
        """Terminate all running instances without a notice."""
        for instance in self.instances().values():
            if instance.state == "running":
                instance.terminate()
        self.sync_to_machines()

    def any_alive(self, ids: list[str]) -> bool:
        every = self.instances()
        return any(id in every and every[id].state not in ("terminated", "shutting-down") for id in ids)

    def count_alive(self) -> int:
        return sum(one.state not in ("terminated", "shutting-down") for one in self.instances().values())

    def some_image(self, region: str) -> str:
        from moto.ec2.models import ec2_backends

        images = ec2_backends[_ACCOUNT][region].describe_images()
        return min(str(image.id) for image in images if (image.architecture or "") == "x86_64")

    def sync_from_machines(self) -> None:
        """Update instances whose machines stopped by themselves."""
        for id, instance in self.instances().items():
            if instance.state != "running" or self._states.get(id) != "running":
                continue
            try:
                machine = self.local.machine(id)
            except NotFound:
                continue
            if machine.status not in ("stopped", "broken"):
                continue
            ends = instance.instance_initiated_shutdown_behavior == "terminate"
            instance.terminate() if ends else instance.stop()
            preempted = "preempted" in machine.why
            code = "Server.SpotInstanceTermination" if preempted else "Client.InstanceInitiatedShutdown"
            when = datetime.datetime.fromtimestamp(machine.stopped_at, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S GMT")
            instance._reason = f"{'Service' if preempted else 'User'} initiated ({when})"
            instance.state_reason.code, instance.state_reason.message = code, f"{code}: {machine.why}"
            self._states[id] = instance.state
            if ends:
                self.local.delete(id)
                self._close_requests(id)

    def sync_to_machines(self) -> None:
        """Apply changes of instances to their machines."""
        for id, instance in self.instances().items():
            before, now = self._states.get(id, ""), instance.state
            if before != now:
                self._states[id] = now
                if now == "running":
                    self._tags[id] = self._read_tags(instance)
                    self.local.start(id) if before else self._launch(instance)
                elif now == "stopped":
                    self.local.stop(id)
                elif now == "terminated":
                    self.local.delete(id)
                    self._close_requests(id)
            if now == "running":
                self._enforce_group(instance)
            if now != "terminated" and (tags := self._read_tags(instance)) != self._tags.get(id):
                self._tags[id] = tags
                self._update_metadata(instance)
        self._sync_images()
        self._forget_ended()

    def _forget_ended(self) -> None:
        """Remove the tags of terminated instances after a while, and the instances after an hour, as EC2 does."""
        listed_s, tagged_s = self.surroundings.now.terminated_s, self.surroundings.now.tagged_s
        now = self.surroundings.clock()
        for backend in self._backends().values():
            for key, reservation in list(backend.reservations.items()):
                for instance in list(reservation.instances):
                    ended_at = self._ended_at.setdefault(instance.id, now) if instance.state == "terminated" else now
                    if tagged_s is not None and now - ended_at > tagged_s:
                        backend.tags.pop(instance.id, None)
                    if listed_s is not None and now - ended_at > listed_s:
                        reservation.instances.remove(instance)
                if not reservation.instances:
                    del backend.reservations[key]

    def _enforce_group(self, instance: Any) -> None:
        """Connect the machine with those of its security group, or isolate it. Other modes have no addresses."""
        if self.local.mode != "root" or os.geteuid() != 0:
            return
        state = Folder(f"{self.local.root}/machines/{instance.id}").state() or {}
        number, pid = state.get("net_number"), state.get("shim_pid")
        groups = [group for group in instance.security_groups if not isinstance(group, str)]
        is_open = not self.surroundings.now.groups or any(admits_itself(group) for group in groups)
        if not number or self._open.get(instance.id) == is_open:
            return
        port = ["ip", "link", "set", f"ol{number}", "type", "bridge_slave", "isolated", "off" if is_open else "on"]
        done = subprocess.run(["nsenter", f"--net=/proc/{pid}/ns/net", *port], capture_output=True, check=False)
        if done.returncode == 0:
            self._open[instance.id] = is_open

    def _close_requests(self, id: str) -> None:
        """Close the one-time spot request of an instance, which moto leaves open."""
        for backend in self._backends().values():
            for request in backend.spot_instance_requests.values():
                if request.instance.id == id and request.type == "one-time":
                    request.state = "closed"

    def _sync_images(self) -> None:
        known = {image.name for image in self.local.images()}
        amis = {ami.id: ami for backend in self._backends().values() for ami in backend.amis.values()}
        for id, ami in amis.items():
            origin = getattr(ami, "instance", None)
            if id not in known and origin is not None and self._states.get(origin.id) == "stopped":
                self.local.snapshot(origin.id, id)
        for name in known:
            if name.startswith("ami-") and name not in amis:
                self.local.delete_image(name)

    def _read_tags(self, instance: Any) -> dict[str, str]:
        return {tag["key"]: tag["value"] for tag in instance.get_tags()}

    def _launch(self, instance: Any) -> None:
        scripts = userdata.scripts(str(instance.user_data or ""))
        head = _EXPORTS.format(endpoint=shlex.quote(self.endpoint), region=instance.region_name)
        image = instance.image_id if instance.image_id in {image.name for image in self.local.images()} else ""
        offer = self.local.offers(Requirements(type=_TYPE, zones=(_ZONE,), spot=instance.lifecycle == "spot"))[0]
        port = int(self.endpoint.rpartition(":")[2])
        # The local cloud provides sshd: a script must not change the ssh server of this computer.
        script = head + scripts.get(userdata.SCRIPT, "")
        keys = tuple(ssh_access.keys_in(self._tags[instance.id]))
        metadata = {ATTRIBUTE_IMDS: json.dumps(self._paths(instance))}
        host = HostAccess(ports=(port,))
        boot = Boot(script=script, image=image, metadata=metadata, ssh_keys=keys, host=host)
        self.local.launch(offer, instance.id, boot=boot, labels={})

    def _update_metadata(self, instance: Any) -> None:
        with contextlib.suppress(NotFound):
            self.local.set_metadata(instance.id, {ATTRIBUTE_IMDS: json.dumps(self._paths(instance))})
            for key in ssh_access.keys_in(self._tags[instance.id]):
                self.local.admit(instance.id, key)

    def _paths(self, instance: Any) -> dict[str, str]:
        """Return the metadata of an instance by path below `/latest/`."""
        region, zone = instance.region_name, instance.placement
        identity = {
            "accountId": "123456789012",
            "instanceId": instance.id,
            "instanceType": instance.instance_type,
            "imageId": instance.image_id,
            "region": region,
            "availabilityZone": str(zone),
            "version": "2017-09-30",
        }
        role = {
            "Code": "Success",
            "Type": "AWS-HMAC",
            "AccessKeyId": "ASIATESTING",
            "SecretAccessKey": "testing",
            "Token": "testing",
            "Expiration": "2099-01-01T00:00:00Z",
        }
        paths = {
            "dynamic/instance-identity/document": json.dumps(identity),
            "meta-data/instance-id": instance.id,
            "meta-data/instance-type": instance.instance_type,
            "meta-data/ami-id": instance.image_id,
            "meta-data/placement/region": region,
            "meta-data/placement/availability-zone": str(zone),
            "meta-data/iam/security-credentials/outlast-machine": json.dumps(role),
        }
        if instance.user_data:
            paths["user-data"] = str(instance.user_data)
        if instance.id in self._rebalanced:
            paths["meta-data/events/recommendations/rebalance"] = json.dumps({"noticeTime": "2026-01-01T00:00:00Z"})
        return {**paths, **{f"meta-data/tags/instance/{k}": v for k, v in self._tags[instance.id].items()}}

    def rebalance(self, id: str) -> None:
        self._rebalanced.add(id)
        self._update_metadata(self.instances()[id])

    def interrupt(self, experiment: dict[str, Any]) -> None:
        for target in experiment["targets"].values():
            for place in target["resourceArns"]:
                with contextlib.suppress(BadRequest, NotFound):
                    self.local.preempt(place.rpartition("/")[2])

    def console(self, id: str) -> str:
        """Return the console output, with the host keys that cloud-init prints."""
        with contextlib.suppress(CloudError):
            text, keys = self.local.serial(id), ""
            with contextlib.suppress(CloudError):
                keys = "\n".join(self.local.access(id).host_keys)
            block = f"-----BEGIN SSH HOST KEY KEYS-----\n{keys}\n-----END SSH HOST KEY KEYS-----\n"
            return text + (block if keys else "")
        return ""

    def profile(self, params: dict[str, str]) -> str:
        """Return the instance profile of a launch; empty if it has none."""
        if name := next((value for key, value in params.items() if key.endswith(".LaunchTemplateName")), ""):
            for backend in self._backends().values():
                template = backend.launch_template_name_to_ids.get(name)
                if template is not None:
                    data = backend.get_launch_template_by_name(name).latest_version().data
                    return str((data.get("IamInstanceProfile") or {}).get("Name", ""))
        return params.get("IamInstanceProfile.Name", "")

    def refuses(self, action: str, params: dict[str, str]) -> tuple[str, str] | None:
        """Return the error of a request that EC2 refuses and moto accepts; else None."""
        if action == "ModifyInstanceAttribute" and "InstanceType.Value" in params:
            instance = self.instances().get(params["InstanceId"])
            if instance is not None and instance.state != "stopped":
                return "IncorrectInstanceState", f"the instance {instance.id} is not in the state 'stopped'"
        if action == "CreateImage":
            amis = [ami for backend in self._backends().values() for ami in backend.amis.values()]
            if any(ami.name == params["Name"] for ami in amis):
                return "InvalidAMIName.Duplicate", f"AMI name {params['Name']} is already in use"
        return None

    def adjust(self, made: list[str], params: dict[str, str]) -> None:
        """Complete the instances of a fleet from its launch template and first override, which moto mostly ignores."""
        from moto.ec2.models.instances import MetadataOptions

        every = self.instances()
        zone = next((value for key, value in params.items() if key.endswith(".AvailabilityZone")), "")
        name = next((value for key, value in params.items() if key.endswith(".LaunchTemplateName")), "")
        for id in made:
            instance, backend = every[id], every[id].ec2_backend
            data = backend.get_launch_template_by_name(name).latest_version().data
            instance._placement.zone = zone or instance._placement.zone
            spot = params.get("TargetCapacitySpecification.DefaultTargetCapacityType") == "spot"
            instance.lifecycle = "spot" if spot else None
            for request in backend.spot_instance_requests.values():
                request.type = "one-time" if request.instance is instance else request.type
            instance.user_data = data.get("UserData")
            instance.metadata_options = MetadataOptions(data.get("MetadataOptions"))
            behaviour = data.get("InstanceInitiatedShutdownBehavior")
            instance.instance_initiated_shutdown_behavior = behaviour or "stop"
            tags = {
                tag["Key"]: tag["Value"] for spec in _list(data.get("TagSpecifications")) for tag in _list(spec["Tags"])
            }
            disks = [one.get("Ebs", {}) for one in _list(data.get("BlockDeviceMappings"))]
            for device in instance.block_device_mapping.values():
                volume = backend.volumes[device.volume_id]
                volume.size = int(disks[0].get("VolumeSize", volume.size)) if disks else volume.size
                backend.create_tags([volume.id], tags)

    def is_empty(self, params: dict[str, str]) -> bool:
        """Return whether all instances of these fleets are terminated."""
        names = [value for key, value in params.items() if key.startswith("FleetId")]
        fleets = [backend.fleets[id] for backend in self._backends().values() for id in names if id in backend.fleets]
        ids = [request.instance.id for fleet in fleets for request in fleet.spot_requests]
        ids += [one["instance"].id for fleet in fleets for one in fleet.on_demand_instances]
        return not self.any_alive(ids)


def _list(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else list(value or [])
