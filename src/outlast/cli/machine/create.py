"""`outlast machine create`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from outlast.app.machine_creation import WantedMachine, create_machine
from outlast.app.machine_ssh import include_in_users_config, is_in_users_config
from outlast.cli.completion import complete_image
from outlast.cli.machine.find import cloud_option, complete_machine, machine_records_in, name_argument
from outlast.cli.shared.command import command
from outlast.cli.shared.interrupt_text import interruptible
from outlast.cli.shared.options import parse_option, print_price_note, workspace_option
from outlast.cli.shared.project import parse_assignment, unreadable
from outlast.cli.shared.terminal import money, note
from outlast.errors import CloudError, OutlastError, UsageError
from outlast.spec import quantity

if TYPE_CHECKING:
    from outlast.app.types import Machine


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
    records = machine_records_in(workspace_url)
    wanted = _wanted(name, cloud_name, options)
    with interruptible():
        created = create_machine(records, wanted, report=note)
    _print_access(created.machine, no_ssh_config=no_ssh_config, problem=created.problem)
    print_price_note(created.cloud)
    return 0 if created.problem is None else created.problem.exit_code


def _wanted(name: str, cloud_name: str, options: dict[str, Any]) -> WantedMachine:
    gpu, gpus = parse_option("--gpu", options["gpu"], quantity.gpu_count, ("", 0))
    return WantedMachine(
        name=name,
        cloud=cloud_name,
        like=options["like"] or "",
        type=options["type_name"],
        cpus=parse_option("--cpus", options["cpus"], quantity.number_range, None),
        memory_gb=parse_option("--memory", options["memory"], quantity.size_range_gb, None),
        gpu=gpu,
        gpus=gpus,
        spot=options["spot"],
        image=options["image"],
        disk_gb=parse_option("--disk", options["disk"], quantity.size_gb, None),
        zones=tuple(options["zones"]),
        labels=_pairs("--label", options["labels"]),
        metadata=_pairs("--metadata", options["metadata"]),
        script=_script(options["startup"]) if options["startup"] else "",
        environment=options["environment"],
        wait_s=parse_option("--wait", options["wait"], quantity.duration_s, None),
    )


def _print_access(machine: Machine, *, no_ssh_config: bool, problem: OutlastError | None) -> None:
    from outlast.cli.shared.terminal import complain

    kind = "spot" if machine.spot else "on demand"
    price = money(machine.price_usd_per_hour + machine.disk_usd_per_hour)
    click.echo(f"{machine.name} runs in {machine.zone}: {machine.type}, {kind}, {price} an hour")
    if problem is not None:
        what = "login fails" if isinstance(problem, CloudError) else "it is not ready"
        complain(f"the machine runs and is billed, but {what}: {problem.message}", hint=problem.hint)
        return
    if not no_ssh_config:
        include_in_users_config(note, where="to ~/.ssh/config")
    plain = f", or `ssh outlast-{machine.name}`" if is_in_users_config() else ""
    note(f"log in with `outlast machine ssh {machine.name}`{plain}")


def _pairs(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    return dict(parse_assignment(text, option=option) for text in texts)


def _script(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"--startup: `{path}` {unreadable(problem)}", hint="expected a script") from problem
