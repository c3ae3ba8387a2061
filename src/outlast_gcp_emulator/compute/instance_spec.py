"""The specification of a new instance: a request, validated and completed with Google's defaults."""

from __future__ import annotations

from typing import Any

from outlast.clouds.local import google_types
from outlast_gcp_emulator.compute.disks import Disks, attached_disk, check_device_names
from outlast_gcp_emulator.compute.project import check_items, metadata_of, service_account
from outlast_gcp_emulator.compute.refs import Doc, Ref, check_name, fingerprint, last, number, parse
from outlast_gcp_emulator.compute.resource import check_free, new_resource
from outlast_gcp_emulator.conditions import EXTERNAL_ADDRESS, IMAGE_PROJECTS, SHIELDED
from outlast_gcp_emulator.errors import invalid

# Fields of a request that are stored unchanged.
KEPT = (
    "description",
    "canIpForward",
    "labels",
    "minCpuPlatform",
    "deletionProtection",
    "hostname",
    "resourcePolicies",
    "shieldedInstanceConfig",
    "displayDevice",
    "keyRevocationActionType",
    "privateIpv6GoogleAccess",
    "reservationAffinity",
    "advancedMachineFeatures",
    "confidentialInstanceConfig",
    "networkPerformanceConfig",
)


class InstanceSpec:
    """`doc` is the new instance, whose first disk is the boot disk; `disks` are the disks to create with it."""

    def __init__(self, disks: Disks, ref: Ref, body: Doc) -> None:
        self._disk_resource = disks
        self._context = disks.context
        self.ref = ref
        check_name(body.get("name"))
        check_free(self._context, ref)
        self._check_constraints(body)
        self.disks: dict[Ref, Doc] = {}
        kept = {name: body[name] for name in KEPT if name in body}
        self.doc = new_resource(ref, "instance", {**kept, "name": ref.name}) | {
            "machineType": self._machine_type(body.get("machineType")),
            "disks": self._disks(body.get("disks")),
            "networkInterfaces": self._networks(body.get("networkInterfaces")),
            "scheduling": scheduling(body.get("scheduling", {})),
            "metadata": metadata_of(check_items(body.get("metadata", {}).get("items", []))),
            "tags": tags_of(body.get("tags", {})),
            "labelFingerprint": fingerprint(body.get("labels", {})),
            "serviceAccounts": service_accounts(ref.project, body.get("serviceAccounts", [])),
            "status": "PROVISIONING",
            "cpuPlatform": "Unknown CPU Platform",
            "startRestricted": False,
            "deletionProtection": bool(body.get("deletionProtection", False)),
        }
        if accelerators := self._accelerators(body.get("guestAccelerators") or []):
            self.doc["guestAccelerators"] = accelerators
        if notice := self.doc["scheduling"].get("preemptionNoticeDuration"):
            granted = min(int(notice.get("seconds", 0)), self._context.notice_s_max)
            self.doc["scheduling"]["preemptionNoticeDuration"] = {"seconds": str(granted)}
        if not self.doc["serviceAccounts"]:
            del self.doc["serviceAccounts"]
        self.doc["fingerprint"] = fingerprint(self.doc["id"])

    def _machine_type(self, given: Any) -> str:
        field = "resource.machineType"
        kind = parse(given, near=self.ref.beside("machineTypes", ""), field=field)
        if google_types.machine_type(kind.name) is None:
            message = f"Machine type with name '{kind.name}' does not exist in zone '{last(self.ref.scope)}'."
            raise invalid(f"Invalid value for field '{field}': '{given}'. {message}")
        return self.ref.beside("machineTypes", kind.name).link

    def _disks(self, given: Any) -> list[Doc]:
        if (
            not isinstance(given, list)
            or not given
            or not any(disk.get("boot", at == 0) for at, disk in enumerate(given))
        ):
            raise invalid("Invalid value for field 'resource.disks': ''. At least one boot disk must be specified.")
        boot_first = sorted(given, key=lambda disk: not disk.get("boot", disk is given[0]))
        found = [self._disk({**disk, "boot": at == 0}, at) for at, disk in enumerate(boot_first)]
        check_device_names(found)
        return found

    def _disk(self, request: Doc, at: int) -> Doc:
        field = f"resource.disks[{at}]"
        if request.get("type") == "SCRATCH":
            request = {
                **request,
                "initializeParams": {"diskName": f"{self.ref.name}-scratch-{at}", "diskSizeGb": "375"},
            }
        if request.get("source"):
            disk = parse(request["source"], near=self.ref.beside("disks", ""), field=f"{field}.source")
            doc = self._context.find(disk)
            self._disk_resource.check_unused(disk, doc, request.get("mode", "READ_WRITE"))
        else:
            params = request.get("initializeParams") or {}
            name = params.get("diskName") or (self.ref.name if at == 0 else f"{self.ref.name}-{at}")
            disk = self.ref.beside("disks", check_name(name, f"{field}.initializeParams.diskName"))
            if disk in self.disks:
                raise invalid(f"Invalid value for field '{field}': two disks have the name '{name}'.")
            if not params.get("diskSizeGb") and request.get("diskSizeGb"):
                params = {**params, "diskSizeGb": request["diskSizeGb"]}
            doc = self._disk_resource.make(disk, params, field=f"{field}.initializeParams")
            self.disks[disk] = doc
        if at == 0 and not doc.get("_machine") and not doc.get("_local"):
            raise invalid(f"Invalid value for field '{field}': the boot disk '{disk.name}' is empty.")
        return attached_disk(disk, doc, request, at)

    def _networks(self, given: Any) -> list[Doc]:
        found = []
        for at, request in enumerate(given or [{}]):
            near = Ref(self.ref.project, "global", "networks", "")
            network = parse(
                request.get("network") or "default", near=near, field=f"resource.networkInterfaces[{at}].network"
            )
            self._check_network(network, f"resource.networkInterfaces[{at}].network")
            region = google_types.region_of(last(self.ref.scope))
            subnetwork = last(request.get("subnetwork")) or network.name
            interface: Doc = {
                "kind": "compute#networkInterface",
                "name": f"nic{at}",
                "network": network.link,
                "subnetwork": Ref(self.ref.project, f"regions/{region}", "subnetworks", subnetwork).link,
                "fingerprint": fingerprint([at, self.ref.path]),
                "stackType": "IPV4_ONLY",
            }
            if configs := request.get("accessConfigs"):
                interface["accessConfigs"] = [access_config(config) for config in configs]
            found.append(interface)
        return found

    def _check_network(self, network: Ref, field: str) -> None:
        given = network.name == "default" and self._context.surroundings.now.default_network
        if not given and self._context.store.get(network) is None:
            message = f"Invalid value for field '{field}': '{network.path}'."
            raise invalid(f"{message} The referenced network resource cannot be found.")

    def _check_constraints(self, body: Doc) -> None:
        """Raise ApiError if a policy of the organisation forbids the instance."""
        project, check = self.ref.project, self._context.surroundings.check_constraint
        if any(one.get("accessConfigs") for one in body.get("networkInterfaces") or []):
            message = f"Add instance {self.ref.path} to the constraint to use external IP with it."
            check(EXTERNAL_ADDRESS, message, project=project)
        if not (body.get("shieldedInstanceConfig") or {}).get("enableSecureBoot"):
            message = "Secure Boot is not enabled in the 'shielded_instance_config' field."
            check(SHIELDED, message, project=f"projects/{project}")
        for disk in body.get("disks") or []:
            image = str((disk.get("initializeParams") or {}).get("sourceImage", ""))
            if owner := image.partition("projects/")[2].partition("/")[0]:
                check(
                    IMAGE_PROJECTS, f"Use of images from project {owner} is prohibited.", project=f"projects/{project}"
                )

    def _accelerators(self, given: list[Doc]) -> list[Doc]:
        found = []
        for at, request in enumerate(given):
            field = f"resource.guestAccelerators[{at}]"
            name = last(request.get("acceleratorType"))
            count = number(request.get("acceleratorCount", 1), f"{field}.acceleratorCount")
            if name not in google_types.ACCELERATORS:
                raise invalid(
                    f"Invalid value for field '{field}.acceleratorType': '{name}'. The referenced resource does not"
                    " exist."
                )
            found.append({"acceleratorType": self.ref.beside("acceleratorTypes", name).link, "acceleratorCount": count})
        if found and self.doc["scheduling"]["onHostMaintenance"] != "TERMINATE":
            raise invalid("Instances with guest accelerators do not support live migration.")
        return found


