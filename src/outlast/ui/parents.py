"""Groups, sweeps, drills and distributed runs as rows of the overview, above the rows of their parts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import msgspec

from outlast.drill.records import drills
from outlast.drill.records import read as read_drill
from outlast.errors import NoSuchRun, StoreUnreachable, WorkspaceError
from outlast.runs.state import RunState
from outlast.sweep.record import sweeps
from outlast.ui.format import TONES
from outlast.ui.views.runs import RunTableRow
from outlast.workspace import Workspace

_TRIAL = re.compile(r"(.+)-[tw]\d+")
# The state of a parent is the first of these that a part has; else that of most parts.
_URGENT = ("running", "handing over", "leaving", "stopping", "booting", "waiting", "damaged", "failed", "stopped")


def parent_key(kind: str, name: str) -> str:
    return f"{kind}:{name}"


class Parents:
    """The sweep or drill of a run, by its name. Groups are part of the spec."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._sweeps: frozenset[str] = frozenset()
        # The drilled run and the undisturbed one → the drill.
        self._drills: dict[str, str] = {}
        self._read: set[str] = set()
        # The result for each run; empty for none.
        self._known: dict[str, str] = {}

    def refresh(self) -> None:
        """List sweeps and drills, and read the reports of new drills."""
        found = frozenset(sweeps(self.workspace))
        fresh = [run for run in drills(self.workspace) if run not in self._read]
        for run in fresh:
            self._read.add(run)
            self._drills[run] = parent_key("drill", run)
            try:
                undisturbed = read_drill(self.workspace, run).report.undisturbed_run
            except StoreUnreachable:
                raise
            except (WorkspaceError, NoSuchRun):
                continue  # its page reports the problem
            if undisturbed:
                self._drills[undisturbed] = parent_key("drill", run)
        if fresh or found != self._sweeps:
            self._sweeps = found
            self._known.clear()

    def of(self, run: str) -> str:
        """Return the key of the run's sweep or drill; empty for none."""
        if run not in self._known:
            trial = _TRIAL.fullmatch(run)
            sweep = trial[1] if trial and trial[1] in self._sweeps else ""
            self._known[run] = parent_key("sweep", sweep) if sweep else self._drills.get(run, "")
        return self._known[run]


def parent_rows(rows: Iterable[RunTableRow]) -> dict[str, RunTableRow]:
    """Return a row for each parent of these rows."""
    parts: dict[str, list[RunTableRow]] = {}
    for row in rows:
        if row.part_of:
            parts.setdefault(row.part_of, []).append(row)
    return {key: _parent(key, found) for key, found in parts.items()}


def _parent(key: str, parts: list[RunTableRow]) -> RunTableRow:
    kind, _, name = key.partition(":")
    states = Counter(part.state for part in parts)
    state = next((one for one in _URGENT if states[one]), states.most_common(1)[0][0])
    alive = any(part.alive for part in parts)
    at = max(part.spent_at for part in parts)
    return RunTableRow(
        key=key,
        kind=kind,
        run=name,
        members=len(parts),
        state=state,
        tone=TONES.get(state, "off"),
        alive=alive,
        user=_common(part.user for part in parts),
        attempts=sum(part.attempts for part in parts),
        preemptions=sum(part.preemptions for part in parts),
        checkpoints=sum(part.checkpoints for part in parts),
        where=_common(part.where for part in parts),
        type=_common(part.type for part in parts),
        cloud=_common(part.cloud for part in parts),
        spot=all(part.spot for part in parts),
        price=sum(part.price for part in parts),
        step=sum(not part.alive for part in parts),
        steps=len(parts),
        submitted_at=min(part.submitted_at for part in parts),
        ended_at=0.0 if alive else max(part.ended_at for part in parts),
        spent_usd=sum(part.spent_usd + part.usd_per_hour * (at - part.spent_at) / 3600.0 for part in parts),
        spent_at=at,
        usd_per_hour=sum(part.usd_per_hour for part in parts),
        why=", ".join(f"{count} {one}" for one, count in states.most_common()),
    )


def _common(values: Iterable[str]) -> str:
    found = set(values)
    return found.pop() if len(found) == 1 else ""


def node_rows(run: str, state: RunState) -> dict[str, RunTableRow]:
    """Return a row for each machine of a live distributed run."""
    last = state.last
    if last is None or last.nodes == 1 or not state.alive or last.phase == "over":
        return {}
    found = {}
    for rank, machine in enumerate(last.machines):
        status = "lost" if rank in last.gone else {"placed": "booting", "noticed": "leaving"}.get(last.phase, "running")
        key = f"node:{run}:{rank}"
        found[key] = RunTableRow(
            key=key,
            kind="node",
            part_of=run,
            run=machine,
            state=status,
            tone=TONES.get(status, "bad"),
            alive=True,
            user=state.who,
            where=last.zone,
            type=last.type,
            cloud=last.cloud,
            spot=last.spot,
            price=last.price_usd_per_hour,
            submitted_at=last.placed_at,
            why=f"node {rank}",
        )
    return found


def with_parent(row: RunTableRow, key: str) -> RunTableRow:
    return row if row.part_of == key else msgspec.structs.replace(row, part_of=key)
