"""`outlast image share`, `promote` and `rollback`."""

from __future__ import annotations

import click

from outlast.app.images import promote_image, roll_back_family, share_image
from outlast.cli.completion import complete_family, complete_image
from outlast.cli.shared.command import UNCERTAIN, command
from outlast.cli.shared.terminal import note


@command(progress="copying the image", interrupt=UNCERTAIN)
@click.argument("name", metavar="IMAGE", shell_complete=complete_image)
@click.argument("who", nargs=-1, required=True, metavar="WHO...")
def share(name: str, who: tuple[str, ...]) -> int:
    """Let other projects, accounts or users boot from an image."""
    found, only_recorded = share_image(name, who)
    click.echo(f"{found.name} is shared with {', '.join(who)}")
    if only_recorded:
        note(
            "on this cloud that is a record only: its images are files of your account on this computer, and no other "
            "account can boot from them. It was checked that the image has no personal files"
        )
    return 0


@command(progress="changing the family", interrupt=UNCERTAIN)
@click.argument("name", metavar="IMAGE", shell_complete=complete_image)
def promote(name: str) -> int:
    """Make an image the current one of its family; newer ones are retired."""
    found = promote_image(name, report=note)
    click.echo(f"{found.family} is now {found.name}")
    return 0


@command(progress="changing the family", interrupt="the rollback may or may not have been made: `outlast image list`")
@click.argument("name", metavar="FAMILY", shell_complete=complete_family)
def rollback(name: str) -> int:
    """Go back to the member of a family before the current one."""
    click.echo(f"{name} is now {roll_back_family(name, report=note).name}")
    return 0
