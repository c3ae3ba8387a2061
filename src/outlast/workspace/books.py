"""The ledger as it is kept: a closed page a run or a machine that is over, and the open ones read from their stories.

A page is written once, when nothing of its run can cost any more; runs that ended before there were pages get theirs
from whoever reads them first. So a thousand ended runs are a thousand small objects, and no story is read twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from outlast.errors import Exists, WorkspaceError
from outlast.workspace.codec import decoded
from outlast.workspace.each import Each, in_parallel
from outlast.workspace.hand import Hand
from outlast.workspace.ledger import Billed, Line, hand_line, lines_of
from outlast.workspace.state import RunState
from outlast.workspace.workspace import Workspace

_RUNS, _MACHINES = "ledger/runs/", "ledger/machines/"


class Page(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one run or machine has cost, for good."""

    name: str
    who: str = ""
    lines: tuple[Line, ...] = ()


class Books:
    """The books of one workspace. Pages never change, so each is read once."""

    def __init__(self, workspace: Workspace, *, each: Each = in_parallel) -> None:
        self.workspace = workspace
        self.bucket = workspace.bucket
        self.each = each
        self._pages: dict[str, Page] = {}
        # Runs whose story cannot be read, and why: what they cost is not known.
        self.damaged: dict[str, str] = {}

    def close_run(self, run: str, state: RunState) -> Page:
        """Write the page of a run that is over and settled. Repeating it is fine."""
        page = Page(name=run, who=state.who, lines=tuple(lines_of(run, state, state.ended_at)))
        # The story tells it, too, should a power cut lose the page.
        self._write(_RUNS + f"{run}.json", page, durable=False)
        return page

    def close_machine(self, hand: Hand, machine: Billed, *, on_demand_usd_per_hour: float = 0.0) -> None:
        """Write the page of a machine made by hand, before it is deleted: afterwards nobody knows what it cost."""
        dear, extra = on_demand_usd_per_hour, hand.extra_usd
        line = hand_line(machine, who=hand.who, extra_usd=extra, on_demand_usd_per_hour=dear, over=True)
        page = Page(name=hand.name, who=hand.who, lines=(line,))
        self._write(_MACHINES + f"{hand.name}-{hand.id}.json", page, durable=True)

    def _write(self, key: str, page: Page, *, durable: bool) -> None:
        try:
            self.bucket.create(key, msgspec.json.encode(page), durable=durable)
        except Exists:
            pass  # it was closed before, with the same sums

    def closed(self) -> list[Page]:
        """Every page there is; one listing, and the new ones."""
        keys = [*self._keys(_RUNS), *self._keys(_MACHINES)]
        self._read([key for key in keys if key not in self._pages])
        return [self._pages[key] for key in keys if key in self._pages]

    def run(self, run: str, now: float) -> Page:
        """One run's page, closed or not."""
        return self._open(run, now)

    def runs(self, now: float) -> list[Page]:
        """A page for every run there ever was."""
        keys = {run: _RUNS + f"{run}.json" for run in self.workspace.runs()}
        known = set(self._keys(_RUNS))
        self._read([key for key in keys.values() if key in known and key not in self._pages])
        rest = [run for run, key in keys.items() if key not in self._pages]
        pages = dict(zip(rest, self.each(lambda run: self._open(run, now), rest), strict=True))
        return [self._pages.get(key) or pages[run] for run, key in keys.items()]

    def machines(self) -> list[Page]:
        """The pages of machines by hand that are gone."""
        keys = self._keys(_MACHINES)
        self._read([key for key in keys if key not in self._pages])
        return [self._pages[key] for key in keys if key in self._pages]

    def _keys(self, prefix: str) -> list[str]:
        return [prefix + child for child in self.bucket.children(prefix) if child.endswith(".json")]

    def _read(self, keys: Sequence[str]) -> None:
        def read(key: str) -> Page | None:
            try:
                return decoded(self.bucket.get(key), Page, key)
            except WorkspaceError as problem:
                self.damaged[key] = problem.message
                return None

        for key, page in zip(keys, self.each(read, keys), strict=True):
            if page is not None:
                self._pages[key] = page

    def _open(self, run: str, now: float) -> Page:
        try:
            state = self.workspace.story(run).refresh()
        except WorkspaceError as problem:
            self.damaged[run] = problem.message
            return Page(name=run)
        if state.settled:
            try:
                return self.close_run(run, state)
            except WorkspaceError:
                pass  # who may only read reads the story again the next time
        return Page(name=run, who=state.who, lines=tuple(lines_of(run, state, now)))
