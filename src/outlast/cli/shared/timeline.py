"""The timeline of a run in the terminal: its attempts over time, and the figures below them."""

from __future__ import annotations

import itertools
import shutil
from typing import TYPE_CHECKING

import click

from outlast.cli.shared.sanitize import one_line
from outlast.cli.shared.terminal import money
from outlast.formatting.run_summary import end_of, kept_until, summarize
from outlast.spec.quantity import describe_s

if TYPE_CHECKING:
    from outlast.app.types import Attempt, RunState

# Each phase has a different character: colour never carries meaning alone.
_BOOT, _WORK, _LOST, _LEAVE = "·", "█", "░", "▒"
_END = {"finished": "✓", "preempted": "✗", "lost": "✗", "crashed": "!", "killed": "!", "hung": "!", "broken": "!"}
_COLOURS = {_WORK: "green", _LOST: "red", _LEAVE: "yellow"}


def timeline(state: RunState, now: float, *, width: int = 0) -> str:
    """Draw one line per attempt: zone, boot, work, lost work, and its outcome."""
    shown = [a for a in state.attempts if a.outcome != "refused"]
    if not shown:
        return ""
    labels = [f"{a.number:>3} {one_line(a.zone)}" for a in shown]
    margin = max(len(label) for label in labels) + 1
    columns = width or max(40, min(100, shutil.get_terminal_size().columns))
    cells = columns - margin - 4
    start, end = state.submitted_at, state.ended_at or now
    scale = cells / max(end - start, 0.001)
    lines = []
    for label, attempt in zip(labels, shown, strict=True):
        bar = _bar(attempt, state, start, scale, cells, now)
        mark = _END.get(attempt.outcome, "✗" if attempt.outcome == "fenced" and attempt.preempted else "")
        lines.append(f"{label.ljust(margin)}{bar} {mark}".rstrip())
    axis = " " * margin + "0" + describe_s(end - start).rjust(cells - 1)
    return "\n".join([*lines, click.style(axis, dim=True)])


def _bar(attempt: Attempt, state: RunState, start: float, scale: float, cells: int, now: float) -> str:
    over = end_of(attempt, state, now)
    spans = [
        (attempt.placed_at, attempt.started_at or over, _BOOT),
        (attempt.started_at, kept_until(attempt, state, now), _WORK),
        (kept_until(attempt, state, now), over, _LOST),
        (attempt.noticed_at, over, _LEAVE),
    ]
    row = [" "] * cells
    for begin, finish, sign in spans:
        if not begin or finish <= begin:
            continue
        first = min(cells - 1, max(0, int((begin - start) * scale)))
        least = 0 if sign == _LOST else 1  # a little lost work must not fill a whole cell
        last = min(cells, max(first + least, int((finish - start) * scale)))
        row[first:last] = sign * (last - first)
    return "".join(click.style("".join(same), fg=_COLOURS.get(sign)) for sign, same in itertools.groupby(row))


def legend() -> str:
    signs = [(_BOOT, "boot"), (_WORK, "work kept"), (_LOST, "work lost"), (_LEAVE, "leaving after a notice")]
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
