"""Records of what a workspace owns besides machines and bills for all the time: volumes and databases. Asks no cloud.

A record is written before the thing is made and removed after it is gone, so nothing that costs is unknown. One whose
maker was killed stays, is listed as half made, and is taken over by whoever makes it again or deletes it. What is gone
leaves a note of what it cost: `outlast cost` needs nothing but this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from outlast.errors import Exists, Missing, NoSuchStore, StoreTaken, UsageError
from outlast.spec import fields
from outlast.workspace.codec import decoded, readable
from outlast.workspace.hand import QUIET_S, mark_of_this_process
from outlast.workspace.lease import Holder
from outlast.workspace.ledger import Line
from outlast.workspace.workspace import Workspace

Kind = Literal["volume", "database"]
Phase = Literal["making", "ready", "deleting"]
HOURS_PER_MONTH = 730.0


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """One volume or database: who wanted it, where it is, what it costs."""

    kind: Kind
    name: str
    id: str
    cloud: str
    # What its cloud calls it.
    there: str
    phase: Phase = "making"
    # `host:pid` of the process that makes or deletes it.
    by: str = ""
    who: str = ""
    asked_at: float = 0.0
    zone: str = ""
    engine: str = ""
    size_gb: float = 0.0
    usd_per_month: float = 0.0
    # What it cost at other prices, before the last change of its size, and when that was.
    extra_usd: float = 0.0
    priced_at: float = 0.0
    # Of a volume: what machines mount, how, and from which zones they can; empty: from all of its cloud's.
    source: str = ""
    mount_kind: str = ""
    options: str = ""
    zones: tuple[str, ...] = ()
    # Address or network → whose it is.
    allowed: dict[str, str] = {}
    gone_at: float = 0.0

    def cost_usd(self, now: float) -> float:
        """What it has cost until now, or until it was gone."""
        hours = max(0.0, (self.gone_at or now) - (self.priced_at or self.asked_at)) / 3600.0
        return self.extra_usd + hours * self.usd_per_month / HOURS_PER_MONTH


class Holdings:
    """The volumes, or the databases, of one workspace."""

    def __init__(self, workspace: Workspace, kind: Kind) -> None:
        self.workspace = workspace
        self.bucket = workspace.bucket
        self.kind = kind
        # Records that could not be read, and why: what they stand for may bill.
        self.damaged: dict[str, str] = {}

    def name_there(self, name: str, id: str) -> str:
        """Derived from the record: who makes it again finds the first. Not from the name alone: Google takes a name
        that was deleted only a week later."""
        return f"{name}-{self.workspace.id[:6]}-{id}"

    def create(self, wish: Holding) -> Holding:
        """Write the intent. Raises StoreTaken; a record whose maker is gone is taken over, with its id."""
        fresh = msgspec.structs.replace(wish, by=mark_of_this_process())
        try:
            self.bucket.create(self._key(wish.name), msgspec.json.encode(fresh))
            return fresh
        except Exists:
            found = self.find(wish.name)
        half_made = found is not None and found.phase == "making" and self.abandoned(found)
        if found is not None and half_made and _alike(found, wish):
            return self.write(msgspec.structs.replace(fresh, id=found.id, there=found.there, asked_at=found.asked_at))
        state = "is being made or deleted" if found is None or found.phase != "ready" else "exists already"
        hint = f"`outlast {self.word} show {wish.name}` tells more; or take another name"
        if half_made:
            state = "was begun otherwise, and is half made"
            hint = f"ask for the same again, or take away what is there: `outlast {self.word} delete {wish.name}`"
        raise StoreTaken(f"the {self.kind} `{wish.name}` {state}" + (f" on {found.cloud}" if found else ""), hint=hint)

    def claim(
        self, name: str, *, cloud: str, who: str, zone: str = "", size_gb: float = 0.0, engine: str = ""
    ) -> Holding:
        """`create`, from what somebody asks for. Raises UsageError for what is no name, and StoreTaken."""
        try:
            fields.name(name)
        except ValueError as problem:
            raise UsageError(f"NAME: {problem}") from problem
        id = self.workspace.ids()[:6]
        wish = Holding(
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
        holding = self.create(wish)
        if cloud != "local":
            self.workspace.remember_cloud(cloud)
        return holding

    def write(self, holding: Holding) -> Holding:
        fresh = msgspec.structs.replace(holding, by=mark_of_this_process())
        self.bucket.put(self._key(holding.name), msgspec.json.encode(fresh), durable=True)
        return fresh

    def mine(self, holding: Holding) -> bool:
        """Whether nobody has taken it over from this process, as after a long sleep: then it is theirs to take back."""
        found = self.find(holding.name)
        return found is not None and (found.id, found.by) == (holding.id, holding.by)

    def find(self, name: str) -> Holding | None:
        """The record of that name. Raises Damaged."""
        try:
            return decoded(self.bucket.get(self._key(name)), Holding, self._key(name))
        except Missing:
            return None

    def demand(self, name: str) -> Holding:
        """Raises NoSuchStore, with names that are near."""
        if (found := self.find(name)) is not None:
            return found
        import difflib

        names = [one.name for one in self.all()]
        close = difflib.get_close_matches(name, names, n=2)
        hint = (
            "did you mean " + ", ".join(f"`{one}`?" for one in close)
            if close
            else f"`outlast {self.word} create {name}`"
        )
        raise NoSuchStore(f"there is no {self.kind} `{name}` in {self.workspace.url}", hint=hint)

    def all(self) -> Sequence[Holding]:
        """All that can be read; the others are in `damaged`."""
        names = [child.removesuffix(".json") for child in self.bucket.children(f"{self.kind}s/")]
        return readable([name for name in names if name != "gone"], self.find, self.damaged)

    def abandoned(self, holding: Holding) -> bool:
        """Whether whoever makes or deletes it is not there any more."""
        if holding.phase == "ready":
            return False
        if Holder(who=holding.by, epoch=0).plainly_dead():
            return True
        try:
            said_at = self.bucket.head(self._key(holding.name)).modified_at
        except Missing:
            return True
        return self.bucket.put("clock", b"").modified_at - said_at > QUIET_S

    def remove(self, holding: Holding) -> None:
        """It is gone; what it cost is kept. Removing what is not there is fine."""
        if holding.usd_per_month or holding.extra_usd:
            note = msgspec.structs.replace(holding, gone_at=self.workspace.clock())
            self.bucket.put(f"{self.kind}s/gone/{holding.id}.json", msgspec.json.encode(note), durable=True)
        self.bucket.delete(self._key(holding.name))

    def gone(self) -> Sequence[Holding]:
        """Those that were and cost something; what cannot be read is in `damaged`."""
        keys = [entry.key for entry in self.bucket.list(f"{self.kind}s/gone/")]
        return readable(keys, lambda key: decoded(self.bucket.get(key), Holding, key), self.damaged)

    @property
    def word(self) -> str:
        return "volume" if self.kind == "volume" else "db"

    def _key(self, name: str) -> str:
        return f"{self.kind}s/{name}.json"


def _alike(found: Holding, wish: Holding) -> bool:
    """Whether what was begun is what is asked for: a half made server does not change its engine."""
    asked = [(one.cloud, one.zone, one.engine, one.size_gb) for one in (found, wish)]
    return asked[0] == asked[1]


def line(holding: Holding, now: float) -> Line:
    """What it has cost so far, for the ledger. By its price: no cloud tells what one thing of many has cost."""
    cost = holding.cost_usd(now)
    return Line(
        kind=holding.kind,
        name=holding.name,
        who=holding.who,
        cloud=holding.cloud,
        zone=holding.zone,
        type=holding.engine or f"{holding.size_gb:g} GB",
        machine=holding.there,
        spot=False,
        begin=holding.asked_at,
        end=holding.gone_at or now,
        cost_usd=cost,
        on_demand_usd=cost,
        causes={"store": cost},
        estimated=not holding.gone_at,
    )


def bills(workspace: Workspace, damaged: dict[str, str] | None = None) -> Sequence[Holding]:
    """All that bills by the month in this workspace, and all that ever did: `cost_usd` tells how much. What cannot be
    read is noted in `damaged`."""
    kinds: tuple[Kind, ...] = ("volume", "database")
    every = [Holdings(workspace, kind) for kind in kinds]
    found = [one for holdings in every for one in (*holdings.all(), *holdings.gone())]
    if damaged is not None:
        damaged.update({f"{one.kind} {name}": why for one in every for name, why in one.damaged.items()})
    return found
