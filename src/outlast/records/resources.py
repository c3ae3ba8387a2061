"""Records of volumes and databases, which are billed for as long as they exist.

The next `create` or `delete` takes over a record whose owner has died. A deleted resource leaves a record of its cost,
so `outlast cost` needs no cloud.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from outlast.errors import Exists, NoSuchStore, StoreTaken, UsageError
from outlast.records.record import Record, Records
from outlast.spec import fields
from outlast.store.codec import decoded, read_all
from outlast.workspace import Workspace

Kind = Literal["volume", "database"]
HOURS_PER_MONTH = 730.0


class ResourceRecord(Record, frozen=True, kw_only=True):
    """One volume or database: its user, its location, its price."""

    kind: Kind
    # Its name in its cloud.
    there: str
    zone: str = ""
    engine: str = ""
    size_gb: float = 0.0
    usd_per_month: float = 0.0
    # Its cost at earlier prices, before the last change of its size, and the time of that change.
    extra_usd: float = 0.0
    priced_at: float = 0.0
    # Of a volume: the mount source, its kind, its options, and the zones that can mount it (empty: all of its cloud).
    source: str = ""
    mount_kind: str = ""
    options: str = ""
    zones: tuple[str, ...] = ()
    # Address or network that may connect → its user.
    allowed: dict[str, str] = msgspec.field(default_factory=dict)
    gone_at: float = 0.0

    def cost_usd(self, now: float) -> float:
        """Return the cost until now, or until it was deleted."""
        hours = max(0.0, (self.gone_at or now) - (self.priced_at or self.asked_at)) / 3600.0
        return self.extra_usd + hours * self.usd_per_month / HOURS_PER_MONTH


class ResourceRecords(Records[ResourceRecord]):
    """The volumes, or the databases, of one workspace."""

    def __init__(self, workspace: Workspace, kind: Kind) -> None:
        super().__init__(workspace, f"{kind}s", ResourceRecord)
        self.kind = kind

    def name_there(self, name: str, id: str) -> str:
        """Return the resource's name in its cloud.

        It is derived from the record, so a repeated creation finds the first. It contains the id because Google blocks
        the name of a deleted resource for a week.
        """
        return f"{name}-{self.workspace.id[:6]}-{id}"

    def create(self, record: ResourceRecord) -> ResourceRecord:
        """Write the intent, or take over the record of a dead owner, with its id. Raises StoreTaken."""
        try:
            return super().create(record)
        except Exists:
            found = self.find(record.name)
        unfinished = found is not None and found.phase == "creating" and self.abandoned(found)
        if found is not None and unfinished and _alike(found, record):
            return self.write(msgspec.structs.replace(record, id=found.id, there=found.there, asked_at=found.asked_at))
        state = "is being created or deleted" if found is None or found.phase != "ready" else "already exists"
        hint = f"see `outlast {self.command} show {record.name}`, or choose another name"
        if unfinished:
            state = "was begun with other options and is unfinished"
            hint = f"repeat it with the same options, or run `outlast {self.command} delete {record.name}`"
        raise StoreTaken(f"{self.kind} `{record.name}` {state}" + (f" on {found.cloud}" if found else ""), hint=hint)

    def claim(
        self, name: str, *, cloud: str, who: str, zone: str = "", size_gb: float = 0.0, engine: str = ""
    ) -> ResourceRecord:
        """Write the intent for a new resource. Raises UsageError for an invalid name, and StoreTaken."""
        try:
            fields.name(name)
        except ValueError as problem:
            raise UsageError(f"NAME: {problem}") from problem
        id = self.workspace.ids()[:6]
        draft = ResourceRecord(
            kind=self.kind,
            name=name,
            id=id,
            cloud=cloud,
            there=self.name_there(name, id),
            who=who,
            asked_at=self.workspace.clock(),
            zone=zone,
            engine=engine,
            size_gb=size_gb,
        )
        record = self.create(draft)
        self.workspace.remember_cloud(cloud)
        return record

    def get(self, name: str) -> ResourceRecord:
        """Return the record of that name. Raises NoSuchStore, with similar names as a hint."""
        if (found := self.find(name)) is not None:
            return found
        import difflib

        close = difflib.get_close_matches(name, [one.name for one in self.all()], n=2)
        hint = (
            "did you mean " + ", ".join(f"`{one}`?" for one in close)
            if close
            else f"`outlast {self.command} create {name}`"
        )
        raise NoSuchStore(f"no {self.kind} `{name}` in {self.workspace.url}", hint=hint)

    def remove(self, record: ResourceRecord) -> None:
        """Remove the record of a deleted resource and keep its cost; may be repeated."""
        if record.usd_per_month or record.extra_usd:
            past = msgspec.structs.replace(record, gone_at=self.workspace.clock())
            self.bucket.put(f"{self.prefix}/gone/{record.id}.json", msgspec.json.encode(past), durable=True)
        self.bucket.delete(self.key(record.name))

    def gone(self) -> Sequence[ResourceRecord]:
        """Return the deleted resources that cost something; unreadable ones are in `damaged`."""
        keys = [entry.key for entry in self.bucket.list(f"{self.prefix}/gone/")]
        return read_all(keys, lambda key: decoded(self.bucket.get(key), ResourceRecord, key), self.damaged)

    @property
    def command(self) -> str:
        """The command group for this kind: `outlast volume`, `outlast db`."""
        return "volume" if self.kind == "volume" else "db"


def _alike(found: ResourceRecord, request: ResourceRecord) -> bool:
    """Return whether an unfinished resource is the requested one: a server cannot change its engine."""
    asked = [(one.cloud, one.zone, one.engine, one.size_gb) for one in (found, request)]
    return asked[0] == asked[1]


def all_resources(workspace: Workspace, damaged: dict[str, str] | None = None) -> Sequence[ResourceRecord]:
    """Return every volume and database that the workspace has or had. Unreadable records are added to `damaged`."""
    kinds: tuple[Kind, ...] = ("volume", "database")
    every = [ResourceRecords(workspace, kind) for kind in kinds]
    found = [one for records in every for one in (*records.all(), *records.gone())]
    if damaged is not None:
        damaged.update({f"{one.kind} {name}": why for one in every for name, why in one.damaged.items()})
    return found
