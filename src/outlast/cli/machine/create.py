"""`outlast machine create`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.completion import complete_image
from outlast.cli.machine.find import (
    cloud_option,
    complete_machine,
    find,
    interactive_cloud,
    machine_records_in,
    name_argument,
)
from outlast.cli.shared.command import command
from outlast.cli.shared.interrupt_text import interruptible
from outlast.cli.shared.options import parse_option, print_price_note, workspace_option
from outlast.cli.shared.project import load_project, parse_assignment, unreadable
from outlast.cli.shared.terminal import money, note
from outlast.clouds.traits import DEFAULT_CLOUD
from outlast.errors import CloudError, OutlastError, SpecError, UsageError
from outlast.spec.quantity import duration_s

if TYPE_CHECKING:
    from outlast.app.types import InteractiveCloud, Link, Machine, MachineRecords, MachineRequest

_DISK_GB = 10.0


@command(
    progress="waiting for the machine",
    interrupt="stopped; the machine is deleted again; if that failed, `outlast reap` deletes it",
)
@name_argument
@click.option("--image", default="", metavar="NAME", shell_complete=complete_image, help="Image or image family.")
@click.option("--type", "type_name", default="", metavar="NAME", help="Machine type by name.")
@click.option("--cpus", metavar="N", help="Processors: 8, 8+ or 4..16.")
@click.option("--memory", metavar="SIZE", help="Memory: 32GB or 32GB+.")
@click.option("--gpu", metavar="KIND", help="GPUs: T4 or A100:8.")
@click.option("--spot/--on-demand", default=None, help="Cheap and preemptible, or on demand (on demand).")
@click.option("--disk", metavar="SIZE", help="Disk: 50GB.")
@click.option("--zone", "zones", multiple=True, metavar="ZONE", help="Only in this zone or region; may be repeated.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Label; may be repeated.")
@click.option("--metadata", multiple=True, metavar="NAME=VALUE", help="Instance metadata; may be repeated.")
@click.option("--startup", metavar="FILE", help="Script that runs at every boot.")
@click.option("--like", metavar="OTHER", shell_complete=complete_machine, help="Copy the settings of that machine.")
@click.option("--environment", default="", metavar="FILE", help="File that lists the Python packages; or: none, host.")
@click.option("--wait", metavar="TIME", help="Maximum time to wait for a login.")
@click.option("--no-ssh-config", is_flag=True, help="Do not change ~/.ssh/config.")
@cloud_option
@workspace_option
def create(name: str, workspace_url: str, cloud_name: str, no_ssh_config: bool, **options: Any) -> int:
    """Create the machine NAME, and wait until it accepts a login."""
    from outlast.machines.create import create_machine, finish, roll_back

    machine_records = machine_records_in(workspace_url)
    like = options.pop("like")
    wait_s = parse_option("--wait", options.pop("wait"), duration_s, None)
    environment = options.pop("environment")
    cloud, request = _machine_request(machine_records, name, cloud_name, like, options)
    packages = _Packages(machine_records, cloud, request, environment)
    request = packages.with_host_access(request)
    note(f"creating {name} on {cloud.name}")
    with interruptible(), ExitStack() as undo:
        machine, machine_record = create_machine(cloud, machine_records, request, report=note)
        # On an interrupt or an error: a machine that the user does not know of must not be billed.
        undo.callback(roll_back, cloud, machine_records, machine_record, report=note)
        undo.callback(note, f"deleting {name} again")
        problem = _wait_for_login(cloud, machine_records, name, wait_s, packages.install)
        finish(machine_records, machine_record)
        undo.pop_all()
    _print_access(machine, no_ssh_config=no_ssh_config, problem=problem)
    print_price_note(cloud)
    return 0 if problem is None else problem.exit_code


class _Packages:
    """The packages of the project for one machine: resolved before the launch, installed after it."""

    def __init__(
        self, machine_records: MachineRecords, cloud: InteractiveCloud, request: MachineRequest, source: str
    ) -> None:
        from outlast.environments.host import host_environment
        from outlast.environments.project import Base, project_environment
        from outlast.spec.parse import read_environment
        from outlast.spec.reader import Reader

        self.bucket, self.host_path = machine_records.bucket, ""
        project = load_project("")
        table = {"environment": source} if source else project.table
        shared = cloud.traits.shares_host_files
        base: Base = "host" if shared else "chosen" if request.boot.image else "default"
        reader = Reader(table)
        wanted = read_environment(reader)
        if reader.problems:
            raise SpecError(reader.problems, source=project.source)
        self.record = project_environment(self.bucket, project.folder, wanted, base=base, report=note)
        if self.record is not None and not self.record.packages:
            self.record = None
        if self.record is not None and shared:
            self.host_path = host_environment(self.bucket, self.record, note)

    def with_host_access(self, request: MachineRequest) -> MachineRequest:
        """Return the request; a machine that shares this computer's files may read the environment."""
        import msgspec

        from outlast.clouds.cloud import HostAccess
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
            environment.install_environment(link, self.record, lock, report=note)


