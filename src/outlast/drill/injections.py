"""The preemptions of a drill, and when each is due. Pure: `runner.py` observes the run and injects them."""

from __future__ import annotations

from typing import Literal

import msgspec

Moment = Literal[
    "before the first checkpoint", "before the start", "in the middle", "while saving", "right before the end"
]
Due = Literal["wait", "inject", "late"]

# The share of the work after which a preemption counts as right before the end.
END = 0.85
# A little work after the checkpoint, so that some can be lost.
_AFTER_SAVE_S = 0.3
# Enough work in the checkpoint that a fresh start is noticed: steps, or checkpoints.
_STEPS, _SAVES = 3, 3
# From the middle on, or if saves follow each other without a pause, do not wait for the moment after a save. Later, do
# not wait for a save at all: a program that never pauses may never be committed before its end.
_MIDDLE, _MIDDLE_AT_LAST, _MANY_SAVES = 0.5, 0.6, 4
# If the end is known, so much work is done first: the numbers of the first steps show no trend.
_QUARTER = 0.25
# A program that never saves is preempted after this share: each attempt starts over, so that all can be preempted.
_UNSAVED = 0.4


class Injection(msgspec.Struct, frozen=True, kw_only=True):
    """One planned preemption."""

    moment: Moment
    notice: bool
    # Of a distributed run: all its machines, not one of them.
    everywhere: bool = False

    def __str__(self) -> str:
        machines = ", all machines" if self.everywhere else ""
        return f"{self.moment}, {'with' if self.notice else 'without'} notice{machines}"


# The most informative first; a drill with few preemptions uses the first ones.
_BY_VALUE = (
    Injection(moment="in the middle", notice=True),
    Injection(moment="while saving", notice=False),
    Injection(moment="before the first checkpoint", notice=False),
    Injection(moment="right before the end", notice=True),
    Injection(moment="in the middle", notice=False),
    Injection(moment="while saving", notice=True),
)
# Of a distributed run: also all its machines, and one while others wait for it at the start.
_BY_VALUE_TOGETHER = (
    *_BY_VALUE[:2],
    Injection(moment="before the start", notice=False),
    Injection(moment="in the middle", notice=False, everywhere=True),
    *_BY_VALUE[2:],
    Injection(moment="in the middle", notice=True, everywhere=True),
)
_ORDER: tuple[Moment, ...] = (
    *("before the first checkpoint", "before the start", "in the middle", "while saving", "right before the end"),
)


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    """The observed state of the attempt to preempt."""

    # The time since its first step or checkpoint; None before. The clock starts then: a program may load for minutes.
    working_s: float | None
    # Committed checkpoints: of the run, and of this attempt; and the time since the last one.
    saves: int
    own_saves: int
    since_save_s: float
    # Steps that this attempt reported before that; None if it reports none.
    steps_saved: int | None
    # Files in the checkpoint folder are changing right now.
    writing: bool
    # The finished share of the work, where it is known; `sure` if an undisturbed run shows it. Else it may be that of a
    # bar which begins again in each epoch.
    progress: float | None = None
    sure: bool = False


def choose(preemptions: int, *, notice: bool = True, nodes: int = 1) -> tuple[Injection, ...]:
    """Choose that many preemptions, in the order of their moments. Those beyond the list come in the middle."""
    picked = list((_BY_VALUE_TOGETHER if nodes > 1 else _BY_VALUE)[:preemptions])
    picked += [Injection(moment="in the middle", notice=n % 2 == 0) for n in range(preemptions - len(picked))]
    ordered = sorted(picked, key=lambda injection: _ORDER.index(injection.moment))
    return tuple(msgspec.structs.replace(one, notice=one.notice and notice) for one in ordered)


def moment_timeout_s(wait_s: float, *, undisturbed_s: float, saves: int) -> float:
    """Return how long to wait for a moment, given an earlier run: a program that never saved will not save now."""
    return wait_s if saves else min(wait_s, _UNSAVED * undisturbed_s)


def due(injection: Injection, view: AttemptView, *, wait_s: float, from_share: float = 0.0) -> Due:
    """Return whether to inject now, to wait, or that it is too late.

    Waits at most `wait_s` for a moment, from the first step or checkpoint of the attempt on: a program that never saves
    must be preempted, too. With `from_share`, the middle begins at this share of the work.
    """
    if view.working_s is None:
        # A program may import, load and compile for minutes: before its first sign of work, nothing is preempted.
        return "late" if view.saves and injection.moment == "before the first checkpoint" else "wait"
    waited_s = view.working_s
    if injection.moment == "before the first checkpoint":
        if view.saves:
            return "late"
        return "inject"
    if injection.moment == "right before the end":
        # The end is unknown, and any other moment would not be the announced one.
        if view.progress is None:
            return "late" if waited_s > wait_s else "wait"
        return "inject" if view.progress >= END else "wait"
    # Without a commit, a preemption shows less than waiting does: a run that ends without any is repeated.
    progress = view.progress if view.progress is not None and (view.sure or view.saves) else 0.0
    if waited_s > wait_s or progress >= END:
        return "inject"
    if injection.moment == "while saving":
        return "inject" if view.writing and view.saves else "wait"
    if progress < from_share:
        return "wait"
    # Without steps, only the amount of work shows a resume: some of it must be in the checkpoint.
    enough = (view.steps_saved or 0) >= _STEPS or view.own_saves >= _SAVES
    if progress >= _MIDDLE_AT_LAST:
        return "inject"
    enough = enough and (view.progress is None or progress >= _QUARTER)
    now = progress >= _MIDDLE or view.own_saves >= _MANY_SAVES or view.since_save_s > _AFTER_SAVE_S
    return "inject" if view.own_saves and enough and now else "wait"
