"""`outlast machine resize`, `set` and `snapshot`."""

from __future__ import annotations

import click

from outlast.app.machine_life import resize_machine, snapshot_machine
from outlast.app.machines import find_machine
from outlast.cli.completion import complete_family
from outlast.cli.machine.find import (
    cloud_option,
    machine_records_in,
    name_argument,
)
from outlast.cli.shared.command import UNCERTAIN, command
from outlast.cli.shared.interrupt_text import interruptible
from outlast.cli.shared.options import parse_option, workspace_option
from outlast.cli.shared.project import parse_assignment
from outlast.cli.shared.terminal import find_workspace, note
from outlast.spec.quantity import size_gb


@command(
    progress="creating the image",
    interrupt="the image may still be created: `outlast image list`; the machine may be stopped",
)
@name_argument
@click.option("--family", required=True, metavar="NAME", shell_complete=complete_family, help="Image family.")
@click.option("--image-name", default="", metavar="NAME", help="Name of the image (FAMILY-TIME).")
@click.option("--stop", "may_stop", is_flag=True, help="Stop the machine first, and start it again.")
@click.option("--keep", multiple=True, metavar="PATTERN", help="Do not scrub these paths; `*`: none. May be repeated.")
@cloud_option
@workspace_option
def snapshot(
    name: str,
    workspace_url: str,
    cloud_name: str,
    family: str,
    image_name: str,
    may_stop: bool,
    keep: tuple[str, ...],
) -> int:
    """Create an image from the disk of the machine NAME, as the newest of a family.

    Keys, credentials, histories and repositories are removed from the image; the machine keeps them. A temporary
    machine does that.
    """
    with interruptible():
        made = snapshot_machine(
            find_workspace(workspace_url),
            machine_records_in(workspace_url),
            name,
            family=family,
            image=image_name,
            keep=keep,
            may_stop=may_stop,
            cloud_name=cloud_name,
            report=note,
        )
    note(f"boot from it with `outlast machine create NAME --image {family}`")
    click.echo(made.name)
    return 0


@command(progress="resizing", interrupt=f"{UNCERTAIN}; the machine may be stopped: `outlast machine start NAME`")
@name_argument
@click.option("--type", "type_name", default="", metavar="NAME", help="New machine type.")
@click.option("--disk", metavar="SIZE", help="New, larger disk size: 100GB.")
@click.option("--restart", is_flag=True, help="Stop a running machine to change its type, and start it again.")
@cloud_option
@workspace_option
def resize(name: str, workspace_url: str, cloud_name: str, type_name: str, disk: str | None, restart: bool) -> int:
    """Change the type of the machine NAME, or grow its disk."""
    disk_gb = parse_option("--disk", disk, size_gb, 0.0)
    now = resize_machine(
        machine_records_in(workspace_url), name, cloud_name=cloud_name, type=type_name, disk_gb=disk_gb, restart=restart
    )
    click.echo(f"{name} is a {now.type} with {now.disk_gb:g} GB")
    return 0


@command("set", progress="changing the machine", interrupt=UNCERTAIN)
@name_argument
@click.argument("items", nargs=-1, required=True, metavar="KEY=VALUE...")
@cloud_option
@workspace_option
def set_command(name: str, items: tuple[str, ...], workspace_url: str, cloud_name: str) -> int:
    """Set metadata of the machine NAME, which programs on it can read and watch."""
    pairs = dict(parse_assignment(item, option="KEY=VALUE") for item in items)
    cloud, _ = find_machine(machine_records_in(workspace_url), name, cloud_name=cloud_name)
    cloud.set_metadata(name, pairs)
    click.echo(f"set {', '.join(pairs)} of {name}")
    return 0
