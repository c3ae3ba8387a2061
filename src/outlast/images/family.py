"""Families: which image a name stands for, and which changes make it stand for another. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from outlast.clouds.cloud import Image
from outlast.errors import BadRequest


class Retire(msgspec.Struct, frozen=True, kw_only=True):
    """Take an image out of the choice of its family, or put it back."""

    image: str
    retired: bool


def members(images: Iterable[Image], family: str) -> list[Image]:
    """The members of a family, newest first."""
    return sorted(
        (image for image in images if image.family == family),
        key=lambda image: (image.created_at, image.name),
        reverse=True,
    )


def current(images: Iterable[Image], family: str) -> Image | None:
    """What the family stands for."""
    return next((image for image in members(images, family) if not image.retired), None)


def promote(images: Sequence[Image], image: Image) -> list[Retire]:
    """The changes after which the family stands for this image."""
    if not image.family:
        raise BadRequest(f"`{image.name}` belongs to no family", hint="name it itself: `[machine] image`")
    changes: list[Retire] = []
    for member in members(images, image.family):
        if member.name == image.name:
            break
        if not member.retired:
            changes.append(Retire(image=member.name, retired=True))
    # Put back first: a family must at no moment stand for nothing.
    return ([Retire(image=image.name, retired=False)] if image.retired else []) + changes


def rollback(images: Sequence[Image], family: str) -> tuple[Image, list[Retire]]:
    """The member before the current one, and the changes after which the family stands for it."""
    now = current(images, family)
    if now is None:
        raise BadRequest(f"the family `{family}` has no member to go back from", hint="see `outlast image list`")
    older = members(images, family)
    older = older[older.index(now) + 1 :]
    if not older:
        raise BadRequest(
            f"`{now.name}` is the oldest of `{family}`: there is nothing to go back to", hint="see `outlast image list`"
        )
    return older[0], promote(images, older[0])


def surplus(images: Sequence[Image], *, keep: int, used: Iterable[str], family: str = "") -> list[Image]:
    """What `prune` deletes: of each family all but the newest so many. What is used, and what the family stands for,
    stays whatever its age."""
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
