"""The ledger of a workspace: costs from the index of ended runs, live stories and the pages of machines.

A machine's page is written once, before the machine is deleted. The cost of an ended run is in its record of the index.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from outlast.billing.ledger import Billed, LedgerLine, lines_of, machine_line
from outlast.errors import Exists, StoreUnreachable, WorkspaceError
from outlast.records.machines import MachineRecord
from outlast.records.resources import ResourceRecord, all_resources
from outlast.runs.deleted import DeletedRuns
from outlast.runs.ended import EndedRuns
from outlast.runs.state import RunState
from outlast.store.codec import decoded
from outlast.store.parallel import ParallelMap, in_parallel
from outlast.workspace import Workspace

_MACHINES = "ledger/machines/"


class LedgerPage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The cost of one run or machine."""

    name: str
    who: str = ""
    lines: tuple[LedgerLine, ...] = ()


class LedgerStore:
    """The ledger pages of one workspace. Closed pages never change, so each is read once."""

    def __init__(self, workspace: Workspace, *, each: ParallelMap = in_parallel) -> None:
        self.workspace = workspace
        self.bucket = workspace.bucket
        self.each = each
        self.index = EndedRuns(workspace, each=workspace.each)
        self.deleted = DeletedRuns(workspace)
        self._pages: dict[str, LedgerPage] = {}
        self._closed: dict[str, LedgerPage] = {}
        # Runs whose story cannot be read → the reason. Their cost is unknown.
        self.damaged: dict[str, str] = {}

    def close_machine(
        self, machine_record: MachineRecord, machine: Billed, *, on_demand_usd_per_hour: float = 0.0
    ) -> None:
        """Write the page of a machine that no run owns, before it is deleted and its cost is lost."""
        line = machine_line(
            machine,
            who=machine_record.who,
            extra_usd=machine_record.extra_usd,
            on_demand_usd_per_hour=on_demand_usd_per_hour,
            over=True,
        )
        page = LedgerPage(name=machine_record.name, who=machine_record.who, lines=(line,))
        self._write(_MACHINES + f"{machine_record.name}-{machine_record.id}.json", page, durable=True)

    def _write(self, key: str, page: LedgerPage, *, durable: bool) -> None:
        try:
            self.bucket.create(key, msgspec.json.encode(page), durable=durable)
        except Exists:
            pass  # written before, with the same cost

    def closed(self) -> list[LedgerPage]:
        """Return the pages of all ended runs and deleted machines; only new ones are read."""
        return [*self._ended(()), *self.machines()]

    def run(self, run: str, now: float) -> LedgerPage:
        """Return the page of one run, ended or not."""
        return self._open(run, now)

    def runs(self, now: float) -> list[LedgerPage]:
        """Return a page for every run of the workspace."""
        live = sorted({*self.workspace.heartbeats(), *self.workspace.wakeups()})
        open_pages = self.each(lambda run: self._open(run, now), live)
        return [*self._ended(live), *open_pages]

    def _ended(self, live: Sequence[str]) -> list[LedgerPage]:
        records, _ = self.index.newest(but=live)
        known = {record.run for record in records} | set(live)
        records += [record for record in self.deleted.records() if record.run not in known]
        self.damaged.update({run: problem.message for run, problem in self.index.unread.items()})
        return [self._closed.get(record.run) or self._close(record.run, record.state) for record in records]

    def _close(self, run: str, state: RunState) -> LedgerPage:
        if not state.closed:
            return _page_of(run, state, self.workspace.clock())
        self._closed[run] = _page_of(run, state, state.ended_at)
        return self._closed[run]

    def machines(self) -> list[LedgerPage]:
        """Return the pages of deleted machines that no run owned."""
        keys = self._keys(_MACHINES)
        self._read([key for key in keys if key not in self._pages])
        return [self._pages[key] for key in keys if key in self._pages]

    def _keys(self, prefix: str) -> list[str]:
        return [prefix + child for child in self.bucket.children(prefix) if child.endswith(".json")]

    def _read(self, keys: Sequence[str]) -> None:
        def read(key: str) -> LedgerPage | None:
            try:
                return decoded(self.bucket.get(key), LedgerPage, key)
            except StoreUnreachable:
                raise  # temporary: a sum without this page would be too low
            except WorkspaceError as problem:
                self.damaged[key] = problem.message
                return None

        for key, page in zip(keys, self.each(read, keys), strict=True):
            if page is not None:
                self._pages[key] = page

    def _open(self, run: str, now: float) -> LedgerPage:
        try:
            state = self.workspace.story(run).refresh()
        except StoreUnreachable:
            raise
        except WorkspaceError as problem:
            self.damaged[run] = problem.message
            return LedgerPage(name=run)
        return _page_of(run, state, state.ended_at if state.closed else now)


def _page_of(run: str, state: RunState, now: float) -> LedgerPage:
    return LedgerPage(name=run, who=state.who, lines=tuple(lines_of(run, state, now)))


def resource_line(record: ResourceRecord, now: float) -> LedgerLine:
    """Return the cost of a volume or database so far, by its price: no cloud reports the cost of a single one."""
    cost = record.cost_usd(now)
    return LedgerLine(
        kind=record.kind,
        name=record.name,
        who=record.who,
        cloud=record.cloud,
        zone=record.zone,
        type=record.engine or f"{record.size_gb:g} GB",
        machine=record.there,
        spot=False,
        begin=record.asked_at,
        end=record.gone_at or now,
        cost_usd=cost,
        on_demand_usd=cost,
        causes={"store": cost},
        estimated=not record.gone_at,
    )


def resource_lines(workspace: Workspace, now: float, damaged: dict[str, str] | None = None) -> list[LedgerLine]:
    """Return a line for every volume and database with a price. Unreadable records are added to `damaged`."""
    found = all_resources(workspace, damaged)
    return [resource_line(one, now) for one in found if one.usd_per_month or one.extra_usd]
