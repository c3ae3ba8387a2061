"""Where images are: the clouds that make them, and which one is meant by a name."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from outlast.cli.shared.options import clouds
from outlast.cli.shared.terminal import find_workspace
from outlast.errors import CloudError, NotFound, UsageError

if TYPE_CHECKING:
    from outlast.clouds.cloud import Image, InteractiveCloud


def workshops() -> dict[str, InteractiveCloud]:
    """The clouds that make images."""
    known = clouds(find_workspace(""))
    return {name: cloud for name, cloud in known.items() if hasattr(cloud, "snapshot")}  # type: ignore[misc]


def workshop(name: str) -> InteractiveCloud:
    cloud = clouds().get(name)
    if cloud is None or not hasattr(cloud, "snapshot"):
        raise UsageError(f"`{name}` makes no images in this outlast", hint=f"known: {', '.join(workshops())}")
    return cast("InteractiveCloud", cloud)


def find_image(name: str) -> tuple[InteractiveCloud, Image]:
    """The image of that name or the newest of that family, on whichever cloud has it."""
    told: CloudError | None = None
    for cloud in workshops().values():
        try:
            return cloud, cloud.image(name)
        except NotFound as problem:
            told = problem
    raise UsageError(
        told.message if told else f"there is no image `{name}`", hint=(told and told.hint) or "see `outlast image list`"
    )
