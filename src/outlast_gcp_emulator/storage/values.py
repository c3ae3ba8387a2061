"""The values of the store: buckets, objects, and the conditions under which a request may be carried out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outlast_gcp_emulator.errors import ApiError, invalid

NAME_BYTES_MAX = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredBucket:
    name: str
    project: str
    metageneration: int
    created_us: int
    updated_us: int
    # What the client set, by the names of the API.
    meta: Mapping[str, Any]
    policy: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """A live object. Its generation is the time of its creation in microseconds."""

    bucket: str
    name: str
    generation: int
    metageneration: int
    size: int
    # None for what was composed of parts, as Google has it.
    md5: bytes | None
    crc32c: int
    body: str
    components: int | None
    updated_us: int
    meta: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Conditions:
    """What must hold of the object as it is. Generation 0 stands for: there is none."""

    generation_match: int | None = None
    generation_not_match: int | None = None
    metageneration_match: int | None = None
    metageneration_not_match: int | None = None

    def check(self, found: Stored | None, *, reading: bool = False) -> None:
        """Raises 412; where something is read, 304 for what the client has already."""
        generation = found.generation if found else 0
        metageneration = found.metageneration if found else 0
        same = ((self.generation_match, generation), (self.metageneration_match, metageneration))
        if any(wanted is not None and wanted != actual for wanted, actual in same):
            raise condition_not_met()
        other = ((self.generation_not_match, generation), (self.metageneration_not_match, metageneration))
        if any(unwanted is not None and unwanted == actual for unwanted, actual in other):
            raise ApiError(304, "notModified", "Not Modified") if reading else condition_not_met()

    def to_data(self) -> dict[str, int | None]:
        return {
            "generation_match": self.generation_match,
            "generation_not_match": self.generation_not_match,
            "metageneration_match": self.metageneration_match,
            "metageneration_not_match": self.metageneration_not_match,
        }


NO_CONDITIONS = Conditions()


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """What a list asks for. `start` is the first name that may be in it, `end` the first that may not."""

    prefix: str = ""
    delimiter: str = ""
    start: bytes = b""
    end: bytes = b""
    results_max: int = 1000
    trailing_delimiter: bool = False
    glob: str = ""


@dataclass(kw_only=True, slots=True)
class ObjectPage:
    """A part of a list; `following` is the name at which the next one starts, if there is more."""

    objects: list[Stored] = field(default_factory=list)
    prefixes: list[str] = field(default_factory=list)
    following: bytes = b""


def condition_not_met() -> ApiError:
    return ApiError(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")


def check_object_name(name: str) -> str:
    """The rules of Cloud Storage. Nothing of a name ever becomes a path."""
    if not name or len(name.encode("utf-8", "replace")) > NAME_BYTES_MAX:
        raise invalid(f"The name of an object has 1 to {NAME_BYTES_MAX} bytes.")
    if name in (".", "..") or any(letter in "\r\n" or "\ud800" <= letter <= "\udfff" for letter in name):
        raise invalid(f"Invalid object name: {name!r}")
    return name
