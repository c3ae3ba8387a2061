"""Runs as rows of the overview. A row does not change with time alone, so that only real changes are sent."""

from __future__ import annotations

import msgspec

from outlast.errors import OutlastError
from outlast.formatting.run_row import DAMAGED, UNREADABLE, metrics_of, newest_step, spent_usd, status_text, unread, why
from outlast.runs.ended import EndedRun
from outlast.runs.events import MetricRange
from outlast.runs.state import RunState
from outlast.spec.spec import ParamValue, Spec
from outlast.ui.format import TONES
from outlast.workspace import Heartbeat


class RunTableRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Its cost is `spent_usd` at `spent_at`, and `usd_per_hour` from then on."""

    run: str
    state: str
    # Of a group, sweep, drill or machine: what it is, and its key; empty for a run.
    kind: str = ""
    key: str = ""
    # The key of the row that this one is folded into, and the number of rows that are folded into this one.
    part_of: str = ""
    members: int = 0
    nodes: int = 1
    tone: str = "bad"
    alive: bool = False
    user: str = ""
    # Attempts that had a machine: refusals do not count.
    attempts: int = 0
    where: str = ""
    type: str = ""
    cloud: str = ""
    spot: bool = True
    price: float = 0.0
    step: int | None = None
    steps: int = 0
    checkpoints: int = 0
    preemptions: int = 0
    submitted_at: float = 0.0
    ended_at: float = 0.0
    spent_usd: float = 0.0
    spent_at: float = 0.0
    usd_per_hour: float = 0.0
    why: str = ""
    tags: tuple[str, ...] = ()
    params: dict[str, ParamValue] = {}
    # Metric → its last, lowest and highest value.
    metrics: dict[str, MetricRange] = {}

    @property
    def id(self) -> str:
        return self.key or self.run

    @property
    def unread(self) -> bool:
        """Whether this row stands for a story that could not be read."""
        return self.state in (DAMAGED, UNREADABLE)


def _agent_remark(heartbeat: Heartbeat | None) -> str:
    """Return the agent's remark, if there is one."""
    if heartbeat is None:
        return ""
    if heartbeat.unsaved:
        return f"no checkpoint: {heartbeat.unsaved}"
    return f"holds {heartbeat.holds}" if heartbeat.holds else ""


def row_of(run: str, state: RunState, heartbeat: Heartbeat | None, spec: Spec | None) -> RunTableRow:
    # An attempt that the cloud refused had no machine, and does not count.
    tried = [attempt for attempt in state.attempts if attempt.outcome != "refused"]
    last = tried[-1] if tried else None
    billing = [attempt for attempt in state.attempts if not attempt.released]
    since = max((attempt.placed_at for attempt in billing), default=0.0)
    status = status_text(state)
    note = heartbeat.note if heartbeat and heartbeat.phase in ("fetching", "waiting") else ""
    return RunTableRow(
        run=run,
        state=status,
        tone=TONES.get(status, "off"),
        alive=state.alive,
        user=state.who,
        part_of=f"group:{spec.member.group}" if spec and spec.member and spec.member.group else "",
        nodes=last.nodes if last else 1,
        attempts=len(tried),
        where=last.zone if last else "",
        type=last.type if last else "",
        cloud=last.cloud if last else "",
        spot=last.spot if last else True,
        price=last.price_usd_per_hour if last and last.phase != "over" else 0.0,
        step=newest_step(state, heartbeat),
        steps=spec.limits.steps if spec else 0,
        checkpoints=len(state.checkpoints),
        preemptions=sum(attempt.preempted for attempt in state.attempts),
        submitted_at=state.submitted_at,
        ended_at=state.ended_at,
        spent_usd=spent_usd(state, since),
        spent_at=since,
        usd_per_hour=sum(attempt.price_usd_per_hour for attempt in billing),
        why=why(state) or note or _agent_remark(heartbeat),
        params=spec.params if spec else {},
        metrics=metrics_of(state, heartbeat),
    )


def unread_row(run: str, problem: OutlastError) -> RunTableRow:
    """Return the row of a run whose story is damaged or cannot be read now."""
    return RunTableRow(run=run, state=unread(problem), tone=TONES[unread(problem)], why=problem.message)


def ended_row_of(record: EndedRun) -> RunTableRow:
    """Return the row of a run from the index."""
    row = row_of(record.run, record.state, None, None)
    return msgspec.structs.replace(
        row,
        steps=record.steps,
        checkpoints=record.checkpoints,
        params=record.params,
        part_of=f"group:{record.group}" if record.group else "",
    )
