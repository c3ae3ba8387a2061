"""Images: building recipes, families, their users, and the records of builds."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from outlast.app.clouds import clouds
from outlast.app.project import Project, find_workspace, load_project, read_table
from outlast.clouds.traits import DEFAULT_CLOUD, traits_of
from outlast.errors import CloudError, NoSuchRun, NotFound, OutlastError, SpecError, UsageError
from outlast.workspace import Workspace

if TYPE_CHECKING:
    from outlast.clouds.cloud import Image, InteractiveCloud
    from outlast.images.recipe import Recipe
    from outlast.images.records import BuildResult, RecipeRecord
    from outlast.spec.spec import ImageSpec, Spec

Report = Callable[[str], None]


def image_clouds() -> dict[str, InteractiveCloud]:
    """Return the clouds that can create images."""
    known = clouds(find_workspace(""))
    return {name: cloud for name, cloud in known.items() if hasattr(cloud, "snapshot")}  # type: ignore[misc]


def image_cloud(name: str) -> InteractiveCloud:
    cloud = clouds().get(name)
    if cloud is None or not hasattr(cloud, "snapshot"):
        raise UsageError(f"cloud `{name}` cannot create images", hint=f"known: {', '.join(image_clouds())}")
    return cast("InteractiveCloud", cloud)


def find_image(name: str) -> tuple[InteractiveCloud, Image]:
    """Find an image by name, or the newest of a family, on all clouds. Raises UsageError."""
    missing: CloudError | None = None
    for cloud in image_clouds().values():
        try:
            return cloud, cloud.image(name)
        except NotFound as problem:
            missing = problem
    raise UsageError(
        missing.message if missing else f"no such image: `{name}`",
        hint=(missing and missing.hint) or "see `outlast image list`",
    )


def images_known_here(open_workspace: Callable[[], Workspace]) -> list[tuple[str, str]]:
    """Return image and family of local images, and of all images built from a workspace; contacts no cloud."""
    from outlast.clouds.local.cloud import LocalCloud
    from outlast.images.records import ImageRecords

    found: list[tuple[str, str]] = []
    with contextlib.suppress(OutlastError):
        found += [(image.name, image.family) for image in LocalCloud().images()]
    with contextlib.suppress(OutlastError):
        records = ImageRecords(open_workspace())
        for digest in records.digests():
            recipe, result = records.recipe(digest), records.result(digest)
            if recipe is not None and result is not None:
                found.append((result.image, recipe.spec.name))
    return found


# Recipes


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


def built_image(cloud: InteractiveCloud, recipe: Recipe) -> Image | None:
    """Return the image of a recipe, if it was built; checked like a build."""
    from outlast.images.builder import find_built

    return find_built(cloud, recipe)


def check_recipe(cloud: InteractiveCloud, recipe: Recipe) -> None:
    """Raise the error that a build would raise before it launches a machine."""
    from outlast.images.build import check_cloud

    check_cloud(cloud, recipe)


def build_image(
    workspace: Workspace,
    cloud: InteractiveCloud,
    recipe: Recipe,
    *,
    keep: tuple[str, ...] = (),
    keep_on_failure_s: float = 0.0,
    again: bool = False,
    report: Report,
    show: Report = lambda _: None,
) -> Image:
    """Build the image of a recipe, unless it exists. `show` receives the output of the steps."""
    from outlast.images.build import BuildRequest
    from outlast.images.builder import BuildOptions
    from outlast.user import current_user

    options = BuildOptions(keep=keep, keep_on_failure_s=keep_on_failure_s, again=again)
    return BuildRequest(
        workspace, cloud, recipe, who=current_user(), report=report, show=show, options=options
    ).ensure()


def needs_image(spec: Spec) -> bool:
    """Return whether the image of a run comes from its own recipe."""
    return spec.image is not None and spec.machine.image in ("", spec.image.name)


def with_image(spec: Spec, project: Project, *, build: Callable[[InteractiveCloud, Recipe], Image]) -> Spec:
    """Return the spec with the image of its recipe; `build` is called if the image is missing."""
    if spec.image is None or not needs_image(spec):
        return spec
    cloud, recipe = read(spec.image, project.folder, project.source)
    if cloud.name != spec.machine.cloud:
        raise UsageError(
            f"the image is built on `{cloud.name}`, but the run needs `{spec.machine.cloud}`",
            hint="name the same cloud in `[image]` and `[machine]`",
        )
    there = built_image(cloud, recipe) or build(cloud, recipe)
    return msgspec.structs.replace(spec, machine=msgspec.structs.replace(spec.machine, image=there.name))


# Families


def list_images(family: str = "") -> list[tuple[InteractiveCloud, Image]]:
    """Return the images of all clouds by family, the newest first."""
    from outlast.images.family import members

    found: list[tuple[InteractiveCloud, Image]] = []
    for cloud in image_clouds().values():
        images = list(cloud.images())
        for name in sorted({image.family for image in images}):
            if not family or name == family:
                found += [(cloud, image) for image in members(images, name)]
    return found


def image_row(cloud: InteractiveCloud, image: Image, images: Sequence[Image]) -> dict[str, object]:
    """Return an image as data; `images` are all of its cloud."""
    from outlast.images.builder import LABEL_RECIPE

    now = current_image(images, image.family)
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


def current_image(images: Sequence[Image], family: str) -> Image | None:
    """Return the image that a family means."""
    from outlast.images.family import current

    return current(images, family) if family else None


def build_records(workspace: Workspace, digest: str) -> tuple[RecipeRecord | None, BuildResult | None, str]:
    """Return recipe, result and output of a build of this workspace; nothing for an unknown digest."""
    from outlast.images.records import ImageRecords

    if not digest:
        return None, None, ""
    records = ImageRecords(workspace)
    return records.recipe(digest), records.result(digest), records.log(digest)


def share_image(name: str, who: Sequence[str]) -> tuple[Image, bool]:
    """Let others boot from an image; return it, and whether only a record changed. Raises UsageError."""
    from outlast.images.snapshot import holds_personal_files

    cloud, found = find_image(name)
    if holds_personal_files(found):
        hint = "share the image that `outlast machine snapshot` printed"
        raise UsageError(f"`{found.name}` is {found.description}", hint=hint)
    for one in who:
        cloud.share_image(found.name, one)
    return found, traits_of(cloud.name).shares_host_files


def promote_image(name: str, *, report: Report) -> Image:
    """Make an image the current one of its family."""
    from outlast.images import family

    cloud, found = find_image(name)
    _apply(cloud, family.promote(list(cloud.images()), found), report)
    return found


def roll_back_family(name: str, *, report: Report) -> Image:
    """Go back to the member of a family before the current one, and return it. Raises UsageError."""
    from outlast.images import family

    for cloud in image_clouds().values():
        images = list(cloud.images())
        if family.members(images, name):
            older, changes = family.rollback(images, name)
            _apply(cloud, changes, report)
            return older
    raise UsageError(f"no such image family: `{name}`", hint="see `outlast image list`")


def _apply(cloud: InteractiveCloud, changes: Sequence[Any], report: Report) -> None:
    for change in changes:
        cloud.retire_image(change.image, retired=change.retired)
        report(f"{'retired' if change.retired else 'restored'} {change.image}")


# Deletion


def image_users(workspace: Workspace, cloud: InteractiveCloud, images: Sequence[Image]) -> dict[str, list[str]]:
    """Return the users of each image: live runs of this workspace, and machines that booted from it."""
    from outlast.images.build import built_from

    users = {name: [f"machine {m.name}" for m in found] for name, found in built_from(cloud, images).items()}
    for run in sorted({*workspace.heartbeats(), *workspace.wakeups()}):
        try:
            wanted = workspace.request(run).spec.machine
        except NoSuchRun:
            continue
        if wanted.cloud != cloud.name or not wanted.image:
            continue
        meant = current_image(images, wanted.image)
        users.setdefault(meant.name if meant is not None else wanted.image, []).append(f"run {run}")
    return users


def image_to_delete(workspace: Workspace, name: str, *, force: bool = False) -> tuple[InteractiveCloud, str]:
    """Return the cloud of an image, and a remark on its family. Raises UsageError if a live run needs it."""
    cloud, found = find_image(name)
    if found.name != name:
        raise UsageError(f"`{name}` is a family; its newest member is `{found.name}`", hint="name the image itself")
    images = list(cloud.images())
    runs = [user for user in image_users(workspace, cloud, images).get(name, []) if user.startswith("run ")]
    if runs and not force:
        raise UsageError(f"`{name}` is needed by {', '.join(runs)}", hint="cancel it first, or use --force")
    now = current_image(images, found.family)
    if now is None or now.name != name:
        return cloud, ""
    heir = current_image([i for i in images if i.name != name], found.family)
    after = f"becomes `{heir.name}`" if heir else "has no image then"
    return cloud, f", the current image of its family? `{found.family}` {after}."


def surplus_images(workspace: Workspace, *, keep: int, family: str = "") -> list[tuple[InteractiveCloud, Image]]:
    """Return the oldest images of each family, except current ones and those in use."""
    from outlast.images.family import surplus

    found: list[tuple[InteractiveCloud, Image]] = []
    for cloud in image_clouds().values():
        images = list(cloud.images())
        used = image_users(workspace, cloud, images)
        found += [(cloud, image) for image in surplus(images, keep=keep, used=used, family=family)]
    return found
