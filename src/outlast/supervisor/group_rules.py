"""Rules between runs: order, failures and end within a group, and exclusive locks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from outlast.runs.state import Attempt
from outlast.supervisor.world import Fail, ReleaseMember, RunView, Wait, World

# A run that fails this long after the loss of a peer, or this long before the loss is observed, fails because of it.
_FOLLOWS_S, _OBSERVED_S = 120.0, 60.0
# A submitter writes all runs of a group within seconds; a group that is incomplete after this time stays so.
INCOMPLETE_S = 600.0


def member_release(view: RunView) -> ReleaseMember | None:
    """Return the end of a run that serves others, once all of those have ended."""
    member = view.spec.member
    if member is None or not member.until or not view.sealed:
        return None
    served = [s for s in view.siblings if s.task in member.until]
    if not served or any(not s.state.ending for s in served):
        return None
    return ReleaseMember(run=view.run, why=", ".join(f"{s.run} is {s.state.ending}" for s in served))


def waiting_reason(world: World, view: RunView) -> Wait | Fail | None:
    """Return why a run must wait for other runs before it gets a machine; None if it need not."""
    if view.spec.member is not None:
        found = _waits_for_group(world, view)
        if found is not None:
            return found
    holder = _holder(world, view)
    if holder is not None:
        return Wait(run=view.run, why=f"`{view.spec.exclusive}` is held by {holder}")
    return None


def peer_losses(world: World, view: RunView) -> Iterator[float]:
    """Yield when other runs of the group lost their machines: this run may have failed because of that."""
    for sibling in view.siblings:
        for attempt in sibling.state.attempts:
            if attempt.preempted or attempt.outcome == "lost":
                yield attempt.noticed_at or attempt.over_at or world.now
            elif attempt.phase == "started" and not world.is_silent(attempt.cloud, attempt.zone):
                machine = world.machines.get(attempt.machine)
                if machine is None or machine.status in ("stopped", "broken"):
                    yield world.now  # not in its story yet


def follows(attempt: Attempt, lost: Sequence[float]) -> bool:
    """Return whether an attempt ended right after the loss of a peer, or right before that was observed."""
    return any(-_OBSERVED_S <= attempt.over_at - at <= _FOLLOWS_S for at in lost if at >= attempt.started_at)


def _waits_for_group(world: World, view: RunView) -> Wait | Fail | None:
    member = view.spec.member
    assert member is not None
    if not view.sealed:
        if world.now - view.state.submitted_at < INCOMPLETE_S:
            return Wait(run=view.run, why=f"group {member.group} is still being submitted")
        return Fail(
            run=view.run,
            why=f"group {member.group} is incomplete: its submission was interrupted",
            hint="submit the group again",
        )
    for task in member.after:
        before = [s for s in view.siblings if s.task == task]
        if any(s.ready for s in before):
            continue
        failed = [s for s in before if s.state.ending in ("failed", "cancelled")]
        if before and len(failed) == len(before):
            return Fail(run=view.run, why=f"{failed[0].run} is {failed[0].state.ending}, and this run starts after it")
        return Wait(run=view.run, why=f"starts after `{task}`, which is not ready")
    if member.spare and any(s.waits and not s.spare for s in view.siblings if s.task == member.task):
        return Wait(run=view.run, why=f"starts when the minimum number of `{member.task}` runs have machines")
    return None


def _holder(world: World, view: RunView) -> str | None:
    """Return the run that holds the lock, or was submitted earlier; None if this run may take it."""
    if not view.spec.exclusive:
        return None
    rivals = [v for v in world.runs if v.spec.exclusive == view.spec.exclusive and v.state.alive and v.run != view.run]
    under_way = [v for v in rivals if any(a.phase != "over" for a in v.state.attempts)]
    if under_way:
        return under_way[0].run
    first = min([view, *rivals], key=lambda v: (v.state.submitted_at, v.run))
    return first.run if first.run != view.run else None
