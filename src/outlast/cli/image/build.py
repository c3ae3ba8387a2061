"""`outlast image build`, and the image of a run that has its recipe in `[image]`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from outlast.app.images import build_image, built_image, check_recipe, read, recipe_of
from outlast.app.images import with_image as fill_image
from outlast.cli.shared.command import command
from outlast.cli.shared.interrupt_text import interruptible
from outlast.cli.shared.options import json_option, parse_option, workspace_option
from outlast.cli.shared.project import Project
from outlast.cli.shared.terminal import find_workspace, note
from outlast.spec.quantity import duration_s

if TYPE_CHECKING:
    from outlast.app.types import Image, InteractiveCloud, Recipe, Workspace
    from outlast.spec.spec import Spec


@command(
    progress="building",
    interrupt="stopped the build; its machine is deleted; if that failed, `outlast reap` deletes it",
    json="ImageNamed",
)
@click.argument("recipe", metavar="[FILE|NAME]", default="")
@click.option("--keep", multiple=True, metavar="PATTERN", help="Do not scrub these paths; may be repeated.")
@click.option(
    "--keep-on-failure",
    default=None,
    is_flag=False,
    flag_value="1h",
    metavar="[TIME]",
    help="Keep the machine of a failed build for this time (1h if no time is given).",
)
@click.option("--again", is_flag=True, help="Build even if the image exists.")
@click.option("--quiet", "-q", is_flag=True, help="Hide the output of the steps.")
@click.option("--dry-run", is_flag=True, help="Print what would be built; build nothing.")
@json_option
@workspace_option
def build(
    workspace_url: str,
    recipe: str,
    keep: tuple[str, ...],
    keep_on_failure: str | None,
    again: bool,
    quiet: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Build the image of a recipe, unless it exists. Prints its name."""
    keep_s = parse_option("--keep-on-failure", keep_on_failure, duration_s, 0.0)
    cloud, found = read(*recipe_of(recipe))
    there = built_image(cloud, found)
    if dry_run:
        check_recipe(cloud, found)
        note(f"`{found.image}` " + ("already exists" if there else f"would be built from `{found.base}`"))
        _print_image(found.image, found, built=False, as_json=as_json)
        return 0
    if there is not None and not again:
        note(f"`{there.name}` already exists: its recipe has not changed")
        if there.retired:
            note(f"it is retired; `outlast image promote {there.name}` makes it the current image of `{there.family}`")
        _print_image(there.name, found, built=False, as_json=as_json)
        return 0
    with interruptible():
        made = build_image(
            find_workspace(workspace_url),
            cloud,
            found,
            keep=keep,
            keep_on_failure_s=keep_s,
            again=again,
            report=note,
            show=(lambda _: None) if quiet else _show,
        )
    _print_image(made.name, found, built=True, as_json=as_json)
    return 0


def _print_image(name: str, recipe: Recipe, *, built: bool, as_json: bool) -> None:
    if as_json:
        import json

        click.echo(
            json.dumps({"image": name, "family": recipe.spec.name, "digest": recipe.digest, "built": built}, indent=2)
        )
    else:
        click.echo(name)


def _show(line: str) -> None:
    note(f"   {line}")


def with_image(workspace: Workspace, spec: Spec, project: Project) -> Spec:
    """Return the spec with the image of its recipe; build the image if it is missing."""

    def build_first(cloud: InteractiveCloud, recipe: Recipe) -> Image:
        note(f"building the image `{recipe.image}` first")
        with interruptible():
            return build_image(workspace, cloud, recipe, report=note, show=_show)

    return fill_image(spec, project, build=build_first)
