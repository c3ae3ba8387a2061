"""An image of a machine's disk, scrubbed as one of a recipe.

The machine keeps its files: a temporary machine boots from a copy of the disk, and the scrub runs there. The copy is
deleted at the end; one that a killed command left is deleted by the next snapshot.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable

import msgspec

from outlast.clouds.cloud import LABEL_WORKSPACE, Image, InteractiveCloud
from outlast.errors import BadRequest
from outlast.images.build import BuildRequest
from outlast.images.recipe import read_recipe
from outlast.machines import lifecycle
from outlast.spec.spec import ImageSpec, MachineSpec
from outlast.workspace import Workspace

# On the copies: the machine whose personal files they contain.
LABEL_COPY = "outlast-copy-of"
# Longer than any scrub takes: an older copy belongs to a command that was killed.
_COPY_S = 7200.0
KEEP_ALL = "*"


class SnapshotOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The image to create. `keep`: patterns of paths that are not removed; `*` keeps all."""

    image: str
    family: str
    keep: tuple[str, ...] = ()
    may_stop: bool = False


def snapshot_machine(
    workspace: Workspace,
    cloud: InteractiveCloud,
    name: str,
    *,
    options: SnapshotOptions,
    who: str,
    report: Callable[[str], None],
) -> Image:
    """Create an image of the machine's disk without personal files. Raises CloudError, StepFailed."""
    machine = cloud.machine(name)
    if KEEP_ALL in options.keep:
        draft = lifecycle.ImageDraft(name=options.image, family=options.family, note=f"from {name}")
        return lifecycle.snapshot(cloud, name, draft=draft, may_stop=options.may_stop)
    _check_free(cloud, options)
    _delete_stale(workspace, cloud, report)
    draft = lifecycle.ImageDraft(
        name=_copy_name(options.image),
        labels={LABEL_WORKSPACE: workspace.id, LABEL_COPY: name},
        note=f"the disk of {name} with its personal files; temporary",
    )
    try:
        base = lifecycle.snapshot(cloud, name, draft=draft, may_stop=options.may_stop)
        spec = ImageSpec(
            name=options.family,
            base=draft.name,
            keep=options.keep,
            machine=MachineSpec(cloud=cloud.name, disk_gb=machine.disk_gb, spot=False),
        )
        recipe = read_recipe(spec, folder=os.getcwd(), base=base, source=f"machine {name}")
        recipe = msgspec.structs.replace(recipe, image_name=options.image, origin=f"machine {name}")
        return BuildRequest(workspace, cloud, recipe, who=who, report=report, show=report).ensure()
    finally:
        cloud.delete_image(draft.name)


def _check_free(cloud: InteractiveCloud, options: SnapshotOptions) -> None:
    """Check the name of the image before the machine is stopped. Raises BadRequest."""
    if any(image.name == options.image for image in cloud.images()):
        raise BadRequest(f"image `{options.image}` exists already", hint="delete it, or choose another name")


def holds_personal_files(image: Image) -> bool:
    """Return whether the image is a copy that the scrub has not seen."""
    return LABEL_COPY in image.labels


def _copy_name(image: str) -> str:
    """Return the name of the copy: at most 63 characters, as every cloud requires."""
    digest = hashlib.sha256(f"{image}\0{time.time_ns()}".encode()).hexdigest()
    return f"{image[:45].rstrip('-')}-unscrubbed-{digest[:6]}"


def _delete_stale(workspace: Workspace, cloud: InteractiveCloud, report: Callable[[str], None]) -> None:
    for image in cloud.images():
        ours = holds_personal_files(image) and image.labels.get(LABEL_WORKSPACE) == workspace.id
        if ours and workspace.clock() - image.created_at > _COPY_S:
            report(f"deleting `{image.name}`, which a killed snapshot left")
            cloud.delete_image(image.name)
