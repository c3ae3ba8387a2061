"""The decision of `outlast machine keep`: a pure function from a view to the next step."""

from __future__ import annotations

from outlast.clouds.cloud import Machine, Offer
from outlast.machines.keepalive.world import (
    Arrive,
    Copy,
    Count,
    End,
    KeepaliveView,
    KeptJob,
    Kill,
    Leave,
    Relaunch,
    Relocation,
    Rest,
    StartJob,
    StartMachine,
    Step,
    StopUnresponsive,
    Then,
    quiet_for,
)
from outlast.spec.quantity import describe_s

# Failed starts before the machine moves to another zone: capacity returns within minutes, or not for hours.
MOVE_AFTER = 3
# A running machine that ssh cannot reach for this long is restarted.
UNRESPONSIVE_S = 600.0
# ssh may refuse logins for this long after a boot, without longer and longer pauses between the attempts.
BOOTING_S = 60.0
# How long a claimed start may take before the next one is tried.
CLAIM_S = 15.0
# Exit codes of a program that was ended by SIGHUP, SIGKILL or SIGTERM.
_SIGNALLED = (129, 137, 143)


def plan(view: KeepaliveView) -> Step:
    """Return the next step; `Rest` when there is nothing to do."""
    memory = view.memory
    if memory.ending is not None:
        return End(ending=memory.ending, why=memory.why, exit_code=memory.exit_code)
    if view.unreachable:
        return Rest(why=f"cannot read its state: {view.unreachable}", trouble=True)
    if view.machine_record is None or view.machine_record.phase == "deleting":
        return End(ending="gone", why="it was deleted")
    if memory.move is not None:
        return _plan_relocation(view, memory.move)
    if view.machine is None:
        return End(ending="gone", why="it was deleted outside of outlast, with its disk")
    budget = memory.options.budget_usd
    if budget and view.cost_usd >= budget:
        return End(ending="budget", why=f"it has cost its budget of ${budget:g}", then="stop")
    return _plan_machine(view, view.machine)


def _plan_machine(view: KeepaliveView, machine: Machine) -> Step:
    if machine.status == "broken":
        why = machine.why or "its cloud gives no reason"
        return End(ending="failed", why=f"the machine is broken: {why}")
    assert view.machine_record is not None
    if machine.status == "stopped":
        if view.machine_record.wanted == "stopped":
            return Rest(why="it was stopped by a user; run `outlast machine start` to continue", steady=True)
        return _plan_stopped(view, machine)
    if machine.status != "running":
        return Rest(why=f"it is {machine.status}")
    if not view.memory.options.command:
        return Rest(why="it runs", steady=True)
    if view.job is None:
        if view.unresponsive_s > UNRESPONSIVE_S:
            return StopUnresponsive(
                why=f"it runs, but ssh failed for {describe_s(view.unresponsive_s)}: {view.unresponsive}"
            )
        return Rest(
            why=f"cannot log in: {view.unresponsive}" if view.unresponsive else "it runs",
            trouble=view.unresponsive_s > BOOTING_S,
        )
    return _plan_job(view, view.job)


def _plan_stopped(view: KeepaliveView, machine: Machine) -> Step:
    memory = view.memory
    if memory.refused_until > view.now:
        return Rest(why=f"no capacity in {machine.zone}; retrying")
    if memory.refusals >= MOVE_AFTER and any(offer.zone != machine.zone for offer in view.elsewhere):
        # Each move has its own image, so that an interrupted move never finds that of another.
        return Copy(image=f"{machine.name[:40]}-{memory.id[:8]}-{memory.moves + 1}")
    return StartMachine()


def _plan_relocation(view: KeepaliveView, move: Relocation) -> Step:
    machine = view.machine
    if move.stage == "copying":
        if machine is None:
            return End(ending="gone", why="it was deleted before its disk was copied")
        if machine.status != "stopped":
            # A start in the old zone succeeded in the meantime.
            return Arrive() if machine.status == "running" else Rest(why=f"it is {machine.status}")
        return Copy(image=move.image)
    if move.stage == "leaving" and machine is not None:
        return Leave()
    if machine is not None and machine.status == "broken":
        return Leave()  # it failed to boot; the image remains for another try
    if machine is not None:
        return Rest(why="it is booting") if machine.status == "pending" else Arrive()
    if view.memory.refused_until > view.now:
        return Rest(why="no capacity in any zone; its disk is stored in an image; retrying")
    offer = _best(view, move)
    return Relaunch(offer=offer) if offer else Rest(why=f"no zone offers {move.type} now", trouble=True)


def _best(view: KeepaliveView, move: Relocation) -> Offer | None:
    """Return the next offer in turn, the old zone last: each refusal moves on to the next offer."""
    offers = sorted(view.elsewhere, key=lambda offer: (offer.zone == move.zone, offer.price_usd_per_hour, offer.zone))
    return offers[view.memory.refusals % len(offers)] if offers else None


def _plan_job(view: KeepaliveView, job: KeptJob) -> Step:
    if job.number == 0:
        return StartJob(number=1, why="first start")
    if job.exit_code is None and job.alive:
        limit_s = view.memory.options.halt_after_s
        if limit_s and job.idle_s > limit_s:
            return Kill(number=job.number, why=quiet_for(job.idle_s))
        return Rest(why="the command runs", steady=True)
    if job.exit_code is None and not job.went:
        if job.this_boot and job.claimed_s < CLAIM_S:
            return Rest(why="the command is being started")
        return StartJob(number=job.number + 1, why="the last start was interrupted")
    return _plan_ended_job(view, job)


def _plan_ended_job(view: KeepaliveView, job: KeptJob) -> Step:
    memory = view.memory
    why = _why_bad(job)
    if why == "finished":
        return End(ending="finished", why="the command ended with 0", exit_code=0, then=memory.options.then)
    if why == "preempted":
        return StartJob(number=job.number + 1, why="the machine was preempted")
    if job.number > memory.counted:
        return Count(number=job.number, why=why)
    if memory.crashes >= memory.options.crashes:
        times = "once" if memory.crashes == 1 else f"{memory.crashes} times"
        # Never delete the machine after a failure: the evidence is on its disk.
        then: Then = "leave" if memory.options.then == "leave" else "stop"
        return End(
            ending="failed",
            why=f"the command failed {times}; the last time: {why}",
            exit_code=job.exit_code,
            then=then,
        )
    left = memory.options.crashes - memory.crashes
    return StartJob(number=job.number + 1, why=f"again; {left} more {'failure' if left == 1 else 'failures'} allowed")


def _why_bad(job: KeptJob) -> str:
    """Return `finished`, `preempted`, or a description of the failure."""
    if job.halted:
        return "it made no progress"
    # Several frameworks exit with 0 on SIGTERM, so an exit during a preemption is not a success.
    if job.noticed:
        return "preempted"
    if job.exit_code is None:
        return "it was killed" if job.this_boot else "preempted"
    if job.exit_code == 0:
        return "finished"
    if job.exit_code in _SIGNALLED and not job.this_boot:
        return "preempted"
    return f"it ended with {job.exit_code}" + (f": {job.last_line}" if job.last_line else "")
