"""`outlast image list`, `show`, `share`, `promote`, `rollback`, `delete`, `prune`: care for the images there are."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.complete import complete_family, complete_image
from outlast.cli.image_find import find_image, workshops
from outlast.cli.options import json_option, workspace_option
from outlast.cli.progress import confirm
from outlast.cli.terminal import find_workspace, money, note, table
from outlast.errors import NoSuchRun, UsageError
from outlast.formatting.quantities import size
from outlast.spec.quantity import describe_s
from outlast.workspace import Workspace

if TYPE_CHECKING:
    from outlast.clouds.cloud import Image, InteractiveCloud


def _everything(family: str = "") -> list[tuple[InteractiveCloud, Image]]:
    from outlast.images.family import members

    found: list[tuple[InteractiveCloud, Image]] = []
    for cloud in workshops().values():
        images = list(cloud.images())
        families = sorted({image.family for image in images})
        for name in families:
            if not family or name == family:
                found += [(cloud, image) for image in members(images, name)]
    return found


def _row(cloud: InteractiveCloud, image: Image, images: Sequence[Image]) -> dict[str, object]:
    from outlast.images.builder import LABEL_RECIPE
    from outlast.images.family import current

    now = current(images, image.family) if image.family else None
    return {
        "image": image.name,
        "family": image.family,
        "current": now is not None and now.name == image.name,
        "retired": image.retired,
        "cloud": cloud.name,
        "bytes": image.bytes,
        "created_at": image.created_at,
        "digest": image.labels.get(LABEL_RECIPE, ""),
        "description": image.description,
    }


@click.command("list")
@click.option(
    "--family", default="", metavar="NAME", shell_complete=complete_family, help="Only the members of this family."
)
@json_option
def list_command(family: str, as_json: bool) -> int:
    """List the images of all clouds: the newest of each family first."""
    found = _everything(family)
    rows = [_row(cloud, image, [i for c, i in found if c is cloud]) for cloud, image in found]
    if as_json:
        import json

        click.echo(json.dumps(rows, indent=2))
    elif not rows:
        note(f"there is no family `{family}`" if family else "there are no images")
    else:
        click.echo(table([_cells(row) for row in rows], header=["IMAGE", "FAMILY", "", "SIZE", "AGE", "CLOUD", "NOTE"]))
    return 0


def _cells(row: dict[str, Any]) -> list[str]:
    state = "retired" if row["retired"] else "current" if row["current"] else ""
    age = describe_s(max(0.0, time.time() - row["created_at"])) if row["created_at"] else ""
    return [row["image"], row["family"], state, size(row["bytes"]), age, row["cloud"], row["description"]]


@click.command()
@click.argument("name", metavar="IMAGE", shell_complete=complete_image)
@click.option("--log", "with_log", is_flag=True, help="The output of the build, and nothing else.")
@json_option
@workspace_option
def show(workspace_url: str, name: str, with_log: bool, as_json: bool) -> int:
    """Show an image, or the newest of a family: recipe, digest, size, who, when, what was scrubbed."""
    import msgspec

    from outlast.images.builder import LABEL_RECIPE
    from outlast.images.records import ImageRecords

    cloud, found = find_image(name)
    records = ImageRecords(find_workspace(workspace_url))
    digest = found.labels.get(LABEL_RECIPE, "")
    if with_log:
        text = records.log(digest) if digest else ""
        if not text:
            raise UsageError(f"this workspace has no log of `{found.name}`", hint="was it built in another workspace?")
        click.echo(text, nl=False)
        return 0
    recipe = records.recipe(digest) if digest else None
    result = records.result(digest) if digest else None
    row = _row(cloud, found, list(cloud.images()))
    row["recipe"] = msgspec.to_builtins(recipe)
    row["result"] = msgspec.to_builtins(result)
    if as_json:
        import json

        click.echo(json.dumps(row, indent=2))
        return 0
    click.echo("\n".join(_told(row, recipe, result)))
    return 0


def _told(row: dict[str, Any], recipe: Any, result: Any) -> Iterator[str]:
    state = "retired" if row["retired"] else "current" if row["current"] else "older"
    yield f"{row['image']}  {state + ' of ' + row['family'] if row['family'] else ''}".rstrip()
    if row["created_at"]:
        yield f"  made {time.strftime('%Y-%m-%d %H:%M', time.localtime(row['created_at']))}, {size(row['bytes'])}"
    if row["description"]:
        yield f"  {row['description']}"
    if result is not None:
        took, cost = describe_s(result.seconds), money(result.cost_usd)
        yield f"  built by {result.who} in {took}, for {cost}; {len(result.scrubbed)} paths scrubbed"
    if recipe is None:
        yield "  made by hand, or in another workspace: there is no recipe here"
        return
    spec = recipe.spec
    yield f"  digest {recipe.digest}, recipe {recipe.source}"
    yield f"  {'base':<12} {recipe.base}"
    for field in ("packages", "pip", "requirements", "lock", "files", "warm", "test", "keep"):
        value = getattr(spec, field)
        if value:
            shown = value if isinstance(value, str) else ", ".join(value)
            yield f"  {field:<12} {shown}"
    if recipe.script:
        from outlast.spec.image import script_file

        yield f"  {'script':<12} {script_file(spec.script)}".rstrip()
        yield from (f"    {number:3d}  {line}" for number, line in enumerate(recipe.script.splitlines(), 1))


# Families


@click.command()
@click.argument("name", metavar="IMAGE", shell_complete=complete_image)
@click.argument("who", nargs=-1, required=True, metavar="WHO...")
def share(name: str, who: tuple[str, ...]) -> int:
    """Let other projects, accounts or users boot from an image."""
    cloud, found = find_image(name)
    for one in who:
        cloud.share_image(found.name, one)
    click.echo(f"{found.name} is shared with {', '.join(who)}")
    return 0


@click.command()
@click.argument("name", metavar="IMAGE", shell_complete=complete_image)
def promote(name: str) -> int:
    """Make an image what its family stands for; newer ones are retired."""
    from outlast.images import family

    cloud, found = find_image(name)
    _apply(cloud, family.promote(list(cloud.images()), found))
    click.echo(f"{found.family} is {found.name}")
    return 0


@click.command()
@click.argument("name", metavar="FAMILY", shell_complete=complete_family)
def rollback(name: str) -> int:
    """Go back to the member of a family before the current one."""
    from outlast.images import family

    for cloud in workshops().values():
        images = list(cloud.images())
        if family.members(images, name):
            older, changes = family.rollback(images, name)
            _apply(cloud, changes)
            click.echo(f"{name} is {older.name}")
            return 0
    raise UsageError(f"there is no family `{name}`", hint="see `outlast image list`")


def _apply(cloud: InteractiveCloud, changes: Sequence[Any]) -> None:
    for change in changes:
        cloud.retire_image(change.image, retired=change.retired)
        note(f"{'retired' if change.retired else 'brought back'} {change.image}")


def _users(workspace: Workspace, cloud: InteractiveCloud, images: Sequence[Image]) -> dict[str, list[str]]:
    """Who needs each image: live runs of this workspace, and machines that were made from it."""
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


@click.command()
@click.argument("name", metavar="IMAGE", shell_complete=complete_image)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Even if a live run needs it.")
@workspace_option
def delete(workspace_url: str, name: str, yes: bool, force: bool) -> int:
    """Delete an image. Machines that were made from it go on."""
    from outlast.images.family import current

    cloud, found = find_image(name)
    if found.name != name:
        raise UsageError(f"`{name}` is a family; its newest member is `{found.name}`", hint="name the image itself")
    images = list(cloud.images())
    runs = [user for user in _users(find_workspace(workspace_url), cloud, images).get(name, []) if "run" in user[:4]]
    if runs and not force:
        raise UsageError(f"`{name}` is needed by {', '.join(runs)}", hint="cancel it first, or say --force")
    question = f"delete {name}?"
    now = current(images, found.family) if found.family else None
    if now is not None and now.name == name:
        heir = current([i for i in images if i.name != name], found.family)
        after = f"is `{heir.name}` then" if heir else "stands for nothing then"
        question = f"delete {name}, the current one of its family? `{found.family}` {after}."
    if not yes and not _agreed(question):
        note("nothing was deleted")
        return 0
    cloud.delete_image(name)
    click.echo(f"deleted {name}")
    return 0


def _agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Nobody is here to answer; nothing was deleted", hint="say --yes")
    return confirm(question)


@click.command()
@click.option("--keep", default=3, show_default=True, metavar="N", help="So many of each family stay.")
@click.option("--family", default="", metavar="NAME", shell_complete=complete_family, help="Only this family.")
@click.option("--dry-run", is_flag=True, help="Say what would be deleted; delete nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
@workspace_option
def prune(workspace_url: str, keep: int, family: str, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Delete the oldest images of each family. What is current, or needed by a machine or a run, stays."""
    from outlast.images.family import surplus

    if keep < 1:
        raise UsageError(f"--keep: {keep} must be at least 1")
    workspace = find_workspace(workspace_url)
    doomed: list[tuple[InteractiveCloud, Image]] = []
    for cloud in workshops().values():
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
