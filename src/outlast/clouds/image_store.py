"""Images of a cloud that keeps them apart from its machines: what every such cloud does alike. Calls no API itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outlast.clouds.cloud import Image


class ImageApi(Protocol):
    """The cloud's own images, by name. Each raises NotFound for one that is not there."""

    def list_all(self) -> list[Image]: ...

    def image(self, name: str) -> Image: ...

    def retire(self, name: str, *, retired: bool) -> None: ...

    def share(self, name: str, who: str) -> None: ...

    def delete(self, name: str) -> None: ...


class ImageStore:
    """The part of a Workshop that is answered by `pictures` alone."""

    pictures: ImageApi

    def images(self) -> Sequence[Image]:
        return self.pictures.list_all()

    def image(self, name: str) -> Image:
        return self.pictures.image(name)

    def retire_image(self, name: str, *, retired: bool = True) -> None:
        self.pictures.retire(name, retired=retired)

    def share_image(self, name: str, who: str) -> None:
        self.pictures.share(name, who)

    def delete_image(self, name: str) -> None:
        self.pictures.delete(name)
