"""Groups: runs that were asked for together. Who belongs to one, where they are, and whether they are ready.

A group decides nothing: each of its runs has a story of its own. What a member says of itself is a hint, like a heartbeat.
"""

from __future__ import annotations

import msgspec

from outlast.errors import Damaged, Exists, Missing, NoSuchRun
from outlast.runs.numbering import keep_hint
from outlast.store.codec import decoded
from outlast.workspace import Workspace


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`group.json`: that there is such a group. Written once, before any of its runs."""

    group: str
    who: str = ""
    asked_at: float = 0.0
    tasks: tuple[str, ...] = ()


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a group, as it says itself."""

    run: str
    task: str
    attempt: int = 0
    address: str = ""
    ready: bool = False


class Groups:
    """The groups of one workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.bucket = workspace.bucket

    def reserve(self, name: str, *, who: str, tasks: tuple[str, ...]) -> str:
        """A new group under the next free number of its name: `evolve-3`."""
        number = self.workspace.next_number(name)
        while True:
            record = GroupRecord(group=f"{name}-{number}", who=who, asked_at=self.workspace.clock(), tasks=tasks)
            try:
                # Among the runs, where names are drawn: no run is called as a group is. It goes first: a group that is
                # not among them, because we died, would lend its name to a run.
                self.bucket.create(f"runs/{record.group}/group", b"")
                self.bucket.create(f"groups/{record.group}/group.json", msgspec.json.encode(record))
            except Exists:
                number += 1
                continue
            keep_hint(self.bucket, name, number)
            return record.group

    def record(self, group: str) -> GroupRecord:
        """Raises NoSuchRun."""
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
        """All that were asked for at the beginning are asked for: now they may start."""
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
        """Say that there is to be such a member, before it is asked for: one that nobody knows would never end. What it
        says of itself stays: a teammate may have asked for the same one, and it may be there by now."""
        try:
            self.bucket.create(f"groups/{group}/seats/{seat.run}", msgspec.json.encode(seat))
        except Exists:
            pass

    def sit(self, group: str, seat: Seat) -> None:
        """Say what is so now."""
        self.bucket.put(f"groups/{group}/seats/{seat.run}", msgspec.json.encode(seat))

    def seats(self, group: str) -> list[Seat]:
        """Everybody who belongs to it. One that cannot be read is a member that has said nothing yet."""
        found = []
        for entry in self.bucket.list(f"groups/{group}/seats/"):
            try:
                found.append(decoded(self.bucket.get(entry.key), Seat, entry.key))
            except (Missing, Damaged):
                continue
        return found
