"""`outlast image delete` and `prune`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from outlast.cli.completion import complete_family, complete_image
from outlast.cli.image.find import find_image, image_clouds
from outlast.cli.shared.command import UNCERTAIN, command
from outlast.cli.shared.options import json_option, workspace_option
from outlast.cli.shared.progress import confirm
from outlast.cli.shared.terminal import find_workspace, note
from outlast.errors import NoSuchRun, UsageError
from outlast.formatting.quantities import size

if TYPE_CHECKING:
    from outlast.app.types import Image, InteractiveCloud, Workspace


def _users(workspace: Workspace, cloud: InteractiveCloud, images: Sequence[Image]) -> dict[str, list[str]]:
    """Return the users of each image: live runs of this workspace, and machines that booted from it."""
    from outlast.images.build import built_from
    from outlast.images.family import current

    users = {name: [f"machine {m.name}" for m in found] for name, found in built_from(cloud, images).items()}
    for run in sorted({*workspace.heartbeats(), *workspace.wakeups()}):
        try:
            wanted = workspace.request(run).spec.machine
        except NoSuchRun:
            continue
        if wanted.cloud != cloud.name or not wanted.image:
            continue
        meant = current(images, wanted.image)
        name = meant.name if meant is not None else wanted.image
        users.setdefault(name, []).append(f"run {run}")
    return users


@command(progress="deleting the image", interrupt=UNCERTAIN)
@click.argument("name", metavar="IMAGE", shell_complete=complete_image)
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@click.option("--force", is_flag=True, help="Delete even if a live run needs it.")
@workspace_option
def delete(workspace_url: str, name: str, yes: bool, force: bool) -> int:
    """Delete an image. Machines that booted from it continue."""
    from outlast.images.family import current

    cloud, found = find_image(name)
    if found.name != name:
        raise UsageError(f"`{name}` is a family; its newest member is `{found.name}`", hint="name the image itself")
    images = list(cloud.images())
    runs = [user for user in _users(find_workspace(workspace_url), cloud, images).get(name, []) if "run" in user[:4]]
    if runs and not force:
        raise UsageError(f"`{name}` is needed by {', '.join(runs)}", hint="cancel it first, or use --force")
    question = f"delete {name}?"
    now = current(images, found.family) if found.family else None
    if now is not None and now.name == name:
        heir = current([i for i in images if i.name != name], found.family)
        after = f"becomes `{heir.name}`" if heir else "has no image then"
        question = f"delete {name}, the current image of its family? `{found.family}` {after}."
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
    from outlast.images.family import surplus

    if keep < 1:
        raise UsageError(f"--keep: {keep} must be at least 1")
    workspace = find_workspace(workspace_url)
    doomed: list[tuple[InteractiveCloud, Image]] = []
    for cloud in image_clouds().values():
        images = list(cloud.images())
        used = _users(workspace, cloud, images)
        doomed += [(cloud, image) for image in surplus(images, keep=keep, used=used, family=family)]
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
