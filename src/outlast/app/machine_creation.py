"""Creating a machine: its request, the packages of the project, and the wait for a login."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import msgspec

from outlast.app.machines import find_machine, interactive_cloud
from outlast.app.project import load_project
from outlast.clouds.cloud import Boot, HostAccess, Range, Requirements
from outlast.clouds.traits import DEFAULT_CLOUD
from outlast.errors import OutlastError, SpecError, UsageError
from outlast.machines.create import MachineRequest

if TYPE_CHECKING:
    from outlast.clouds.cloud import InteractiveCloud, Machine
    from outlast.machines.ssh import Link
    from outlast.records.machines import MachineRecords

_DISK_GB = 10.0
Report = Callable[[str], None]


class WantedMachine(msgspec.Struct, frozen=True, kw_only=True):
    """What a user wants; fields that are None or empty are those of the machine `like`, or defaults."""

    name: str
    cloud: str = ""
    like: str = ""
    type: str = ""
    cpus: Range | None = None
    memory_gb: Range | None = None
    gpu: str = ""
    gpus: int = 0
    spot: bool | None = None
    image: str = ""
    disk_gb: float | None = None
    zones: tuple[str, ...] = ()
    labels: Mapping[str, str] = {}
    metadata: Mapping[str, str] = {}
    # The text of the script that runs at every boot.
    script: str = ""
    # A file that lists Python packages, `none` or `host`; empty: as the project file says.
    environment: str = ""
    wait_s: float | None = None

    @property
    def sized(self) -> bool:
        return bool(self.cpus or self.memory_gb or self.gpu)


class CreatedMachine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that runs and is billed. `problem`: why logins fail, or why a package is missing."""

    machine: Machine
    cloud: InteractiveCloud
    problem: OutlastError | None


def create_machine(records: MachineRecords, wanted: WantedMachine, *, report: Report) -> CreatedMachine:
    """Create a machine and wait until it accepts a login. After an interrupt or an error it is deleted again."""
    from outlast.machines.create import create_machine as create
    from outlast.machines.create import finish, roll_back

    cloud, request = _request(records, wanted)
    packages = _Packages(records, cloud, request, wanted.environment, report)
    request = packages.with_host_access(request)
    report(f"creating {wanted.name} on {cloud.name}")
    with ExitStack() as undo:
        machine, record = create(cloud, records, request, report=report)
        # On an interrupt or an error: a machine that the user does not know of must not be billed.
        undo.callback(roll_back, cloud, records, record, report=report)
        undo.callback(report, f"deleting {wanted.name} again")
        problem = _wait_for_login(cloud, records, wanted, packages.install)
        finish(records, record)
        undo.pop_all()
    return CreatedMachine(machine=machine, cloud=cloud, problem=problem)


def _wait_for_login(
    cloud: InteractiveCloud, records: MachineRecords, wanted: WantedMachine, install: Callable[[Link], None]
) -> OutlastError | None:
    """Wait for a login, install and record the packages; return the error, as the machine exists anyway."""
    from outlast.machines import packages
    from outlast.machines.ssh import Link

    try:
        link = Link(cloud, wanted.name, patience_s=wanted.wait_s)
        install(link)
        packages.store(records, wanted.name, packages.installed(link))
    except OutlastError as problem:
        return problem
    return None


def _request(records: MachineRecords, wanted: WantedMachine) -> tuple[InteractiveCloud, MachineRequest]:
    from outlast.machines import sshfiles
    from outlast.machines.create import check_name

    check_name(wanted.name)
    model = _like(records, wanted.like) if wanted.like else {}
    if wanted.type and wanted.sized:
        raise UsageError("`--type` cannot be combined with `--cpus`, `--memory` or `--gpu`")
    needs = Requirements(
        type=wanted.type or ("" if wanted.sized else model.get("type", "")),
        cpus=wanted.cpus or Range(),
        memory_gb=wanted.memory_gb or Range(),
        gpu=wanted.gpu,
        gpus=wanted.gpus,
        spot=model.get("spot", False) if wanted.spot is None else wanted.spot,
        image=wanted.image or model.get("image", ""),
        disk_gb=model.get("disk_gb", _DISK_GB) if wanted.disk_gb is None else wanted.disk_gb,
        zones=wanted.zones,
    )
    boot = Boot(
        image=needs.image,
        disk_gb=needs.disk_gb,
        script=wanted.script or model.get("script", ""),
        metadata={**model.get("metadata", {}), **wanted.metadata},
        ssh_keys=(sshfiles.public_key(),),
    )
    labels = {**model.get("labels", {}), **wanted.labels}
    chosen = interactive_cloud(wanted.cloud or model.get("cloud", "") or DEFAULT_CLOUD)
    return chosen, MachineRequest(name=wanted.name, needs=needs, boot=boot, labels=labels)


def _like(records: MachineRecords, other: str) -> dict[str, Any]:
    """Return the settings of another machine: as requested, or without a record as they are now."""
    record = records.find(other)
    if record is not None and record.born is not None:
        born, cloud = record.born, record.cloud
        given = {"script": record.script, "image": record.image, "spot": record.spot}
    else:
        from outlast.machines.create import facts

        place, machine = find_machine(records, other)
        born, cloud = facts(machine, place.metadata(other)), place.name
        given = {"script": "", "image": machine.image, "spot": machine.spot}
    return {
        **given,
        "cloud": cloud,
        "type": born.type,
        "disk_gb": born.disk_gb,
        "metadata": {key: value for key, value in born.metadata.items() if key not in ("startup-script", "ssh-keys")},
        "labels": {key: value for key, value in born.labels.items() if not key.startswith("outlast-")},
    }


class _Packages:
    """The packages of the project for one machine: resolved before the launch, installed after it."""

    def __init__(
        self, records: MachineRecords, cloud: InteractiveCloud, request: MachineRequest, source: str, report: Report
    ) -> None:
        from outlast.environments.host import host_environment
        from outlast.environments.project import Base, project_environment
        from outlast.spec.parse import read_environment
        from outlast.spec.reader import Reader

        self.bucket, self.host_path, self.report = records.bucket, "", report
        project = load_project("")
        table = {"environment": source} if source else project.table
        shared = cloud.traits.shares_host_files
        base: Base = "host" if shared else "chosen" if request.boot.image else "default"
        reader = Reader(table)
        wanted = read_environment(reader)
        if reader.problems:
            raise SpecError(reader.problems, source=project.source)
        self.record = project_environment(self.bucket, project.folder, wanted, base=base, report=report)
        if self.record is not None and not self.record.packages:
            self.record = None
        if self.record is not None and shared:
            self.host_path = host_environment(self.bucket, self.record, report)

    def with_host_access(self, request: MachineRequest) -> MachineRequest:
        """Return the request; a machine that shares this computer's files may read the environment."""
        from outlast.supervisor.boot import environments

        if not self.host_path:
            return request
        host = HostAccess(software=environments(f"{self.host_path}/bin"))
        return msgspec.structs.replace(request, boot=msgspec.structs.replace(request.boot, host=host))

    def install(self, link: Link) -> None:
        """Install the packages, first on the PATH of the machine's shells. Raises OutlastError."""
        from outlast.machines import environment

        if self.host_path:
            environment.link_environment(link, self.host_path)
        elif self.record is not None:
            lock = self.bucket.get(self.record.lock_key)
            environment.install_environment(link, self.record, lock, report=self.report)
