"""The machines of a distributed run: which of them the next attempt may keep, and when they may be deleted. Pure.

A machine may serve several attempts in a row, always with the same rank. The story decides: a machine that `Placed`
names belongs to that attempt, and `Retired` excludes the survivors of an attempt before they are deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from outlast.runs import events as ev

if TYPE_CHECKING:
    from outlast.runs.state import Attempt, RunState


def survivors(state: RunState) -> dict[int, str]:
    """Return the machines that the next attempt may keep, by rank.

    A refused attempt leaves none, unless the run can do with those that it kept: two runs that wait for each other's
    machines would never start.
    """
    last = state.last
    if not state.alive or last is None or last.nodes == 1 or last.retired or last.released:
        return {}
    if last.outcome in ("broken", "hung") or last.keep_s:
        return {}
    left = {rank: name for rank, name in enumerate(last.machines) if rank not in last.gone}
    if last.outcome != "refused":
        return left
    before = kept(state, last)
    left = {rank: name for rank, name in left.items() if name in before}
    return left if last.least and len(left) >= last.least else {}


def owned(state: RunState, attempt: Attempt) -> tuple[str, ...]:
    """Return the machines of an attempt that no later one keeps: they are released with it."""
    later = {name for other in state.attempts[attempt.number :] for name in other.machines}
    return tuple(name for name in attempt.machines if name not in later)


def kept(state: RunState, attempt: Attempt) -> frozenset[str]:
    """Return the machines of an attempt that an earlier one had."""
    if attempt.nodes == 1:
        return frozenset()
    before = {name for other in state.attempts[: attempt.number - 1] for name in other.machines}
    return frozenset(attempt.machines) & before


def releasable(state: RunState, attempt: Attempt) -> bool:
    """Return whether the machines that an attempt owns may be deleted."""
    if not state.alive:
        return True
    last = state.last
    if attempt.phase != "over" or (last is not None and attempt.number == last.number and survivors(state)):
        return False
    if attempt.nodes == 1:
        return True
    mine = set(owned(state, attempt))
    return not any(other.phase != "over" and mine & set(other.machines) for other in state.attempts)


def is_another_node(attempt: Attempt, event: ev.Noticed) -> bool:
    """Return whether a further machine of a noticed attempt receives its notice."""
    return attempt.phase == "noticed" and event.node < attempt.nodes and event.node not in attempt.gone


def why_members_illegal(state: RunState, event: ev.Placed) -> str:
    """Return why the machines of a new attempt are illegal; empty if they are legal."""
    if event.members and (event.members[0] != event.machine or len(set(event.members)) != len(event.members)):
        return "its members are inconsistent"
    used = {name for attempt in state.attempts for name in attempt.machines}
    left, last = survivors(state), state.last
    # With another number of machines, the ranks begin again from 0.
    renumbered = last is not None and last.nodes != len(event.members)
    for rank, name in enumerate(event.members):
        if name in used and left.get(rank) != name and not (renumbered and name in left.values()):
            return f"machine {name} cannot be kept"
    return ""


def also_gone(attempt: Attempt, ranks: Iterable[int]) -> tuple[int, ...]:
    """Return the ranks that the next attempt must replace, with these added."""
    return attempt.gone + tuple(rank for rank in ranks if attempt.nodes > 1 and rank not in attempt.gone)
