"""Lookup of images by name or family, and of clouds that can create images."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from outlast.cli.shared.options import clouds
from outlast.cli.shared.terminal import find_workspace
from outlast.errors import CloudError, NotFound, UsageError

if TYPE_CHECKING:
    from outlast.app.types import Image, InteractiveCloud


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
