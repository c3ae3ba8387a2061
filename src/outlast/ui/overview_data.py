"""The data of the overview besides runs: machines, planned steps, spending and limits. Only reads."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from outlast.app.dry_run import read_only_observer
from outlast.app.limit_usage import LimitUsage, usages_in
from outlast.billing.ledger import LedgerLine, after, total
from outlast.billing.ledger_store import LedgerPage, LedgerStore, resource_lines
from outlast.billing.limits import begin_of
from outlast.clouds.registry import interactive_clouds
from outlast.errors import OutlastError, StoreUnreachable, WorkspaceError
from outlast.machines.billing import open_lines
from outlast.machines.status import MachineStatus, collect_status
from outlast.records.machines import MachineRecords
from outlast.store.lease import supervisors
from outlast.supervisor.plan import plan
from outlast.supervisor.world import Step, Wait, World, describe
from outlast.workspace import Workspace


class MachineTableRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    cloud: str
    zone: str
    type: str
    status: str
    whose: str
    spot: bool
    usd_per_hour: float
    cost_usd: float
    # Stopped, but its disk is still billed.
    idle: bool
    created_at: float


class PlannedStep(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    run: str
    text: str


class OverviewData(msgspec.Struct, frozen=True, kw_only=True):
    """The data of the overview at one moment."""

    read_at: float = 0.0
    machines: tuple[MachineTableRow, ...] = ()
    # Cloud → why it did not answer.
    unreachable: dict[str, str] = {}
    steps: tuple[PlannedStep, ...] = ()
    supervisor: str = ""
    today_usd: float = 0.0
    month_usd: float = 0.0
    limits: tuple[LimitUsage, ...] = ()
    # One message for each part that could not be read.
    problems: tuple[str, ...] = ()


class OverviewReader:
    """The reader of the overview, with its state between reads."""

    def __init__(self, workspace: Workspace, pages: Callable[[float], list[LedgerPage]]) -> None:
        self.workspace = workspace
        self.pages = pages
        self.machine_records = MachineRecords(workspace)
        self.ledger = LedgerStore(workspace)
        self.observer = read_only_observer(workspace)
        self.remote = False

    def read(self) -> OverviewData:
        """Read everything once. Raises StoreUnreachable; other errors go to `problems`."""
        now = time.time()
        problems: list[str] = []
        known = interactive_clouds(self.workspace)
        self.remote = len(known) > 1
        statuses, unreachable = collect_status(known, self.machine_records, with_drift=False)
        world = self._observe(now, problems)
        lines = self.lines(now)
        today = begin_of("day", now)
        month = begin_of("month", now)
        return OverviewData(
            read_at=now,
            machines=tuple(_machine(status) for status in statuses if status.machine is not None),
            unreachable=unreachable,
            steps=tuple(_planned(step) for step in self._steps(world)),
            supervisor=self._supervisor(),
            today_usd=_since(lines, today),
            month_usd=_since(lines, month),
            limits=tuple(usages_in(world)) if world is not None else (),
            problems=tuple(problems),
        )

    def lines(self, now: float) -> list[LedgerLine]:
        """Return all lines of the ledger, as in `outlast cost`."""
        known = [piece for page in self._pages(now) for piece in page.lines]
        there, _ = (
            open_lines(interactive_clouds(self.workspace), self.machine_records)
            if self.machine_records.names()
            else ([], {})
        )
        stores = resource_lines(self.workspace, now)
        return known + there + stores

    def _pages(self, now: float) -> list[LedgerPage]:
        """Return the ledger pages of the index, of machines, and of runs that are not in the index."""
        closed = self.ledger.closed()
        names = {page.name for page in closed}
        return [*closed, *(page for page in self.pages(now) if page.name not in names)]

    def _observe(self, now: float, problems: list[str]) -> World | None:
        try:
            return self.observer.observe(now)
        except StoreUnreachable:
            raise
        except OutlastError as problem:
            problems.append(problem.message)
            return None

    def _steps(self, world: World | None) -> tuple[Step, ...]:
        return tuple(
            step
            for step in (plan(world) if world is not None else ())
            if not (isinstance(step, Wait) and _is_reported(step, self.observer.state))
        )

    def _supervisor(self) -> str:
        try:
            holder = supervisors(self.workspace.bucket, self.workspace.url).holder()
        except WorkspaceError:
            return ""  # checking a lease requires a write, but users with read access may use the dashboard
        return holder.who if holder is not None else "none"


def _is_reported(step: Wait, state: Callable[[str], object]) -> bool:
    """Return whether the story already has this reason: the run's row shows it."""
    return getattr(state(step.run), "waiting", "") == step.why


def _planned(step: Step) -> PlannedStep:
    return PlannedStep(kind=type(step).__name__.lower(), run=getattr(step, "run", ""), text=describe(step))


def _since(lines: list[LedgerLine], begin: float) -> float:
    return total(piece for one in lines if (piece := after(one, begin)) is not None).cost_usd


def _machine(status: MachineStatus) -> MachineTableRow:
    machine = status.machine
    assert machine is not None
    return MachineTableRow(
        name=status.name,
        cloud=status.cloud,
        zone=machine.zone,
        type=machine.type,
        status=status.status,
        whose=status.whose,
        spot=machine.spot,
        usd_per_hour=status.usd_per_hour,
        cost_usd=status.cost_usd,
        idle=status.billed_while_stopped,
        created_at=machine.created_at,
    )