def _wait_for_login(
    cloud: InteractiveCloud,
    machine_records: MachineRecords,
    name: str,
    wait_s: float | None,
    install: Callable[[Link], None],
) -> OutlastError | None:
    """Wait for a login, install and record the packages; return the error, as the machine exists anyway."""
    from outlast.machines import packages
    from outlast.machines.ssh import Link

    try:
        link = Link(cloud, name, patience_s=wait_s)
        install(link)
        packages.store(machine_records, name, packages.installed(link))
    except OutlastError as problem:
        return problem
    return None


def _print_access(machine: Machine, *, no_ssh_config: bool, problem: OutlastError | None) -> None:
    from outlast.cli.shared.terminal import complain
    from outlast.machines import sshfiles

    kind = "spot" if machine.spot else "on demand"
    price = money(machine.price_usd_per_hour + machine.disk_usd_per_hour)
    click.echo(f"{machine.name} runs in {machine.zone}: {machine.type}, {kind}, {price} an hour")
    if problem is not None:
        what = "login fails" if isinstance(problem, CloudError) else "it is not ready"
        complain(f"the machine runs and is billed, but {what}: {problem.message}", hint=problem.hint)
        return
    if not no_ssh_config and sshfiles.include_in_users_config():
        note(f"added a line to ~/.ssh/config: {sshfiles.include_line()}")
    plain = f", or `ssh outlast-{machine.name}`" if sshfiles.included() else ""
    note(f"log in with `outlast machine ssh {machine.name}`{plain}")


def _machine_request(
    machine_records: MachineRecords, name: str, cloud_name: str, like: str | None, options: dict[str, Any]
) -> tuple[InteractiveCloud, MachineRequest]:
    from outlast.machines import sshfiles
    from outlast.machines.create import MachineRequest, check_name
    from outlast.spec import quantity

    check_name(name)
    model = _like(machine_records, like) if like else {}
    from outlast.clouds.cloud import Boot, Range, Requirements

    if options["type_name"] and (options["cpus"] or options["memory"] or options["gpu"]):
        raise UsageError("`--type` cannot be combined with `--cpus`, `--memory` or `--gpu`")
    sized = options["cpus"] or options["memory"] or options["gpu"]
    gpu, gpus = parse_option("--gpu", options["gpu"], quantity.gpu_count, ("", 0))
    needs = Requirements(
        type=options["type_name"] or ("" if sized else model.get("type", "")),
        cpus=parse_option("--cpus", options["cpus"], quantity.number_range, Range()),
        memory_gb=parse_option("--memory", options["memory"], quantity.size_range_gb, Range()),
        gpu=gpu,
        gpus=gpus,
        spot=model.get("spot", False) if options["spot"] is None else options["spot"],
        image=options["image"] or model.get("image", ""),
        disk_gb=parse_option("--disk", options["disk"], quantity.size_gb, model.get("disk_gb", _DISK_GB)),
        zones=tuple(options["zones"]),
    )
    boot = Boot(
        image=needs.image,
        disk_gb=needs.disk_gb,
        script=_script(options["startup"]) if options["startup"] else model.get("script", ""),
        metadata={**model.get("metadata", {}), **_pairs("--metadata", options["metadata"])},
        ssh_keys=(sshfiles.public_key(),),
    )
    labels = {**model.get("labels", {}), **_pairs("--label", options["labels"])}
    chosen = interactive_cloud(cloud_name or model.get("cloud", "") or DEFAULT_CLOUD)
    return chosen, MachineRequest(name=name, needs=needs, boot=boot, labels=labels)


def _like(machine_records: MachineRecords, other: str) -> dict[str, Any]:
    """Return the settings of another machine: as requested, or without a record as they are now."""
    record = machine_records.find(other)
    if record is not None and record.born is not None:
        born, cloud = record.born, record.cloud
        given = {"script": record.script, "image": record.image, "spot": record.spot}
    else:
        from outlast.machines.create import facts

        place, machine = find(machine_records, other)
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


def _pairs(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    return dict(parse_assignment(text, option=option) for text in texts)


def _script(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"--startup: `{path}` {unreadable(problem)}", hint="expected a script") from problem
