"""What is around the runs: machines of all clouds, what the supervisor would do, what may be spent and was. Reads."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from outlast.errors import OutlastError, StoreUnreachable, WorkspaceError
from outlast.front.clouds import workshops
from outlast.front.look import onlooker
from outlast.machines.bill import open_lines
from outlast.machines.look import Sight as MachineSight
from outlast.machines.look import see_all
from outlast.supervisor.plan import plan
from outlast.supervisor.world import Hold, Step, describe
from outlast.workspace.books import Books, Page
from outlast.workspace.hand import Hands
from outlast.workspace.holdings import bills, line
from outlast.workspace.lease import supervisors
from outlast.workspace.ledger import Line, after, total
from outlast.workspace.limits import begin_of, read_limits
from outlast.workspace.standing import Standing, measured
from outlast.workspace.workspace import Workspace


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


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """All of it at one moment."""

    read_at: float = 0.0
    machines: tuple[MachineRow, ...] = ()
    # Clouds that did not answer, and why.
    blind: dict[str, str] = {}
    steps: tuple[PlannedStep, ...] = ()
    supervisor: str = ""
    today_usd: float = 0.0
    month_usd: float = 0.0
    limits: tuple[Standing, ...] = ()
    # What could not be read, in a sentence each.
    problems: tuple[str, ...] = ()


class Around:
    """The memory of one reader between its looks."""

    def __init__(self, workspace: Workspace, pages: Callable[[float], list[Page]]) -> None:
        self.workspace = workspace
        self.pages = pages
        self.hands = Hands(workspace)
        self.books = Books(workspace)
        self.observer = onlooker(workspace)
        self.far = False

    def look(self) -> Surroundings:
        """One look. Raises StoreUnreachable; what else cannot be read is told in `problems`."""
        now = time.time()
        problems: list[str] = []
        known = workshops(self.workspace)
        self.far = len(known) > 1
        sights, blind = see_all(known, self.hands, with_drift=False)
        steps = self._steps(now, problems)
        lines = self.lines(now)
        today = begin_of("day", now)
        month = begin_of("month", now)
        return Surroundings(
            read_at=now,
            machines=tuple(_machine(sight) for sight in sights if sight.machine is not None),
            blind=blind,
            steps=tuple(_planned(step) for step in steps),
            supervisor=self._supervisor(),
            today_usd=_since(lines, today),
            month_usd=_since(lines, month),
            limits=self._limits(now, problems),
            problems=tuple(problems),
        )

    def lines(self, now: float) -> list[Line]:
        """Every line of the books, as `outlast cost` has them."""
        known = [piece for page in [*self.pages(now), *self.books.machines()] for piece in page.lines]
        there, _ = open_lines(workshops(self.workspace), self.hands) if self.hands.any() else ([], {})
        stores = [line(one, now) for one in bills(self.workspace) if one.usd_per_month or one.extra_usd]
        return known + there + stores

    def _steps(self, now: float, problems: list[str]) -> tuple[Step, ...]:
        try:
            world = self.observer.observe(now)
        except StoreUnreachable:
            raise
        except OutlastError as problem:
            problems.append(problem.message)
            return ()
        return tuple(step for step in plan(world) if not (isinstance(step, Hold) and _said(step, self.observer.state)))

    def _limits(self, now: float, problems: list[str]) -> tuple[Standing, ...]:
        try:
            found = read_limits(self.workspace.bucket)
        except StoreUnreachable:
            raise
        except WorkspaceError as problem:
            problems.append(f"limits: {problem.message}")
            return ()
        return tuple(measured(found, [*self.pages(now), *self.books.machines()], now)) if found else ()

    def _supervisor(self) -> str:
        try:
            holder = supervisors(self.workspace.bucket, self.workspace.url).holder()
        except WorkspaceError:
            return ""  # the age of a lease is asked by writing, and who may only read may look all the same
        return holder.who if holder is not None else "nobody"


def _said(step: Hold, state: Callable[[str], object]) -> bool:
    """A hold that the story tells of already is no news: the run's row says why it waits."""
    return getattr(state(step.run), "held", "") == step.why


def _planned(step: Step) -> PlannedStep:
    return PlannedStep(kind=type(step).__name__.lower(), run=getattr(step, "run", ""), text=describe(step))


def _since(lines: list[Line], begin: float) -> float:
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
