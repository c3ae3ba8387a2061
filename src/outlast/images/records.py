"""The records of image builds, by digest. The images themselves are in the clouds.

images/<digest>/recipe.json   the recipe and its first user; written once
images/<digest>/result.json   the image that was built
images/<digest>/failure.json  why the last build failed
images/<digest>/build.log     the output of the last build
"""

from __future__ import annotations

import contextlib

import msgspec

from outlast.errors import Exists, Missing
from outlast.spec.spec import ImageSpec
from outlast.store.codec import read_object
from outlast.workspace import Workspace


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
    # The epoch of the lease under which it failed: processes that waited for that build report it.
    epoch: int = 0
    who: str = ""
    at: float = 0.0


class ImageRecords:
    """The image records of one workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self.bucket = workspace.bucket

    def write_recipe(self, record: RecipeRecord) -> None:
        with contextlib.suppress(Exists):  # the same digest is the same recipe
            self.bucket.create(f"images/{record.digest}/recipe.json", msgspec.json.encode(record))

    def recipe(self, digest: str) -> RecipeRecord | None:
        return read_object(self.bucket, f"images/{digest}/recipe.json", RecipeRecord)

    def write_result(self, digest: str, result: BuildResult) -> None:
        self.bucket.put(f"images/{digest}/result.json", msgspec.json.encode(result), durable=True)
        self.bucket.delete(f"images/{digest}/failure.json")

    def result(self, digest: str) -> BuildResult | None:
        return read_object(self.bucket, f"images/{digest}/result.json", BuildResult)

    def write_failure(self, digest: str, failure: BuildFailure) -> None:
        self.bucket.put(f"images/{digest}/failure.json", msgspec.json.encode(failure), durable=True)

    def failure(self, digest: str) -> BuildFailure | None:
        return read_object(self.bucket, f"images/{digest}/failure.json", BuildFailure)

    def log(self, digest: str) -> str:
        try:
            return self.bucket.get(f"images/{digest}/build.log").decode("utf-8", "replace")
        except Missing:
            return ""

    def digests(self) -> list[str]:
        return list(self.bucket.children("images/"))


class BuildLog:
    """The output of a build, buffered and written to the workspace."""

    def __init__(self, records: ImageRecords, digest: str) -> None:
        self.key = f"images/{digest}/build.log"
        self.bucket = records.bucket
        self.lines: list[str] = []
        self.written = 0

    def write(self, line: str) -> None:
        """Buffer a line."""
        self.lines.append(line)

    def flush(self) -> None:
        """Write the buffered lines to the workspace."""
        lines = list(self.lines)
        if len(lines) != self.written:
            self.bucket.put(self.key, "".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
            self.written = len(lines)
