"""The image methods of `InteractiveCloud`, for clouds with a separate API for images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outlast.clouds.cloud import Image


class ImageApi(Protocol):
    """The images of one cloud, by name. Each method raises NotFound for an unknown name."""

    def list_all(self) -> list[Image]: ...

    def image(self, name: str) -> Image: ...

    def retire(self, name: str, *, retired: bool) -> None: ...

    def share(self, name: str, who: str) -> None: ...

    def delete(self, name: str) -> None: ...


class ImageStore:
    """The part of an `InteractiveCloud` that delegates to `image_api`."""

    image_api: ImageApi

    def images(self) -> Sequence[Image]:
        return self.image_api.list_all()

    def image(self, name: str) -> Image:
        return self.image_api.image(name)

    def retire_image(self, name: str, *, retired: bool = True) -> None:
        self.image_api.retire(name, retired=retired)

    def share_image(self, name: str, who: str) -> None:
        self.image_api.share(name, who)

    def delete_image(self, name: str) -> None:
        self.image_api.delete(name)
