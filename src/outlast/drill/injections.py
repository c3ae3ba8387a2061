"""Which blows a drill strikes, and when each is due. Pure: the running looks, this decides."""

from __future__ import annotations

from typing import Literal

import msgspec

Moment = Literal["before the first checkpoint", "in the middle", "while saving", "right before the end"]
Due = Literal["wait", "strike", "late"]

# From here on it is the end: late enough to hurt, early enough to be hit by somebody who reads along.
END = 0.85
# A little work after the checkpoint, so that there is something to lose.
_AFTER_SAVE_S = 0.3
# And something in the checkpoint that would be missed: so many steps, or so many checkpoints.
_STEPS, _SAVES = 3, 3
# Where the middle is known, or saves come without a pause, none is waited for: it might come when all is over. Nor is a
# save that would make it worth: the files of a program that never rests are not whole before it does.
_MIDDLE, _MIDDLE_AT_LAST, _MANY_SAVES = 0.5, 0.6, 4
# A program that never saves is struck when so much of it is over: each attempt begins anew, and all can be struck.
_UNSAVED = 0.4


class Injection(msgspec.Struct, frozen=True, kw_only=True):
    """One preemption that is to come."""

    moment: Moment
    notice: bool

    def __str__(self) -> str:
        return f"{self.moment}, {'with' if self.notice else 'without'} notice"


# In the order of what they tell; a drill with few blows strikes the first ones.
_BY_WORTH = (
    Injection(moment="in the middle", notice=True),
    Injection(moment="while saving", notice=False),
    Injection(moment="before the first checkpoint", notice=False),
    Injection(moment="right before the end", notice=True),
    Injection(moment="in the middle", notice=False),
    Injection(moment="while saving", notice=True),
)
_ORDER: tuple[Moment, ...] = ("before the first checkpoint", "in the middle", "while saving", "right before the end")


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """What is seen of the attempt that is to be struck."""

    running_s: float
    # It printed something, or wrote a file to its checkpoint folder: the program itself is at work by now.
    awake: bool
    # Committed checkpoints: of the whole run, and of this attempt; and how long ago the last one was.
    saves: int
    own_saves: int
    since_save_s: float
    # Steps that this attempt told of before that; None if it tells none.
    steps_saved: int | None
    # Files in the checkpoint folder are changing right now.
    writing: bool
    # The part that is done, where it can be told.
    progress: float | None = None


def choose(preemptions: int, *, notice: bool = True) -> tuple[Injection, ...]:
    """So many blows, in the order in which they are struck. Those beyond the list come in the middle."""
    picked = list(_BY_WORTH[:preemptions])
    picked += [Injection(moment="in the middle", notice=n % 2 == 0) for n in range(preemptions - len(picked))]
    ordered = sorted(picked, key=lambda blow: _ORDER.index(blow.moment))
    return tuple(msgspec.structs.replace(blow, notice=blow.notice and notice) for blow in ordered)


def patience_s(wait_s: float, *, whole_s: float, saves: int) -> float:
    """How long to wait for a moment of a program that was seen once: who never saved will not now."""
    return wait_s if saves else min(wait_s, _UNSAVED * whole_s)


def due(blow: Injection, sight: RunView, *, wait_s: float) -> Due:
    """Now, not yet, or too late for it. A moment that does not come within `wait_s` is not waited for any longer: a
    program that never saves must be struck, too."""
    if blow.moment == "before the first checkpoint":
        if sight.saves:
            return "late"
        return "strike" if sight.awake or sight.running_s > wait_s else "wait"
    if blow.moment == "right before the end":
        # Nobody knows the end: striking somewhere would not be what was announced.
        if sight.progress is None:
            return "late" if sight.running_s > wait_s else "wait"
        return "strike" if sight.progress >= END else "wait"
    if sight.running_s > wait_s or (sight.progress or 0.0) >= END:
        return "strike"
    if blow.moment == "while saving":
        return "strike" if sight.writing and sight.saves else "wait"
    worth = sight.steps_saved is None or sight.steps_saved >= _STEPS or sight.own_saves >= _SAVES
    if (sight.progress or 0.0) >= _MIDDLE_AT_LAST:
        return "strike"
    now = (sight.progress or 0.0) >= _MIDDLE or sight.own_saves >= _MANY_SAVES or sight.since_save_s > _AFTER_SAVE_S
    return "strike" if sight.own_saves and worth and now else "wait"
