"""Groups of runs that were submitted together: their members, with addresses and readiness.

Each member is a run with its own story. A seat, like a heartbeat, is only a hint.
"""

from __future__ import annotations

import msgspec

from outlast.errors import Damaged, Exists, Missing, NoSuchRun
from outlast.runs.numbering import keep_hint
from outlast.store.bucket import Entry
from outlast.store.codec import decoded
from outlast.workspace import Workspace

# Stores report times in seconds or better: an entry that is older than this changes with the next write.
_FINAL_S = 3.0


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`group.json`: written once, before any run of the group."""

    group: str
    who: str = ""
    asked_at: float = 0.0
    tasks: tuple[str, ...] = ()


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a group, as reported by its agent."""

    run: str
    task: str
    attempt: int = 0
    address: str = ""
    ready: bool = False


class _ReadSeat(msgspec.Struct, frozen=True, kw_only=True):
    """A seat as it was read, when its entry was first listed, and whether a later write would change the entry."""

    entry: Entry
    since: float
    seat: Seat
    final: bool


class Groups:
    """The groups of one workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.bucket = workspace.bucket
        self._read: dict[str, _ReadSeat] = {}

    def reserve(self, name: str, *, who: str, tasks: tuple[str, ...]) -> str:
        """Create a group under the next free number of its name, such as `evolve-3`."""
        number = self.workspace.next_number(name)
        while True:
            record = GroupRecord(group=f"{name}-{number}", who=who, asked_at=self.workspace.clock(), tasks=tasks)
            try:
                # Groups and runs share their names. Reserve the name first: if we crash in between, no run gets it.
                self.bucket.create(f"runs/{record.group}/group", b"")
                self.bucket.create(f"groups/{record.group}/group.json", msgspec.json.encode(record))
            except Exists:
                number += 1
                continue
            keep_hint(self.bucket, name, number)
            return record.group

    def record(self, group: str) -> GroupRecord:
        """Return the record of a group. Raises NoSuchRun."""
        key = f"groups/{group}/group.json"
        try:
            return decoded(self.bucket.get(key), GroupRecord, key)
        except Missing as problem:
            raise NoSuchRun(f"no group `{group}` in {self.workspace.url}", hint="see `outlast ps --all`") from problem

    def exists(self, group: str) -> bool:
        return group in self.bucket.children("groups/")

    def all(self) -> list[str]:
        return list(self.bucket.children("groups/"))

    def seal(self, group: str) -> None:
        """Mark the group as complete: all runs are written and may start. May be repeated."""
        try:
            self.bucket.create(f"groups/{group}/sealed", b"")
        except Exists:
            pass

    def sealed(self, group: str) -> bool:
        try:
            self.bucket.head(f"groups/{group}/sealed")
        except Missing:
            return False
        return True

    def claim(self, group: str, seat: Seat) -> None:
        """Create the seat of a member, before its run is submitted: a member without a seat would never be released.

        An existing seat stays: another user may have added the same member, and it may already run.
        """
        try:
            self.bucket.create(f"groups/{group}/seats/{seat.run}", msgspec.json.encode(seat))
        except Exists:
            pass

    def sit(self, group: str, seat: Seat) -> None:
        """Write the current state of a member."""
        self.bucket.put(f"groups/{group}/seats/{seat.run}", msgspec.json.encode(seat))

    def seats(self, group: str) -> list[Seat]:
        """Return the seats of all members. Unreadable seats are skipped, and unchanged ones are not read again."""
        entries = list(self.bucket.list(f"groups/{group}/seats/"))
        return [seat for seat in self.workspace.each(self._seat, entries) if seat is not None]

    def _seat(self, entry: Entry) -> Seat | None:
        known, now = self._read.get(entry.key), self.workspace.clock()
        since = now
        if known is not None and known.entry == entry:
            if known.final:
                return known.seat
            since = known.since
        try:
            seat = decoded(self.bucket.get(entry.key), Seat, entry.key)
        except (Missing, Damaged):
            return None
        self._read[entry.key] = _ReadSeat(entry=entry, since=since, seat=seat, final=now - since > _FINAL_S)
        return seat
