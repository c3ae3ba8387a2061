"""Images of all clouds as table rows, failed builds, and one image with its recipe, as values."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from outlast.clouds.cloud import Image, InteractiveCloud
from outlast.clouds.registry import interactive_clouds
from outlast.errors import NoSuchRun, OutlastError
from outlast.images.builder import LABEL_RECIPE
from outlast.images.family import current, members
from outlast.images.records import BuildFailure, BuildResult, ImageRecords, RecipeRecord
from outlast.workspace import Workspace

_LOG_CHARS = 200_000


class ImageTableRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    family: str
    cloud: str
    # `current`, `older`, `retired`, or `base` for an image without a family.
    state: str
    tone: str
    bytes: int
    created_at: float
    digest: str = ""
    description: str = ""
    who: str = ""
    took_s: float = 0.0
    cost_usd: float = 0.0
    # Commands that passed before the image was kept.
    tests: tuple[str, ...] = ()


class FailedBuild(msgspec.Struct, frozen=True, kw_only=True):
    digest: str
    family: str
    step: str
    why: str
    hint: str
    who: str
    at: float


class ImageOverview(msgspec.Struct, frozen=True, kw_only=True):
    rows: tuple[ImageTableRow, ...]
    failed: tuple[FailedBuild, ...]
    # Cloud → why it did not answer.
    unreachable: dict[str, str] = {}


class ImageDetail(msgspec.Struct, frozen=True, kw_only=True):
    row: ImageTableRow
    base: str = ""
    source: str = ""
    # Field of the recipe → value.
    recipe: tuple[tuple[str, str], ...] = ()
    script: str = ""
    scrubbed: tuple[str, ...] = ()
    log: str = ""


class ImageReader:
    def __init__(
        self, workspace: Workspace, known: Callable[[Workspace], Mapping[str, InteractiveCloud]] = interactive_clouds
    ) -> None:
        self.workspace = workspace
        self.records = ImageRecords(workspace)
        self.known = known
        # Results and recipes never change.
        self._kept: dict[str, tuple[RecipeRecord | None, BuildResult]] = {}

    def __call__(self) -> ImageOverview:
        rows: list[ImageTableRow] = []
        unreachable: dict[str, str] = {}
        for name, cloud in self.known(self.workspace).items():
            try:
                rows += self._of(name, cloud)
            except OutlastError as problem:
                unreachable[name] = problem.message
        return ImageOverview(rows=tuple(rows), failed=tuple(self._failed()), unreachable=unreachable)

    def _of(self, cloud_name: str, cloud: InteractiveCloud) -> list[ImageTableRow]:
        images = list(cloud.images())
        found = []
        for family in sorted({image.family for image in images}, key=lambda one: (not one, one)):
            now = current(images, family) if family else None
            found += [self._row(cloud_name, image, now) for image in members(images, family)]
        return found

    def _row(self, cloud: str, image: Image, now: Image | None) -> ImageTableRow:
        digest = image.labels.get(LABEL_RECIPE, "")
        recipe, result = self._built(digest)
        state = "retired" if image.retired else "current" if now and now.name == image.name else "older"
        state = state if image.family else "base"
        return ImageTableRow(
            name=image.name,
            family=image.family,
            cloud=cloud,
            state=state,
            tone={"current": "good", "retired": "off"}.get(state, "done"),
            bytes=image.bytes,
            created_at=image.created_at,
            digest=digest,
            description=image.description,
            who=result.who if result else "",
            took_s=result.seconds if result else 0.0,
            cost_usd=result.cost_usd if result else 0.0,
            tests=recipe.spec.test if recipe else (),
        )

    def _built(self, digest: str) -> tuple[RecipeRecord | None, BuildResult | None]:
        if not digest:
            return None, None
        if digest not in self._kept:
            result = self.records.result(digest)
            if result is None:
                return self.records.recipe(digest), None
            self._kept[digest] = self.records.recipe(digest), result
        return self._kept[digest]

    def _failed(self) -> list[FailedBuild]:
        found = []
        for digest in self.records.digests():
            if digest not in self._kept and (failure := self.records.failure(digest)) is not None:
                found.append(self._failure(digest, failure))
        return sorted(found, key=lambda one: -one.at)

    def _failure(self, digest: str, failure: BuildFailure) -> FailedBuild:
        recipe = self.records.recipe(digest)
        return FailedBuild(
            digest=digest,
            family=recipe.spec.name if recipe else "",
            step=failure.step,
            why=failure.why,
            hint=failure.hint,
            who=failure.who,
            at=failure.at,
        )

    def one(self, cloud: str, name: str) -> ImageDetail:
        """Return one image. Raises NoSuchRun."""
        row = next((row for row in self().rows if (row.cloud, row.name) == (cloud, name)), None)
        if row is None:
            raise NoSuchRun(f"image `{name}` does not exist on {cloud}", hint="see `outlast image list`")
        recipe, result = self._built(row.digest)
        if recipe is None:
            return ImageDetail(row=row)
        spec = recipe.spec
        fields = ("packages", "pip", "requirements", "lock", "files", "warm", "test", "keep")
        values = [(field, getattr(spec, field)) for field in fields if getattr(spec, field)]
        return ImageDetail(
            row=row,
            base=recipe.base,
            source=recipe.source,
            recipe=tuple((field, value if isinstance(value, str) else ", ".join(value)) for field, value in values),
            script=recipe.script,
            scrubbed=result.scrubbed if result else (),
            log=self.records.log(row.digest)[-_LOG_CHARS:],
        )
