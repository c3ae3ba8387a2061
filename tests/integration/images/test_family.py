"""The image that a family resolves to, before and after each change."""

from __future__ import annotations

import msgspec
import pytest

from outlast.clouds.cloud import Image
from outlast.errors import BadRequest
from outlast.images.family import Retire, current, members, promote, rollback, surplus


def images(*retired: int, count: int = 4, family: str = "env") -> list[Image]:
    return [
        Image(name=f"{family}-{n}", cloud="local", family=family, created_at=float(n), retired=n in retired)
        for n in range(1, count + 1)
    ]


def after(known: list[Image], changes: list[Retire]) -> list[Image]:
    changed = {change.image: change.retired for change in changes}
    return [msgspec.structs.replace(image, retired=changed.get(image.name, image.retired)) for image in known]


def name(image: Image | None) -> str:
    return image.name if image else ""


def test_a_family_resolves_to_its_newest_image_that_is_not_retired() -> None:
    assert name(current(images(), "env")) == "env-4"
    assert name(current(images(4, 3), "env")) == "env-2"
    assert current(images(1, 2, 3, 4), "env") is None
    assert current(images(), "other") is None


@pytest.mark.parametrize("retired", [(), (2,), (2, 4), (1, 2, 3, 4)])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_family_resolves_to_its_promoted_image(retired: tuple[int, ...], number: int) -> None:
    known = images(*retired)
    changes = promote(known, known[number - 1])
    assert name(current(after(known, changes), "env")) == f"env-{number}"
    # At no moment does the family stand for nothing, if it stood for something.
    for count in range(len(changes)):
        if current(known, "env"):
            assert current(after(known, changes[:count]), "env")


def test_promoting_the_current_image_changes_nothing() -> None:
    known = images()
    assert promote(known, known[-1]) == []


def test_rolling_back_goes_one_step_and_again_one_step() -> None:
    known = images()
    older, changes = rollback(known, "env")
    assert older.name == "env-3"
    known = after(known, changes)
    older, changes = rollback(known, "env")
    assert older.name == "env-2"
    assert name(current(after(known, changes), "env")) == "env-2"


def test_the_oldest_image_cannot_be_rolled_back() -> None:
    with pytest.raises(BadRequest, match="is the oldest image of"):
        rollback(images(count=1), "env")
    with pytest.raises(BadRequest, match="has no image"):
        rollback(images(1, 2, 3, 4), "env")


def test_an_image_without_a_family_cannot_be_promoted() -> None:
    with pytest.raises(BadRequest, match="belongs to no family"):
        promote([], Image(name="alone", cloud="local"))


def test_prune_keeps_the_newest_the_current_and_used_images() -> None:
    known = images() + images(count=2, family="other")
    assert [i.name for i in surplus(known, keep=2, used=())] == ["env-2", "env-1"]
    assert [i.name for i in surplus(known, keep=2, used=["env-1"])] == ["env-2"]
    assert [i.name for i in surplus(known, keep=1, used=(), family="other")] == ["other-1"]
    # Rolled back to the oldest: it is what the family stands for.
    assert [i.name for i in surplus(images(2, 3, 4), keep=1, used=())] == ["env-3", "env-2"]
    assert [i.name for i in members(known, "env")] == ["env-4", "env-3", "env-2", "env-1"]
