"""All the deciding of a keeper: from what it sees to the next step. Pure: no IO, no clock, no dice."""

from __future__ import annotations

from outlast.clouds.cloud import Machine, Offer
from outlast.machines.keep.world import (
    Arrive,
    Copy,
    Count,
    End,
    Job,
    Kill,
    Leave,
    Move,
    Rest,
    Restart,
    Revive,
    Run,
    Settle,
    Sight,
    Step,
    Then,
    quiet_for,
)
from outlast.spec.quantity import describe_s

# So often is the machine refused where it is before it moves: capacity comes back within minutes, or not for long.
MOVE_AFTER = 3
# A machine that runs and lets nobody in for so long is booted again.
DEAF_S = 600.0
# A start that was claimed and went nowhere is given so long before the next one is tried.
CLAIM_S = 15.0
# Codes of a program that was told to go: SIGHUP, SIGKILL, SIGTERM.
_TOLD_TO_GO = (129, 137, 143)


def plan(sight: Sight) -> Step:
    """The next step. When all is as it should be, it is to rest."""
    memory = sight.memory
    if memory.ending is not None:
        return End(ending=memory.ending, why=memory.why, exit_code=memory.exit_code)
    if sight.blind:
        return Rest(why=f"cannot look: {sight.blind}", trouble=True)
    if sight.hand is None or sight.hand.phase == "deleting":
        return End(ending="gone", why="somebody deleted it")
    if memory.move is not None:
        return _move_on(sight, memory.move)
    if sight.machine is None:
        return End(ending="gone", why="somebody deleted it outside of outlast, and its disk with it")
    budget = memory.order.budget_usd
    if budget and sight.cost_usd >= budget:
        return End(ending="budget", why=f"it has cost its budget of ${budget:g}", then="stop")
    return _tend(sight, sight.machine)


def _tend(sight: Sight, machine: Machine) -> Step:
    if machine.status == "broken":
        why = machine.why or "its cloud does not say why"
        return End(ending="failed", why=f"the machine is broken: {why}")
    assert sight.hand is not None
    if machine.status == "stopped":
        if sight.hand.wanted == "stopped":
            return Rest(why="it was stopped on purpose; `outlast machine start` lets it go on", settled=True)
        return _revive(sight, machine)
    if machine.status != "running":
        return Rest(why=f"it is {machine.status}")
    if not sight.memory.order.command:
        return Rest(why="it runs", settled=True)
    if sight.job is None:
        if sight.deaf_s > DEAF_S:
            return Restart(why=f"it runs, but nobody could log in for {describe_s(sight.deaf_s)}: {sight.deaf}")
        return Rest(why=f"cannot log in: {sight.deaf}" if sight.deaf else "it runs", trouble=bool(sight.deaf))
    return _tend_job(sight, sight.job)


def _revive(sight: Sight, machine: Machine) -> Step:
    memory = sight.memory
    if memory.refused_until > sight.now:
        return Rest(why=f"no room in {machine.zone}; trying again")
    if memory.refusals >= MOVE_AFTER and any(offer.zone != machine.zone for offer in sight.elsewhere):
        # Each move has its own image, so that one cut short never finds that of another.
        return Copy(image=f"{machine.name[:40]}-{memory.id[:8]}-{memory.moves + 1}")
    return Revive()


def _move_on(sight: Sight, move: Move) -> Step:
    machine = sight.machine
    if move.stage == "copying":
        if machine is None:
            return End(ending="gone", why="it was deleted before its disk was copied")
        if machine.status != "stopped":
            # Somebody found room for it after all.
            return Arrive() if machine.status == "running" else Rest(why=f"it is {machine.status}")
        return Copy(image=move.image)
    if move.stage == "leaving" and machine is not None:
        return Leave()
    if machine is not None and machine.status == "broken":
        return Leave()  # it never came up; the image is still there for another try
    if machine is not None:
        return Rest(why="it is booting") if machine.status == "pending" else Arrive()
    if sight.memory.refused_until > sight.now:
        return Rest(why="no room in any zone; its disk is safe in an image, trying again")
    offer = _best(sight, move)
    return Settle(offer=offer) if offer else Rest(why=f"nobody offers a {move.type} now", trouble=True)


def _best(sight: Sight, move: Move) -> Offer | None:
    """The next offer in turn, the old zone last: refusals count on while none has room."""
    offers = sorted(sight.elsewhere, key=lambda offer: (offer.zone == move.zone, offer.price_usd_per_hour, offer.zone))
    return offers[sight.memory.refusals % len(offers)] if offers else None


def _tend_job(sight: Sight, job: Job) -> Step:
    if job.number == 0:
        return Run(number=1, why="it was not started yet")
    if job.exit_code is None and job.alive:
        limit_s = sight.memory.order.halt_after_s
        if limit_s and job.idle_s > limit_s:
            return Kill(number=job.number, why=quiet_for(job.idle_s))
        return Rest(why="the command runs", settled=True)
    if job.exit_code is None and not job.went:
        if job.this_boot and job.claimed_s < CLAIM_S:
            return Rest(why="the command is being started")
        return Run(number=job.number + 1, why="the last start was cut short")
    return _tend_ended(sight, job)


def _tend_ended(sight: Sight, job: Job) -> Step:
    memory = sight.memory
    why = _why_bad(job)
    if why == "finished":
        return End(ending="finished", why="the command ended with 0", exit_code=0, then=memory.order.then)
    if why == "preempted":
        return Run(number=job.number + 1, why="the machine was taken away under it")
    if job.number > memory.counted:
        return Count(number=job.number, why=why)
    if memory.crashes >= memory.order.crashes:
        times = "once" if memory.crashes == 1 else f"{memory.crashes} times"
        # Whatever was asked for its end: the evidence is on its disk.
        then: Then = "leave" if memory.order.then == "leave" else "stop"
        return End(
            ending="failed",
            why=f"the command ended badly {times}; the last time: {why}",
            exit_code=job.exit_code,
            then=then,
        )
    return Run(number=job.number + 1, why=f"{why}; {memory.order.crashes - memory.crashes} more may end so")


def _why_bad(job: Job) -> str:
    """`finished`, `preempted`, or in words what went wrong."""
    if job.halted:
        return "it did nothing any more"
    # Several frameworks end with 0 when they are told to go: with a notice it is no success.
    if job.noticed:
        return "preempted"
    if job.exit_code is None:
        return "it was killed" if job.this_boot else "preempted"
    if job.exit_code == 0:
        return "finished"
    if job.exit_code in _TOLD_TO_GO and not job.this_boot:
        return "preempted"
    return f"it ended with {job.exit_code}"
