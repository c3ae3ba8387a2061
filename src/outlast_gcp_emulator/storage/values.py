"""Values of the object store: buckets, objects, conditions and list queries, with their database rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from outlast_gcp_emulator.errors import ApiError, invalid

NAME_BYTES_MAX = 1024
_OBJECT_COLUMNS = [
    *("bucket", "name", "generation", "metageneration", "size", "md5", "crc32c", "body", "components"),
    *("updated_us", "meta"),
]
# For SELECT and INSERT statements, in the order of `StoredObject.to_row`.
OBJECT_COLUMNS = ", ".join(_OBJECT_COLUMNS)
_BUCKET_COLUMNS = ("name", "project", "metageneration", "created_us", "updated_us", "meta", "policy")


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredBucket:
    """A bucket. Its `created_us` is its generation."""

    name: str
    project: str
    metageneration: int
    created_us: int
    updated_us: int
    # The fields that the client set, by their names in the JSON API.
    meta: Mapping[str, Any]
    policy: Mapping[str, Any] | None

    @classmethod
    def from_row(cls, row: tuple[Any, ...]) -> StoredBucket:
        fields = dict(zip(_BUCKET_COLUMNS, row, strict=True))
        policy = None if fields["policy"] is None else json.loads(fields["policy"])
        return cls(**{**fields, "meta": json.loads(fields["meta"]), "policy": policy})


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredObject:
    """A live object. Its generation is the time of its creation in microseconds."""

    bucket: str
    name: str
    generation: int
    metageneration: int
    size: int
    # None for a composed object, as with Google.
    md5: bytes | None
    crc32c: int
    body: str
    components: int | None
    updated_us: int
    meta: Mapping[str, Any]

    def to_row(self) -> tuple[Any, ...]:
        fields = {name: getattr(self, name) for name in _OBJECT_COLUMNS}
        return tuple({**fields, "name": self.name.encode(), "meta": json.dumps(self.meta)}.values())

    @classmethod
    def from_row(cls, row: tuple[Any, ...]) -> StoredObject:
        fields = dict(zip(_OBJECT_COLUMNS, row, strict=True))
        return cls(**{**fields, "name": fields["name"].decode(), "meta": json.loads(fields["meta"])})

    def to_json(self) -> str:
        fields = {name: getattr(self, name) for name in _OBJECT_COLUMNS}
        return json.dumps({**fields, "md5": None if self.md5 is None else self.md5.hex()})

    @classmethod
    def from_json(cls, text: str) -> StoredObject:
        fields = json.loads(text)
        return cls(**{**fields, "md5": None if fields["md5"] is None else bytes.fromhex(fields["md5"])})


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions on the current object. Generation 0 means that there is none."""

    generation_match: int | None = None
    generation_not_match: int | None = None
    metageneration_match: int | None = None
    metageneration_not_match: int | None = None

    def check(self, found: StoredObject | None, *, reading: bool = False) -> None:
        """Raise ApiError 412 if a condition fails; for reads 304 if the client has the current object."""
        generation = found.generation if found else 0
        metageneration = found.metageneration if found else 0
        same = ((self.generation_match, generation), (self.metageneration_match, metageneration))
        if any(wanted is not None and wanted != actual for wanted, actual in same):
            raise condition_not_met()
        other = ((self.generation_not_match, generation), (self.metageneration_not_match, metageneration))
        if any(unwanted is not None and unwanted == actual for unwanted, actual in other):
            raise ApiError(304, "notModified", "Not Modified") if reading else condition_not_met()

    def to_data(self) -> dict[str, int | None]:
        return asdict(self)


NO_CONDITIONS = Conditions()


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectQuery:
    """A query for a list. `start` is the first possible name, `end` the first name after the list."""

    prefix: str = ""
    delimiter: str = ""
    start: bytes = b""
    end: bytes = b""
    results_max: int = 1000
    trailing_delimiter: bool = False
    glob: str = ""


@dataclass(kw_only=True, slots=True)
class ObjectPage:
    """One page of a list. `following` is the first name of the next page, if there is one."""

    objects: list[StoredObject] = field(default_factory=list)
    prefixes: list[str] = field(default_factory=list)
    following: bytes = b""


def condition_not_met() -> ApiError:
    return ApiError(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")


def check_object_name(name: str) -> str:
    """Check a name by the rules of Cloud Storage. Names never become paths. Raises ApiError."""
    if not name or len(name.encode("utf-8", "replace")) > NAME_BYTES_MAX:
        raise invalid(f"The name of an object must have 1 to {NAME_BYTES_MAX} bytes.")
    if name in (".", "..") or any(letter in "\r\n" or "\ud800" <= letter <= "\udfff" for letter in name):
        raise invalid(f"Invalid object name: {name!r}")
    return name
