"""`outlast machine create`, `list`, `show`, `snapshot`, `delete`: how machines come, what they are, how they go."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

import click

from outlast.cli.complete import complete_family, complete_image
from outlast.cli.interrupt_text import interruptible
from outlast.cli.machine_find import (
    cloud_option,
    complete_machine,
    find,
    hands_of,
    interactive_clouds,
    name_argument,
    workshop,
)
from outlast.cli.options import json_option, tell_prices, workspace_option
from outlast.cli.progress import confirm
from outlast.cli.project import parse_assignment, unreadable
from outlast.cli.terminal import money, note, table, tell_damaged
from outlast.errors import BadRequest, CloudError, NotFound, OutlastError, UsageError
from outlast.spec.quantity import describe_s, duration_s

if TYPE_CHECKING:
    from outlast.clouds.cloud import InteractiveCloud, Machine
    from outlast.machines.create import MachineRequest
    from outlast.machines.status import MachineStatus
    from outlast.records.machines import MachineRecords

T = TypeVar("T")
_DISK_GB = 10.0


@click.command()
@name_argument
@click.option("--image", default="", metavar="NAME", shell_complete=complete_image, help="An image, or a family.")
@click.option("--type", "type_name", default="", metavar="NAME", help="A machine type by its name.")
@click.option("--cpus", metavar="N", help="Processors: 8, 8+ or 4..16.")
@click.option("--memory", metavar="SIZE", help="Memory: 32GB or 32GB+.")
@click.option("--gpu", metavar="KIND", help="GPUs: T4 or A100:8.")
@click.option("--spot/--on-demand", default=None, help="Cheap and preemptible, or neither (on demand).")
@click.option("--disk", metavar="SIZE", help="Disk: 50GB.")
@click.option("--zone", "zones", multiple=True, metavar="ZONE", help="Only in this zone or region; may be repeated.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="A label; may be repeated.")
@click.option("--metadata", multiple=True, metavar="NAME=VALUE", help="Instance metadata; may be repeated.")
@click.option("--startup", metavar="FILE", help="A script that runs at every boot.")
@click.option("--like", metavar="OTHER", shell_complete=complete_machine, help="As that machine was asked for.")
@click.option("--wait", metavar="TIME", help="How long to wait until one can log in.")
@click.option("--no-ssh-config", is_flag=True, help="Leave ~/.ssh/config alone.")
@cloud_option
@workspace_option
def create(name: str, workspace_url: str, cloud_name: str, no_ssh_config: bool, **argv: Any) -> int:
    """Make the machine NAME, wait until one can log in, and say how."""
    from outlast.machines.create import create_machine, finish, roll_back

    machine_records = hands_of(workspace_url)
    like = argv.pop("like")
    wait_s = _read("--wait", argv.pop("wait"), duration_s, None)
    cloud, request = _wish(machine_records, name, cloud_name, like, argv)
    note(f"making {name} on {cloud.name}")
    with interruptible(), ExitStack() as undo:
        machine, machine_record = create_machine(cloud, machine_records, request, report=note)
        # Interrupted, or the workspace is gone: a machine that nobody was told of must not go on billing.
        undo.callback(roll_back, cloud, machine_records, machine_record, report=note)
        undo.callback(note, f"deleting {name} again")
        problem = _settle_in(cloud, machine_records, name, wait_s)
        finish(machine_records, machine_record)
        undo.pop_all()
    _tell_how(machine, no_ssh_config=no_ssh_config, problem=problem)
    tell_prices(cloud)
    return 0 if problem is None else problem.exit_code


def _settle_in(
    cloud: InteractiveCloud, machine_records: MachineRecords, name: str, wait_s: float | None
) -> OutlastError | None:
    """Wait until it lets us in, and remember what is installed. What stands against it: the machine is there."""
    from outlast.machines import packages
    from outlast.machines.ssh import Link

    try:
        link = Link(cloud, name, patience_s=wait_s)
        packages.remember(machine_records, name, packages.ask(link))
    except OutlastError as problem:
        return problem
    return None


def _tell_how(machine: Machine, *, no_ssh_config: bool, problem: OutlastError | None) -> None:
    from outlast.cli.terminal import complain
    from outlast.machines import sshfiles

    kind = "spot" if machine.spot else "on demand"
    price = money(machine.price_usd_per_hour + machine.disk_usd_per_hour)
    click.echo(f"{machine.name} runs in {machine.zone}: {machine.type}, {kind}, {price} an hour")
    if problem is not None:
        complain(f"it was made, it runs and it bills, but nobody can log in: {problem.message}", hint=problem.hint)
        return
    if not no_ssh_config and sshfiles.include_in_users_config():
        note(f"one line was added to ~/.ssh/config: {sshfiles.include_line()}")
    plain = f", or `ssh outlast-{machine.name}`" if sshfiles.included() else ""
    note(f"log in with `outlast machine ssh {machine.name}`{plain}")


def _wish(
    machine_records: MachineRecords, name: str, cloud_name: str, like: str | None, argv: dict[str, Any]
) -> tuple[InteractiveCloud, MachineRequest]:
    from outlast.machines import sshfiles
    from outlast.machines.create import MachineRequest, check_name
    from outlast.spec import quantity

    check_name(name)
    model = _model(machine_records, like) if like else {}
    from outlast.clouds.cloud import Boot, Range, Requirements

    if argv["type_name"] and (argv["cpus"] or argv["memory"] or argv["gpu"]):
        raise UsageError("--type says it all; --cpus, --memory and --gpu go without it")
    asked = argv["cpus"] or argv["memory"] or argv["gpu"]
    gpu, gpus = _read("--gpu", argv["gpu"], quantity.gpu_count, ("", 0))
    needs = Requirements(
        type=argv["type_name"] or ("" if asked else model.get("type", "")),
        cpus=_read("--cpus", argv["cpus"], quantity.number_range, Range()),
        memory_gb=_read("--memory", argv["memory"], quantity.size_range_gb, Range()),
        gpu=gpu,
        gpus=gpus,
        spot=model.get("spot", False) if argv["spot"] is None else argv["spot"],
        image=argv["image"] or model.get("image", ""),
        disk_gb=_read("--disk", argv["disk"], quantity.size_gb, model.get("disk_gb", _DISK_GB)),
        zones=tuple(argv["zones"]),
    )
    boot = Boot(
        image=needs.image,
        disk_gb=needs.disk_gb,
        script=_script(argv["startup"]) if argv["startup"] else model.get("script", ""),
        metadata={**model.get("metadata", {}), **_pairs("--metadata", argv["metadata"])},
        ssh_keys=(sshfiles.public_key(),),
    )
    labels = {**model.get("labels", {}), **_pairs("--label", argv["labels"])}
    chosen = workshop(cloud_name or model.get("cloud", "") or "local")
    return chosen, MachineRequest(name=name, needs=needs, boot=boot, labels=labels)


def _model(machine_records: MachineRecords, other: str) -> dict[str, Any]:
    """How another machine was asked for; as it is now where nobody has a record of it."""
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


def _read(option: str, text: str | None, read: Callable[[object], T], default: T) -> T:
    if text is None:
        return default
    try:
        return read(text)
    except ValueError as problem:
        raise UsageError(f"{option}: {problem}") from problem


def _pairs(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    return dict(parse_assignment(text, option=option) for text in texts)


def _script(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"--startup: `{path}` {unreadable(problem)}", hint="name a script") from problem


# What there is


@click.command("list")
@click.option("--all", "-a", "everything", is_flag=True, help="Also machines of other workspaces and of nobody.")
@cloud_option
@json_option
@workspace_option
def list_command(workspace_url: str, cloud_name: str, everything: bool, as_json: bool) -> int:
    """List machines of all clouds in every status, with what they cost; those that bill for nothing are marked."""
    from outlast.machines.status import collect_status

    machine_records = hands_of(workspace_url)
    asked = {cloud_name: workshop(cloud_name)} if cloud_name else interactive_clouds(machine_records.workspace)
    sights, unreachable = collect_status(asked, machine_records)
    shown = [sight for sight in sights if everything or sight.ours]
    for cloud, why in unreachable.items():
        note(f"{cloud} cannot be seen: {why}")
    _forget_deleted(asked, unreachable, sights)
    if as_json:
        import json

        click.echo(json.dumps([_as_data(sight) for sight in shown], indent=2))
    elif not shown:
        click.echo("no machines")
    else:
        header = ["NAME", "STATUS", "CLOUD", "ZONE", "TYPE", "KIND", "AGE", "$/H", "COST", "WHOSE", "REMARKS"]
        click.echo(table([_row(sight) for sight in shown], header=header))
    return tell_damaged(machine_records.damaged) or (CloudError.exit_code if unreachable else 0)


def _forget_deleted(asked: Any, unreachable: Any, sights: list[MachineStatus]) -> None:
    """Take the ssh blocks of machines out that are no more, where the cloud has told."""
    from outlast.machines import sshfiles

    there = {sight.name for sight in sights if sight.machine is not None}
    for cloud in asked:
        if cloud not in unreachable:
            for name in sshfiles.machines_written(cloud):
                if name not in there:
                    sshfiles.forget_machine(name)


def remarks(sight: MachineStatus) -> list[str]:
    said = []
    if sight.bills_for_nothing:
        said.append("stopped, and its disk bills")
    if sight.abandoned:
        said.append(f"the process that was {sight.status} it has died; `outlast reap` deletes it")
    elif sight.machine is None:
        said.append(f"`outlast machine delete {sight.name}` forgets it")
    elif sight.machine.why not in ("", sight.status):
        said.append(sight.machine.why)
    if sight.drift:
        said.append(f"drifted: {'; '.join(sight.drift)}")
    return said


def _row(sight: MachineStatus) -> list[str]:
    machine = sight.machine
    age = describe_s(max(0.0, (machine.seen_at or time.time()) - machine.created_at)) if machine else "-"
    return [
        sight.name,
        sight.status,
        sight.cloud,
        machine.zone if machine else "-",
        machine.type if machine else "-",
        ("spot" if machine.spot else "on demand") if machine else "-",
        age,
        money(sight.usd_per_hour),
        money(sight.cost_usd),
        sight.whose,
        "; ".join(remarks(sight)),
    ]


def _as_data(sight: MachineStatus) -> dict[str, Any]:
    import msgspec

    machine = msgspec.to_builtins(sight.machine) if sight.machine else {}
    assert isinstance(machine, dict)
    return {
        **machine,
        "name": sight.name,
        "cloud": sight.cloud,
        "status": sight.status,
        "whose": sight.whose,
        "by_hand": sight.machine_record is not None,
        "usd_per_hour": sight.usd_per_hour,
        "cost_usd": sight.cost_usd,
        "bills_for_nothing": sight.bills_for_nothing,
        "drift": list(sight.drift),
    }


@click.command()
@name_argument
@click.option("--packages", "with_packages", is_flag=True, help="Log in, and say what was installed since.")
@cloud_option
@json_option
@workspace_option
def show(name: str, workspace_url: str, cloud_name: str, with_packages: bool, as_json: bool) -> int:
    """Show the machine NAME: what it is, what it has cost, how it is reached, what changed since it was made."""
    from outlast.machines.status import machine_status

    machine_records = hands_of(workspace_url)
    cloud, machine = find(machine_records, name, cloud_name=cloud_name)
    sight = machine_status(cloud, machine_records, machine)
    installed = _installed(cloud, machine_records, name) if with_packages else None
    data = {**_as_data(sight), "metadata": dict(cloud.metadata(name))}
    if installed is not None:
        data["packages_changed"] = installed
    if as_json:
        import json

        click.echo(json.dumps(data, indent=2))
        return 0
    kind = "spot" if machine.spot else "on demand"
    click.echo(f"{name}: {sight.status}{f' ({machine.why})' if machine.why else ''}")
    click.echo(f"  where     {cloud.name} {machine.zone}, {machine.type}, {kind}, {machine.disk_gb:g} GB disk")
    click.echo(f"  image     {machine.image or '-'}")
    click.echo(f"  costs     {money(sight.usd_per_hour)} an hour now, {money(sight.cost_usd)} so far")
    click.echo(f"  whose     {sight.whose}")
    click.echo(f"  address   {machine.address or '-'}")
    for key, value in sorted(cloud.metadata(name).items()):
        click.echo(f"  metadata  {key}={' '.join(value.split())[:80]}")
    _print_drift([*sight.drift, *(installed or [])], known=sight.machine_record is not None)
    return 0


def _print_drift(drifted: list[str], *, known: bool) -> None:
    if not known:
        return
    click.echo("  drift     " + ("none: as it was made" if not drifted else f"{len(drifted)} since it was made"))
    for line in drifted:
        click.echo(f"            {line}")


def _installed(cloud: InteractiveCloud, machine_records: MachineRecords, name: str) -> list[str]:
    from outlast.machines import packages
    from outlast.machines.ssh import Link

    before = packages.remembered(machine_records, name)
    if before is None:
        raise BadRequest(f"nobody remembers what was installed on {name} when it was made")
    return list(packages.changes(before, packages.ask(Link(cloud, name))))


# How they go


@click.command()
@name_argument
@click.option("--family", required=True, metavar="NAME", shell_complete=complete_family, help="Of which family.")
@click.option("--image-name", default="", metavar="NAME", help="The name of the image (FAMILY and the time).")
@click.option("--stop", "may_stop", is_flag=True, help="Stop the machine for it, and start it again.")
@cloud_option
@workspace_option
def snapshot(name: str, workspace_url: str, cloud_name: str, family: str, image_name: str, may_stop: bool) -> int:
    """Make an image of the disk of the machine NAME, as the newest of a family."""
    from outlast.machines import lifecycle
    from outlast.machines.create import check_name

    machine_records = hands_of(workspace_url)
    image = image_name or f"{family}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
    for text in (family, image):
        check_name(text)
    cloud, _ = find(machine_records, name, cloud_name=cloud_name)
    made = lifecycle.snapshot(cloud, name, image=image, family=family, may_stop=may_stop, note=f"from {name}")
    note(f"the newest of `{family}` now: `outlast machine create NAME --image {family}` boots from it")
    click.echo(made.name)
    return 0


@click.command()
@name_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@cloud_option
@workspace_option
def delete(name: str, workspace_url: str, cloud_name: str, yes: bool) -> int:
    """Delete the machine NAME with its disk. It asks first."""
    from outlast.machines import lifecycle

    machine_records = hands_of(workspace_url)
    try:
        cloud, machine = find(machine_records, name, cloud_name=cloud_name)
    except NotFound:
        if name not in machine_records.names():
            raise
        _forget(machine_records, name)
        return 0
    if not yes and not _agreed(cloud, machine_records, machine):
        note("nothing was deleted")
        return 0
    lifecycle.delete(cloud, machine_records, name)
    click.echo(f"deleted {name}")
    return 0


def _forget(machine_records: MachineRecords, name: str) -> None:
    from outlast.machines import lifecycle

    record = machine_records.find_readable(name)
    view = machine_records.view(name) if record is not None else None
    if record is not None and record.phase == "creating" and view is not None and not view.abandoned:
        raise BadRequest(f"{record.by} is making {name} just now", hint="wait, or stop it there")
    lifecycle.forget(machine_records, name)
    click.echo(f"forgot {name}, which was gone already")


def _agreed(cloud: InteractiveCloud, machine_records: MachineRecords, machine: Machine) -> bool:
    from outlast.machines.status import machine_status

    whose = machine_status(cloud, machine_records, machine).whose
    question = f"delete {machine.name} ({machine.status}, {whose}) on {cloud.name}, and its disk with it?"
    try:
        return confirm(question)
    except click.Abort as problem:
        raise UsageError("nobody answered; nothing was deleted", hint="say --yes to delete without asking") from problem
