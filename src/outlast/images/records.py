"""What the workspace remembers of images: recipe, result, failure and log of each digest. Clouds have the images.

images/<digest>/recipe.json   who asked first, and for what; written once
images/<digest>/result.json   the image that came of it
images/<digest>/failure.json  why the last build did not work
images/<digest>/build.log     the output of the last build
"""

from __future__ import annotations

import contextlib
from typing import TypeVar

import msgspec

from outlast.errors import Exists, Missing
from outlast.spec.spec import ImageSpec
from outlast.store.codec import decoded
from outlast.workspace import Workspace

T = TypeVar("T")


class RecipeRecord(msgspec.Struct, frozen=True, kw_only=True):
    digest: str
    image: str
    cloud: str
    base: str
    spec: ImageSpec
    script: str = ""
    requirements: dict[str, str] = {}
    lock: str = ""
    source: str = ""
    who: str = ""
    asked_at: float = 0.0


class BuildResult(msgspec.Struct, frozen=True, kw_only=True):
    image: str
    who: str = ""
    built_at: float = 0.0
    seconds: float = 0.0
    cost_usd: float = 0.0
    bytes: int = 0
    scrubbed: tuple[str, ...] = ()


class BuildFailure(msgspec.Struct, frozen=True, kw_only=True):
    why: str
    hint: str = ""
    step: str = ""
    # The epoch of the lease under which it failed: who waited for that build hears of it.
    epoch: int = 0
    who: str = ""
    at: float = 0.0


class ImageRecords:
    """The records of one workspace, by digest."""

    def __init__(self, workspace: Workspace) -> None:
        self.bucket = workspace.bucket

    def write_recipe(self, record: RecipeRecord) -> None:
        with contextlib.suppress(Exists):  # the same digest is the same recipe
            self.bucket.create(f"images/{record.digest}/recipe.json", msgspec.json.encode(record))

    def recipe(self, digest: str) -> RecipeRecord | None:
        return self._read(f"images/{digest}/recipe.json", RecipeRecord)

    def write_result(self, digest: str, result: BuildResult) -> None:
        self.bucket.put(f"images/{digest}/result.json", msgspec.json.encode(result), durable=True)
        self.bucket.delete(f"images/{digest}/failure.json")

    def result(self, digest: str) -> BuildResult | None:
        return self._read(f"images/{digest}/result.json", BuildResult)

    def write_failure(self, digest: str, failure: BuildFailure) -> None:
        self.bucket.put(f"images/{digest}/failure.json", msgspec.json.encode(failure), durable=True)

    def failure(self, digest: str) -> BuildFailure | None:
        return self._read(f"images/{digest}/failure.json", BuildFailure)

    def log(self, digest: str) -> str:
        try:
            return self.bucket.get(f"images/{digest}/build.log").decode("utf-8", "replace")
        except Missing:
            return ""

    def digests(self) -> list[str]:
        return list(self.bucket.children("images/"))

    def _read(self, key: str, kind: type[T]) -> T | None:
        try:
            return decoded(self.bucket.get(key), kind, key)
        except Missing:
            return None


class BuildLog:
    """The output of a build: for whoever watches now, and for the workspace."""

    def __init__(self, records: ImageRecords, digest: str) -> None:
        self.key = f"images/{digest}/build.log"
        self.bucket = records.bucket
        self.lines: list[str] = []
        self.written = 0

    def write(self, line: str) -> None:
        """Note a line; `flush` brings it to the workspace."""
        self.lines.append(line)

    def flush(self) -> None:
        """Bring the log up to date. Called again and again while the build runs, and at its end."""
        lines = list(self.lines)
        if len(lines) != self.written:
            self.bucket.put(self.key, "".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
            self.written = len(lines)
