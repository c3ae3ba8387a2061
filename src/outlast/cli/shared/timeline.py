"""The timeline of a run in the terminal: its attempts over time, and the figures below them."""

from __future__ import annotations

import itertools
import shutil
from typing import TYPE_CHECKING, NamedTuple

import click

from outlast.cli.shared.sanitize import one_line
from outlast.cli.shared.terminal import money
from outlast.formatting.run_summary import end_of, kept_until, summarize
from outlast.spec.quantity import describe_s

if TYPE_CHECKING:
    from outlast.app.types import Attempt, RunState

# Each phase has a different character: colour never carries meaning alone.
_BOOT, _WORK, _LOST, _LEAVE, _WAIT = "·", "█", "░", "▒", "-"
_END = {"finished": "✓", "preempted": "✗", "lost": "✗", "crashed": "!", "killed": "!", "hung": "!", "broken": "!"}
# Of a distributed run at most so many machines have a line of their own.
_NODES_MAX = 32
_COLOURS = {_WORK: "green", _LOST: "red", _LEAVE: "yellow"}


def timeline(state: RunState, now: float, *, width: int = 0) -> str:
    """Draw one line per attempt: zone, boot, work, lost work, outcome; and one per node of a distributed run."""
    shown = [a for a in state.attempts if a.outcome != "refused"]
    if not shown:
        return ""
    most = max(attempt.nodes for attempt in shown)
    nodes = range(min(most, _NODES_MAX) if most > 1 else 0)
    labels = [f"{a.number:>3} {one_line(a.zone)}" for a in shown]
    margin = max(len(label) for label in (*labels, *(f"node {rank}" for rank in nodes))) + 1
    columns = width or max(40, min(100, shutil.get_terminal_size().columns))
    cells = columns - margin - 4
    start, end = state.submitted_at, state.ended_at or now
    scale = _Scale(start=start, cells=cells, per_s=cells / max(end - start, 0.001))
    lines = []
    for label, attempt in zip(labels, shown, strict=True):
        bar = _drawn(_spans(attempt, state, now), scale)
        mark = _END.get(attempt.outcome, "✗" if attempt.outcome == "fenced" and attempt.preempted else "")
        lines.append(f"{label.ljust(margin)}{bar} {mark}".rstrip())
    lines += [f"{f'node {rank}'.ljust(margin)}{_drawn(_node_spans(shown, rank, state, now), scale)}" for rank in nodes]
    if most > _NODES_MAX:
        lines.append(f"… and {most - _NODES_MAX} more nodes")
    axis = " " * margin + "0" + describe_s(end - start).rjust(cells - 1)
    return "\n".join([*(line.rstrip() for line in lines), click.style(axis, dim=True)])


class _Scale(NamedTuple):
    start: float
    cells: int
    per_s: float


class _Span(NamedTuple):
    begin: float
    finish: float
    sign: str


def _spans(attempt: Attempt, state: RunState, now: float) -> list[_Span]:
    over = end_of(attempt, state, now)
    return [
        _Span(attempt.placed_at, attempt.started_at or over, _BOOT),
        _Span(attempt.started_at, kept_until(attempt, state, now), _WORK),
        _Span(kept_until(attempt, state, now), over, _LOST),
        _Span(attempt.noticed_at, over, _LEAVE),
    ]


def _node_spans(attempts: list[Attempt], rank: int, state: RunState, now: float) -> list[_Span]:
    """Return what one node did: it boots if its machine is new, else it waits for the others; and where it was lost."""
    found: list[_Span] = []
    lost: list[_Span] = []
    machine, before = "", 0.0
    for attempt in attempts:
        if rank >= attempt.nodes:
            continue
        boot, *rest = _spans(attempt, state, now)
        if attempt.machines[rank] == machine:
            boot = _Span(max(boot.begin, before), boot.finish, _WAIT)
        found += [boot, *rest]
        machine, before = attempt.machines[rank], end_of(attempt, state, now)
        if rank in attempt.gone:
            lost_at = min(attempt.noticed_at or before, before)
            lost.append(_Span(lost_at, lost_at + 1e-6, _END["lost"]))
    return found + lost


def _drawn(spans: list[_Span], scale: _Scale) -> str:
    row = [" "] * scale.cells
    for begin, finish, sign in spans:
        if not begin or finish <= begin:
            continue
        first = min(scale.cells - 1, max(0, int((begin - scale.start) * scale.per_s)))
        least = 0 if sign == _LOST else 1  # a little lost work must not fill a whole cell
        last = min(scale.cells, max(first + least, int((finish - scale.start) * scale.per_s)))
        row[first:last] = sign * (last - first)
    return "".join(click.style("".join(same), fg=_COLOURS.get(sign)) for sign, same in itertools.groupby(row))


def legend(state: RunState) -> str:
    signs = [(_BOOT, "boot"), (_WORK, "work kept"), (_LOST, "work lost"), (_LEAVE, "leaving after a notice")]
    if any(attempt.nodes > 1 for attempt in state.attempts):
        signs.append((_WAIT, "waiting for the other nodes"))
    ends = [("✓", "finished"), ("✗", "preempted or lost"), ("!", "crashed")]
    return click.style("  ".join(f"{sign} {meaning}" for sign, meaning in [*signs, *ends]), dim=True)


def sums(state: RunState, now: float) -> str:
    """Return the figures below the timeline."""
    total = summarize(state, now)
    lines = [
        f"attempts        {len(state.attempts)} ({total.preemptions} preempted, {total.crashes} crashed)",
        f"work lost       {describe_s(total.lost_s)} of {describe_s(total.work_s + total.lost_s)}",
    ]
    if total.recoveries_s:
        each = ", ".join(describe_s(s) for s in total.recoveries_s[:6])
        lines.append(f"time to recover {each}" + (" …" if len(total.recoveries_s) > 6 else ""))
    saving = 1 - total.cost_usd / total.on_demand_usd if total.on_demand_usd else 0.0
    if total.machine_s:
        cost = f"{'~' if total.estimated else ''}{money(total.cost_usd)}"
        later = "; a machine is not deleted yet" if total.estimated else ""
        lines.append(
            f"cost            {cost} against {money(total.on_demand_usd)} on demand ({saving:.0%} less){later}"
        )
    return "\n".join(lines)
