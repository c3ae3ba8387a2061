"""Image families: the image that a family name resolves to, and the changes that make it resolve to another. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from outlast.clouds.cloud import Image
from outlast.errors import BadRequest


class Retire(msgspec.Struct, frozen=True, kw_only=True):
    """Exclude an image from its family's choice, or include it again."""

    image: str
    retired: bool


def members(images: Iterable[Image], family: str) -> list[Image]:
    """Return the members of a family, newest first."""
    return sorted(
        (image for image in images if image.family == family),
        key=lambda image: (image.created_at, image.name),
        reverse=True,
    )


def current(images: Iterable[Image], family: str) -> Image | None:
    """Return the image that the family resolves to."""
    return next((image for image in members(images, family) if not image.retired), None)


def promote(images: Sequence[Image], image: Image) -> list[Retire]:
    """Return the changes that make the family resolve to this image."""
    if not image.family:
        raise BadRequest(f"`{image.name}` belongs to no family", hint="use its full name in `[machine] image`")
    changes: list[Retire] = []
    for member in members(images, image.family):
        if member.name == image.name:
            break
        if not member.retired:
            changes.append(Retire(image=member.name, retired=True))
    # Include first: a family must always resolve to an image.
    return ([Retire(image=image.name, retired=False)] if image.retired else []) + changes


def rollback(images: Sequence[Image], family: str) -> tuple[Image, list[Retire]]:
    """Return the member before the current one, and the changes that make the family resolve to it."""
    now = current(images, family)
    if now is None:
        raise BadRequest(f"the family `{family}` has no image", hint="`outlast image list` lists all images")
    older = members(images, family)
    older = older[older.index(now) + 1 :]
    if not older:
        raise BadRequest(
            f"`{now.name}` is the oldest image of `{family}`", hint="`outlast image list` lists all images"
        )
    return older[0], promote(images, older[0])


def surplus(images: Sequence[Image], *, keep: int, used: Iterable[str], family: str = "") -> list[Image]:
    """Return the images that `prune` deletes: all but the newest `keep` of each family, used and current ones."""
    busy = set(used)
    found: list[Image] = []
    for name in sorted({image.family for image in images if image.family}):
        if family and name != family:
            continue
        now = current(images, name)
        for image in members(images, name)[keep:]:
            if image.name not in busy and (now is None or image.name != now.name):
                found.append(image)
    return found
