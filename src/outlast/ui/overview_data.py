"""What is around the runs: machines of all clouds, what the supervisor would do, what may be spent and was. Reads."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from outlast.app.dry_run import read_only_observer
from outlast.billing.ledger import LedgerLine, after, total
from outlast.billing.ledger_store import LedgerPage, LedgerStore, resource_lines
from outlast.billing.limit_usage import LimitUsage, measured
from outlast.billing.limits import begin_of, read_limits
from outlast.clouds.registry import interactive_clouds
from outlast.errors import OutlastError, StoreUnreachable, WorkspaceError
from outlast.machines.billing import open_lines
from outlast.machines.status import MachineStatus as MachineSight
from outlast.machines.status import collect_status
from outlast.records.machines import MachineRecords
from outlast.store.lease import supervisors
from outlast.supervisor.plan import plan
from outlast.supervisor.world import Step, Wait, describe
from outlast.workspace import Workspace


class MachineRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    cloud: str
    zone: str
    type: str
    status: str
    whose: str
    spot: bool
    usd_per_hour: float
    cost_usd: float
    # It is stopped, and its disk is paid for all the same.
    idle: bool
    created_at: float


class PlannedStep(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    run: str
    text: str


class OverviewData(msgspec.Struct, frozen=True, kw_only=True):
    """All of it at one moment."""

    read_at: float = 0.0
    machines: tuple[MachineRow, ...] = ()
    # Clouds that did not answer, and why.
    unreachable: dict[str, str] = {}
    steps: tuple[PlannedStep, ...] = ()
    supervisor: str = ""
    today_usd: float = 0.0
    month_usd: float = 0.0
    limits: tuple[LimitUsage, ...] = ()
    # What could not be read, in a sentence each.
    problems: tuple[str, ...] = ()


class Around:
    """The memory of one reader between its looks."""

    def __init__(self, workspace: Workspace, pages: Callable[[float], list[LedgerPage]]) -> None:
        self.workspace = workspace
        self.pages = pages
        self.machine_records = MachineRecords(workspace)
        self.ledger = LedgerStore(workspace)
        self.observer = read_only_observer(workspace)
        self.far = False

    def look(self) -> OverviewData:
        """One look. Raises StoreUnreachable; what else cannot be read is told in `problems`."""
        now = time.time()
        problems: list[str] = []
        known = interactive_clouds(self.workspace)
        self.far = len(known) > 1
        sights, unreachable = collect_status(known, self.machine_records, with_drift=False)
        steps = self._steps(now, problems)
        lines = self.lines(now)
        today = begin_of("day", now)
        month = begin_of("month", now)
        return OverviewData(
            read_at=now,
            machines=tuple(_machine(sight) for sight in sights if sight.machine is not None),
            unreachable=unreachable,
            steps=tuple(_planned(step) for step in steps),
            supervisor=self._supervisor(),
            today_usd=_since(lines, today),
            month_usd=_since(lines, month),
            limits=self._limits(now, problems),
            problems=tuple(problems),
        )

    def lines(self, now: float) -> list[LedgerLine]:
        """Every line of the books, as `outlast cost` has them."""
        known = [piece for page in self._pages(now) for piece in page.lines]
        there, _ = (
            open_lines(interactive_clouds(self.workspace), self.machine_records)
            if self.machine_records.names()
            else ([], {})
        )
        stores = resource_lines(self.workspace, now)
        return known + there + stores

    def _pages(self, now: float) -> list[LedgerPage]:
        """The index's pages and machines', and those of runs that are not in the index."""
        closed = self.ledger.closed()
        names = {page.name for page in closed}
        return [*closed, *(page for page in self.pages(now) if page.name not in names)]

    def _steps(self, now: float, problems: list[str]) -> tuple[Step, ...]:
        try:
            world = self.observer.observe(now)
        except StoreUnreachable:
            raise
        except OutlastError as problem:
            problems.append(problem.message)
            return ()
        return tuple(step for step in plan(world) if not (isinstance(step, Wait) and _said(step, self.observer.state)))

    def _limits(self, now: float, problems: list[str]) -> tuple[LimitUsage, ...]:
        try:
            found = read_limits(self.workspace.bucket)
        except StoreUnreachable:
            raise
        except WorkspaceError as problem:
            problems.append(f"limits: {problem.message}")
            return ()
        return tuple(measured(found, self._pages(now), now)) if found else ()

    def _supervisor(self) -> str:
        try:
            holder = supervisors(self.workspace.bucket, self.workspace.url).holder()
        except WorkspaceError:
            return ""  # the age of a lease is asked by writing, and who may only read may look all the same
        return holder.who if holder is not None else "nobody"


def _said(step: Wait, state: Callable[[str], object]) -> bool:
    """A hold that the story tells of already is no news: the run's row says why it waits."""
    return getattr(state(step.run), "held", "") == step.why


def _planned(step: Step) -> PlannedStep:
    return PlannedStep(kind=type(step).__name__.lower(), run=getattr(step, "run", ""), text=describe(step))


def _since(lines: list[LedgerLine], begin: float) -> float:
    return total(piece for one in lines if (piece := after(one, begin)) is not None).cost_usd


def _machine(sight: MachineSight) -> MachineRow:
    machine = sight.machine
    assert machine is not None
    return MachineRow(
        name=sight.name,
        cloud=sight.cloud,
        zone=machine.zone,
        type=machine.type,
        status=sight.status,
        whose=sight.whose,
        spot=machine.spot,
        usd_per_hour=sight.usd_per_hour,
        cost_usd=sight.cost_usd,
        idle=sight.bills_for_nothing,
        created_at=machine.created_at,
    )