def access_config(request: Doc) -> Doc:
    return {
        "kind": "compute#accessConfig",
        "type": "ONE_TO_ONE_NAT",
        "name": request.get("name", "external-nat"),
        "networkTier": request.get("networkTier", "PREMIUM"),
    }


def tags_of(given: Doc) -> Doc:
    items = [str(tag) for tag in given.get("items", [])]
    return {"fingerprint": fingerprint(items), **({"items": items} if items else {})}


def scheduling(given: Doc) -> Doc:
    """Return the scheduling of a new instance, with the fields that follow from others. Raises ApiError."""
    model = given.get("provisioningModel", "SPOT" if given.get("preemptible") else "STANDARD")
    if model not in ("STANDARD", "SPOT", "FLEX_START", "RESERVATION_BOUND"):
        raise invalid(f"Invalid value for field 'resource.scheduling.provisioningModel': '{model}'.")
    spot = model == "SPOT" or bool(given.get("preemptible"))
    if spot and given.get("automaticRestart") is True:
        raise invalid(
            "Invalid value for field 'resource.scheduling': Scheduling must have automatic restart be false when"
            " preemptible is true."
        )
    action = given.get("instanceTerminationAction")
    if action not in (None, "STOP", "DELETE", "INSTANCE_TERMINATION_ACTION_UNSPECIFIED"):
        raise invalid(f"Invalid value for field 'resource.scheduling.instanceTerminationAction': '{action}'.")
    doc: Doc = {
        "onHostMaintenance": "TERMINATE" if spot else given.get("onHostMaintenance", "MIGRATE"),
        "automaticRestart": False if spot else bool(given.get("automaticRestart", True)),
        "preemptible": spot,
        "provisioningModel": "SPOT" if spot else model,
    }
    for name in ("instanceTerminationAction", "maxRunDuration", "terminationTime", "preemptionNoticeDuration"):
        if given.get(name):
            doc[name] = given[name]
    if spot:
        doc.setdefault("instanceTerminationAction", "STOP")
    if "maxRunDuration" in doc:
        number(doc["maxRunDuration"].get("seconds", ""), "resource.scheduling.maxRunDuration.seconds")
    return doc


def changed_scheduling(current: Doc, requested: Doc) -> Doc:
    """Return the scheduling of an existing instance after a change. A change of the model resets its other fields."""
    requested = dict(requested)
    if "provisioningModel" in requested:
        requested.setdefault("preemptible", requested["provisioningModel"] == "SPOT")
    elif "preemptible" in requested:
        requested["provisioningModel"] = "SPOT" if requested["preemptible"] else "STANDARD"
    spot = requested.get("preemptible", current["preemptible"])
    if spot != current["preemptible"]:
        kept = ("maxRunDuration", "terminationTime") if spot else ("onHostMaintenance", "automaticRestart")
        current = {name: current[name] for name in kept if name in current}
    return scheduling({**current, **requested})


def service_accounts(project: str, given: list[Doc]) -> list[Doc]:
    default = service_account(project)
    return [
        {
            "email": default if account.get("email", "default") == "default" else account["email"],
            "scopes": account.get("scopes", []),
        }
        for account in given
    ]
