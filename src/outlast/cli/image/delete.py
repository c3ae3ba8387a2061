"""`outlast image delete` and `prune`."""

from __future__ import annotations

import sys

import click

from outlast.app.images import image_to_delete, surplus_images
from outlast.cli.completion import complete_family, complete_image
from outlast.cli.shared.command import UNCERTAIN, command
from outlast.cli.shared.options import json_option, workspace_option
from outlast.cli.shared.progress import confirm
from outlast.cli.shared.terminal import find_workspace, note
from outlast.errors import UsageError
from outlast.formatting.quantities import size


@command(progress="deleting the image", interrupt=UNCERTAIN)
@click.argument("name", metavar="IMAGE", shell_complete=complete_image)
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@click.option("--force", is_flag=True, help="Delete even if a live run needs it.")
@workspace_option
def delete(workspace_url: str, name: str, yes: bool, force: bool) -> int:
    """Delete an image. Machines that booted from it continue."""
    cloud, remark = image_to_delete(find_workspace(workspace_url), name, force=force)
    question = f"delete {name}{remark or '?'}"
    if not yes and not _agreed(question):
        note("nothing was deleted")
        return 0
    cloud.delete_image(name)
    click.echo(f"deleted {name}")
    return 0


def _agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(f"cannot ask without a terminal: {question}", hint="repeat the command with --yes")
    return confirm(question)


@command(progress="deleting images", interrupt=UNCERTAIN, json="list[ImageNamed]")
@click.option("--keep", default=3, show_default=True, metavar="N", help="Images to keep in each family.")
@click.option("--family", default="", metavar="NAME", shell_complete=complete_family, help="Only this family.")
@click.option("--dry-run", is_flag=True, help="Print what would be deleted; delete nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@json_option
@workspace_option
def prune(workspace_url: str, keep: int, family: str, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Delete the oldest images of each family, except current ones and those in use."""
    if keep < 1:
        raise UsageError(f"--keep: {keep} must be at least 1")
    doomed = surplus_images(find_workspace(workspace_url), keep=keep, family=family)
    if as_json:
        import json

        click.echo(json.dumps([{"image": image.name, "cloud": cloud.name} for cloud, image in doomed], indent=2))
    else:
        for _, image in doomed:
            click.echo(f"delete {image.name} ({size(image.bytes)})")
        if not doomed:
            click.echo("nothing to delete")
    if doomed and not dry_run and (yes or _agreed(f"delete {len(doomed)} images?")):
        for cloud, image in doomed:
            cloud.delete_image(image.name)
    return 0
