"""`outlast image build`, and the image of a run that has its recipe in `[image]`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.image.find import image_cloud
from outlast.cli.shared.command import command
from outlast.cli.shared.interrupt_text import interruptible
from outlast.cli.shared.options import json_option, workspace_option
from outlast.cli.shared.project import Project, load_project, read_table
from outlast.cli.shared.terminal import find_workspace, note
from outlast.clouds.traits import DEFAULT_CLOUD
from outlast.errors import NotFound, SpecError, UsageError
from outlast.spec.quantity import duration_s

if TYPE_CHECKING:
    from outlast.app.types import Image, InteractiveCloud, Recipe, Workspace
    from outlast.spec.spec import ImageSpec, Spec


def recipe_of(what: str) -> tuple[ImageSpec, str, str]:
    """Find a recipe by file, by name or in the project file; return it with its folder and its source."""
    from outlast.spec.image import parse_image

    if what and (os.path.isfile(what) or what.endswith(".toml")):
        if not os.path.isfile(what):
            raise UsageError(f"no such file: `{what}`", hint="give a recipe: see `[image]` in docs/spec.md")
        table = read_table(what)
        own = {"image": table["image"]} if "command" in table and "image" in table else table
        return parse_image(own, source=what), os.path.dirname(os.path.abspath(what)), what
    project = load_project()
    found = _project_recipe(project)
    if found is None:
        named = f"`{what}` is not a file, and " if what else ""
        lacks = f"{project.source} has no `[image]`" if project.table else "found no `outlast.toml` with `[image]`"
        raise UsageError(named + lacks, hint="write a recipe: see docs/images.md")
    if what and what != found.name:
        raise UsageError(
            f"no such file: `{what}`; the recipe in {project.source} is called `{found.name}`",
            hint=f"`outlast image build {found.name}`, or the path of another recipe",
        )
    return found, project.folder, project.source


def _project_recipe(project: Project) -> ImageSpec | None:
    from outlast.spec.image import parse_image

    if "image" not in project.table:
        return None
    recipe = project.table["image"]
    if isinstance(recipe, dict):
        machine = project.table.get("machine", {})
        cloud = machine.get("cloud", DEFAULT_CLOUD) if isinstance(machine, dict) else DEFAULT_CLOUD
        recipe = {"name": project.name, "cloud": cloud, **recipe}
    return parse_image({"image": recipe}, source=project.source)


def read(spec: ImageSpec, folder: str, source: str) -> tuple[InteractiveCloud, Recipe]:
    """Resolve the base image and read the files of a recipe. Raises SpecError, UsageError."""
    from outlast.images.recipe import read_recipe

    cloud = image_cloud(spec.machine.cloud)
    try:
        found = cloud.image(spec.base or "base")
    except NotFound as problem:
        raise SpecError([f"[image] base: {problem.message}"], source=source, hint=problem.hint) from problem
    return cloud, read_recipe(spec, folder=folder, base=found, source=source)


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
    from outlast.images.build import check_cloud
    from outlast.images.builder import BuildOptions, find_built

    try:
        keep_s = duration_s(keep_on_failure) if keep_on_failure else 0.0
    except ValueError as problem:
        raise UsageError(f"--keep-on-failure: {problem}") from problem
    cloud, found = read(*recipe_of(recipe))
    there = find_built(cloud, found)
    if dry_run:
        check_cloud(cloud, found)
        note(f"`{found.image}` " + ("already exists" if there else f"would be built from `{found.base}`"))
        _print_image(found.image, found, built=False, as_json=as_json)
        return 0
    if there is not None and not again:
        note(f"`{there.name}` already exists: its recipe has not changed")
        if there.retired:
            note(f"it is retired; `outlast image promote {there.name}` makes it the current image of `{there.family}`")
        _print_image(there.name, found, built=False, as_json=as_json)
        return 0
    build_options = BuildOptions(keep=keep, keep_on_failure_s=keep_s, again=again)
    made = _ensure(find_workspace(workspace_url), cloud, found, build_options=build_options, quiet=quiet)
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


def _ensure(
    workspace: Workspace, cloud: InteractiveCloud, recipe: Recipe, *, build_options: Any = None, quiet: bool = False
) -> Image:
    from outlast.images.build import BuildRequest
    from outlast.images.builder import BuildOptions
    from outlast.user import current_user

    request = BuildRequest(
        workspace,
        cloud,
        recipe,
        who=current_user(),
        report=note,
        show=(lambda _: None) if quiet else (lambda line: note(f"   {line}")),
        options=build_options or BuildOptions(),
    )
    with interruptible():
        return request.ensure()


def with_image(workspace: Workspace, spec: Spec, project: Project) -> Spec:
    """Return the spec with the image of its recipe; build the image if it is missing."""
    import msgspec

    if spec.image is None or spec.machine.image not in ("", spec.image.name):
        return spec
    cloud, recipe = read(spec.image, project.folder, project.source)
    if cloud.name != spec.machine.cloud:
        raise UsageError(
            f"the image is built on `{cloud.name}`, but the run needs `{spec.machine.cloud}`",
            hint="name the same cloud in `[image]` and `[machine]`",
        )
    from outlast.images.builder import find_built

    there = find_built(cloud, recipe)
    if there is None:
        note(f"building the image `{recipe.image}` first")
        there = _ensure(workspace, cloud, recipe)
    return msgspec.structs.replace(spec, machine=msgspec.structs.replace(spec.machine, image=there.name))
