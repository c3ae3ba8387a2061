"""Deleted runs: their lines of the ledger, and the numbers of their names, which are never used again.

deleted/numbers/NAME/NUMBER      all numbers of this name up to this one are used; created before anything is deleted
deleted/ledger/COUNT-HASH.json   the index records of deleted runs; created before their objects are deleted
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from outlast.errors import Exists
from outlast.store.bucket import Bucket
from outlast.store.codec import decoded
from outlast.store.parallel import ParallelMap

if TYPE_CHECKING:
    from outlast.runs.ended import EndedRun
    from outlast.workspace import Workspace

_NUMBERS, _LEDGER = "deleted/numbers/", "deleted/ledger/"
_PAGE = 500


def used_up_to(bucket: Bucket, name: str) -> int:
    """Return the highest number of this name that a deletion has recorded; 0 if there is none."""
    return max((int(found) for found in bucket.children(f"{_NUMBERS}{name}/") if found.isdecimal()), default=0)


def split_number(run: str) -> tuple[str, int]:
    """Return the name and the number of a run, a group or a sweep: `census-7`, `census-s2`. Others have number 0."""
    name, _, number = run.rpartition("-")
    if number.isdecimal():
        return name, int(number)
    if number[:1] == "s" and number[1:].isdecimal():
        return f"{name}-s", int(number[1:])
    return run, 0


class DeletedRuns:
    """The deleted runs of a workspace. Pages of the ledger never change, so each is read once."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.bucket = workspace.bucket
        self.each: ParallelMap = workspace.each
        self._pages: dict[str, tuple[EndedRun, ...]] = {}

    def names(self) -> set[str]:
        """Return all deleted runs."""
        return {record.run for record in self.records()}

    def add(self, records: Sequence[EndedRun]) -> None:
        """Record runs that are about to be deleted: their numbers, then their cost. May be repeated."""
        self.retire([record.run for record in records])
        self.each(self._write_page, [records[begin : begin + _PAGE] for begin in range(0, len(records), _PAGE)])

    def _write_page(self, records: Sequence[EndedRun]) -> None:
        # The name depends on the runs: a repeated deletion writes the same page.
        same = hashlib.sha256("\n".join(record.run for record in records).encode()).hexdigest()[:16]
        self._create(f"{_LEDGER}{len(records)}-{same}.json", msgspec.json.encode(records))

    def retire(self, names: Sequence[str]) -> None:
        """Make sure that no run, group or sweep gets one of these names again."""
        highest: dict[str, int] = {}
        for name, number in map(split_number, names):
            highest[name] = max(number, highest.get(name, 0))
        keys = [f"{_NUMBERS}{name}/{number}" for name, number in highest.items() if number]
        self.each(lambda key: self._create(key, b""), keys)

    def _create(self, key: str, body: bytes) -> None:
        try:
            self.bucket.create(key, body)
        except Exists:
            pass

    def records(self) -> list[EndedRun]:
        """Return the records of all deleted runs, for the ledger. Each run is returned once."""
        from outlast.runs.ended import EndedRun

        def read(name: str) -> tuple[EndedRun, ...]:
            return decoded(self.bucket.get(_LEDGER + name), tuple[EndedRun, ...], _LEDGER + name)

        new = [name for name in self.bucket.children(_LEDGER) if name not in self._pages]
        self._pages |= dict(zip(new, self.each(read, new), strict=True))
        return list({record.run: record for page in self._pages.values() for record in page}.values())
