"""What a request wants of a new machine, checked and filled up with Google's defaults. Makes nothing."""

from __future__ import annotations

from typing import Any

from outlast.clouds.local import google_types
from outlast_gcp_emulator.compute import builtin_kinds, disks
from outlast_gcp_emulator.compute.context import Context, check_free, new_resource
from outlast_gcp_emulator.compute.refs import Doc, Ref, check_name, fingerprint, last, number, parse
from outlast_gcp_emulator.errors import invalid

# What a body may say of a machine, and is kept as it is said.
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
    """A new machine with its disks: `disks` are those to be made, `attached` all of them, the boot disk first."""

    def __init__(self, context: Context, ref: Ref, body: Doc) -> None:
        self.context = context
        self.ref = ref
        check_name(body.get("name"))
        check_free(context, ref)
        self.disks: dict[Ref, Doc] = {}
        kept = {name: body[name] for name in KEPT if name in body}
        self.doc = new_resource(ref, "instance", {**kept, "name": ref.name}) | {
            "machineType": self._machine_type(body.get("machineType")),
            "disks": self._disks(body.get("disks")),
            "networkInterfaces": self._networks(body.get("networkInterfaces")),
            "scheduling": scheduling(body.get("scheduling", {})),
            "metadata": builtin_kinds.metadata_of(builtin_kinds.check_items(body.get("metadata", {}).get("items", []))),
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
        if not self.doc["serviceAccounts"]:
            del self.doc["serviceAccounts"]
        self.doc["fingerprint"] = fingerprint(self.doc["id"])

    def _machine_type(self, given: Any) -> str:
        field = "resource.machineType"
        kind = parse(given, near=self.ref.beside("machineTypes", ""), field=field)
        if google_types.machine_type(kind.name) is None:
            told = f"Machine type with name '{kind.name}' does not exist in zone '{last(self.ref.scope)}'."
            raise invalid(f"Invalid value for field '{field}': '{given}'. {told}")
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
        disks.check_devices(found)
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
            doc = self.context.find(disk)
            disks.check_unused(self.context, disk, doc, request.get("mode", "READ_WRITE"))
        else:
            params = request.get("initializeParams") or {}
            name = params.get("diskName") or (self.ref.name if at == 0 else f"{self.ref.name}-{at}")
            disk = self.ref.beside("disks", check_name(name, f"{field}.initializeParams.diskName"))
            if disk in self.disks:
                raise invalid(f"Invalid value for field '{field}': two disks have the name '{name}'.")
            if not params.get("diskSizeGb") and request.get("diskSizeGb"):
                params = {**params, "diskSizeGb": request["diskSizeGb"]}
            doc = disks.make(self.context, disk, params, field=f"{field}.initializeParams")
            self.disks[disk] = doc
        if at == 0 and not doc.get("_machine") and not doc.get("_local"):
            raise invalid(f"Invalid value for field '{field}': the boot disk '{disk.name}' is empty.")
        return disks.attached(disk, doc, request, at)

    def _networks(self, given: Any) -> list[Doc]:
        found = []
        for at, request in enumerate(given or [{}]):
            near = Ref(self.ref.project, "global", "networks", "")
            network = parse(
                request.get("network") or "default", near=near, field=f"resource.networkInterfaces[{at}].network"
            )
            if network.name != "default":
                self.context.find(network)
            region = google_types.region_of(last(self.ref.scope))
            subnetwork = last(request.get("subnetwork")) or network.name
            one: Doc = {
                "kind": "compute#networkInterface",
                "name": f"nic{at}",
                "network": network.link,
                "subnetwork": Ref(self.ref.project, f"regions/{region}", "subnetworks", subnetwork).link,
                "fingerprint": fingerprint([at, self.ref.path]),
                "stackType": "IPV4_ONLY",
            }
            if configs := request.get("accessConfigs"):
                one["accessConfigs"] = [access_config(config) for config in configs]
            found.append(one)
        return found

    def _accelerators(self, given: list[Doc]) -> list[Doc]:
        found = []
        for at, request in enumerate(given):
            field = f"resource.guestAccelerators[{at}]"
            name = last(request.get("acceleratorType"))
            count = number(request.get("acceleratorCount", 1), f"{field}.acceleratorCount")
            if name not in google_types.ACCELERATORS:
                told = "The referenced resource does not exist."
                raise invalid(f"Invalid value for field '{field}.acceleratorType': '{name}'. {told}")
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
    """How the cloud treats the machine, with what follows from it."""
    model = given.get("provisioningModel", "SPOT" if given.get("preemptible") else "STANDARD")
    if model not in ("STANDARD", "SPOT", "FLEX_START", "RESERVATION_BOUND"):
        raise invalid(f"Invalid value for field 'resource.scheduling.provisioningModel': '{model}'.")
    spot = model == "SPOT" or bool(given.get("preemptible"))
    if spot and given.get("automaticRestart") is True:
        told = "Scheduling must have automatic restart be false when preemptible is true."
        raise invalid(f"Invalid value for field 'resource.scheduling': {told}")
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


def rescheduling(had: Doc, asked: Doc) -> Doc:
    """The same of a machine that is there. One word says that it is to be another kind; the old kind's rules go."""
    asked = dict(asked)
    if "provisioningModel" in asked:
        asked.setdefault("preemptible", asked["provisioningModel"] == "SPOT")
    elif "preemptible" in asked:
        asked["provisioningModel"] = "SPOT" if asked["preemptible"] else "STANDARD"
    if asked.get("preemptible", had["preemptible"]) != had["preemptible"]:
        kept = (
            ("maxRunDuration", "terminationTime") if asked["preemptible"] else ("onHostMaintenance", "automaticRestart")
        )
        had = {name: had[name] for name in kept if name in had}
    return scheduling({**had, **asked})


def service_accounts(project: str, given: list[Doc]) -> list[Doc]:
    own = builtin_kinds.service_account(project)
    return [
        {
            "email": own if account.get("email", "default") == "default" else account["email"],
            "scopes": account.get("scopes", []),
        }
        for account in given
    ]
