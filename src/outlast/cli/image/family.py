"""`outlast image share`, `promote` and `rollback`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.completion import complete_family, complete_image
from outlast.cli.image.find import find_image, image_clouds
from outlast.cli.shared.command import UNCERTAIN, command
from outlast.cli.shared.terminal import note
from outlast.clouds.traits import traits_of
from outlast.errors import UsageError

if TYPE_CHECKING:
    from outlast.app.types import InteractiveCloud


@command(progress="copying the image", interrupt=UNCERTAIN)
@click.argument("name", metavar="IMAGE", shell_complete=complete_image)
@click.argument("who", nargs=-1, required=True, metavar="WHO...")
def share(name: str, who: tuple[str, ...]) -> int:
    """Let other projects, accounts or users boot from an image."""
    from outlast.images.snapshot import holds_personal_files

    cloud, found = find_image(name)
    if holds_personal_files(found):
        raise UsageError(
            f"`{found.name}` is {found.description}", hint="share the image that `outlast machine snapshot` printed"
        )
    for one in who:
        cloud.share_image(found.name, one)
    click.echo(f"{found.name} is shared with {', '.join(who)}")
    if traits_of(cloud.name).shares_host_files:
        note(
            "on this cloud that is a record only: its images are files of your account on this computer, and no other "
            "account can boot from them. It was checked that the image has no personal files"
        )
    return 0


@command(progress="changing the family", interrupt=UNCERTAIN)
@click.argument("name", metavar="IMAGE", shell_complete=complete_image)
def promote(name: str) -> int:
    """Make an image the current one of its family; newer ones are retired."""
    from outlast.images import family

    cloud, found = find_image(name)
    _apply(cloud, family.promote(list(cloud.images()), found))
    click.echo(f"{found.family} is now {found.name}")
    return 0


@command(progress="changing the family", interrupt="the rollback may or may not have been made: `outlast image list`")
@click.argument("name", metavar="FAMILY", shell_complete=complete_family)
def rollback(name: str) -> int:
    """Go back to the member of a family before the current one."""
    from outlast.images import family

    for cloud in image_clouds().values():
        images = list(cloud.images())
        if family.members(images, name):
            older, changes = family.rollback(images, name)
            _apply(cloud, changes)
            click.echo(f"{name} is now {older.name}")
            return 0
    raise UsageError(f"no such image family: `{name}`", hint="see `outlast image list`")


def _apply(cloud: InteractiveCloud, changes: Sequence[Any]) -> None:
    for change in changes:
        cloud.retire_image(change.image, retired=change.retired)
        note(f"{'retired' if change.retired else 'restored'} {change.image}")
