"""The plan: from a World to steps. Pure: no IO, no clock, no randomness, no logging."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from outlast.billing.egress import attempt_egress_usd
from outlast.clouds.cloud import LABEL_ATTEMPT, LABEL_MACHINE, LABEL_RUN, LABEL_WORKSPACE, Machine, Offer
from outlast.clouds.traits import traits_of
from outlast.runs.events import Pool
from outlast.runs.members import kept, owned, releasable, survivors
from outlast.runs.state import Attempt
from outlast.spec.quantity import describe_s
from outlast.supervisor.choose import choose, other_pools
from outlast.supervisor.deadline import leaves_boot, move_of, next_move
from outlast.supervisor.gang import Kept, kept_with, missing_members, node_losses, sizes, with_nodes
from outlast.supervisor.group_rules import member_release, waiting_reason
from outlast.supervisor.limits import Tally, add_machine, failure, limit_step, machine_limit, report_s, tallies
from outlast.supervisor.world import (
    Bill,
    Fail,
    Finalize,
    Launch,
    Locate,
    MarkLost,
    PlaceAttempt,
    Reap,
    Release,
    RetireNodes,
    RunView,
    Step,
    StopAtLimit,
    Wait,
    World,
)

# A supervisor machine waits this long for its first run.
IDLE_S = 900.0


def plan(world: World) -> tuple[Step, ...]:
    """Return the steps to apply now; none if nothing has to change."""
    steps: list[Step] = []
    shared = tallies(world)
    for view in world.runs:
        own = list(_plan_run(world, view, shared))
        if any(isinstance(step, PlaceAttempt) for step in own):
            shared = add_machine(view, shared)
        steps += own
    steps += _plan_orphans(world)
    return tuple(steps)


def _plan_run(world: World, view: RunView, shared: tuple[Tally, ...]) -> Iterator[Step]:
    if not view.state.exists:
        return
    if view.state.alive and view.state.limit is not None:
        yield from _plan_stop(world, view)
    elif view.state.alive:
        if end := member_release(view):
            yield end
            return
        limit = limit_step(world, view, shared)
        if limit:
            yield limit
        if isinstance(limit, StopAtLimit):
            return
        yield from _plan_locations(world, view)
        losses = list(_plan_losses(world, view))
        yield from losses
        # The next round plans the successor, from the story with `Lost`.
        if not losses:
            yield from _plan_next(world, view, shared)
    yield from _plan_releases(world, view)
    if view.state.closed:
        yield Finalize(run=view.run, cloud=view.spec.machine.cloud)


def _plan_stop(world: World, view: RunView) -> Iterator[Step]:
    """End a run at its limit: once its attempts have saved and stopped, or their grace is over."""
    limit = view.state.limit
    assert limit is not None
    busy = any(attempt.phase in ("started", "noticed") for attempt in view.state.attempts)
    if busy and view.limited_s <= limit.grace_s + report_s(view.spec.machine.cloud):
        yield from _plan_losses(world, view)
    else:
        yield Fail(run=view.run, why=limit.why, hint=limit.hint)


def _plan_losses(world: World, view: RunView) -> Iterator[Step]:
    for attempt in view.state.attempts:
        if attempt.phase == "over" or attempt.cloud in world.unreachable:
            continue
        if attempt.nodes > 1:
            yield from node_losses(world, view, attempt)
        lost = _why_lost(world, view, attempt)
        if lost:
            why, preempted = lost
            nodes = (0,) if attempt.nodes > 1 else ()
            yield MarkLost(run=view.run, attempt=attempt.number, why=why, preempted=preempted, nodes=nodes)


def _plan_locations(world: World, view: RunView) -> Iterator[Step]:
    """Record where machines are whose cloud chose among several pools."""
    for attempt in view.state.attempts:
        machine = world.machines.get(attempt.machine)
        if not attempt.pools or attempt.phase == "over" or machine is None:
            continue
        for pool in attempt.pools:
            if (machine.zone, machine.type) == (pool.zone, pool.type):
                yield Locate(run=view.run, attempt=attempt.number, pool=pool)


def _why_lost(world: World, view: RunView, attempt: Attempt) -> tuple[str, bool] | None:
    machine = world.machines.get(attempt.machine)
    if machine is None and world.is_silent(attempt.cloud, attempt.zone):
        return _why_lost_unseen(view, attempt)
    if machine is None:
        # A placed attempt without a machine is still to be launched, unless it had one that ended while it booted, or
        # keeps that of the attempt before.
        had_one = attempt.nodes == 1 and attempt.machine in world.seen
        launches = attempt.phase == "placed" and not had_one and attempt.machine not in kept(view.state, attempt)
        return None if launches else ("its machine vanished", True)
    # `stopping` is not lost: clouds report it during the grace, while the last checkpoint is being saved.
    if machine.status in ("stopped", "broken"):
        preempted = attempt.preempted or "preempted" in machine.why
        return f"its machine is {machine.status}" + (f": {machine.why}" if machine.why else ""), preempted
    if attempt is not view.state.last:
        # The heartbeat is the successor's, unless there is none. Of several machines not all are about to be taken.
        silent = attempt.nodes > 1 and view.silent_s > traits_of(attempt.cloud).boot_s
        return (f"no heartbeat from its machine for {describe_s(view.silent_s)}", False) if silent else None
    if not attempt.started_at:
        # Count from the launch, which may come long after `Placed`.
        booting_s = min(view.silent_s, machine.ran_s)
        if booting_s > traits_of(attempt.cloud).boot_s:
            return f"its machine has not started after {describe_s(booting_s)}", False
    elif view.silent_s > traits_of(attempt.cloud).silence_s:
        return f"no heartbeat from its machine for {describe_s(view.silent_s)}", False
    return None


def _why_lost_unseen(view: RunView, attempt: Attempt) -> tuple[str, bool] | None:
    """Judge by heartbeats alone: a zone that does not answer may have lost its machines."""
    traits = traits_of(attempt.cloud)
    silence_s = traits.boot_s if attempt.phase == "placed" else traits.silence_s
    if attempt is not view.state.last or view.silent_s <= silence_s:
        return None
    return f"no heartbeat for {describe_s(view.silent_s)}, and zone {attempt.zone} does not answer", False


def _plan_next(world: World, view: RunView, shared: tuple[Tally, ...]) -> Iterator[Step]:
    last = view.state.last
    if view.state.launching is not None and leaves_boot(world, view):
        booting = view.state.launching
        why = "its start is given up: on demand, to be in time"
        yield MarkLost(run=view.run, attempt=booting.number, why=why, preempted=False)
        return
    if last is not None and last.phase == "placed":
        yield from _plan_launch(world, view, last)
        return
    if last is not None and last.phase == "started":
        yield from _plan_move(world, view, last, shared)
        return
    before = view.state.attempts[: last.number - 1] if last is not None else ()
    if last is not None and last.phase == "noticed" and any(a.phase != "over" for a in before):
        return  # the successor was noticed too, and its predecessor is not over yet
    end = failure(world, view)
    if end:
        yield end
        return
    waits = waiting_reason(world, view)
    if isinstance(waits, Fail):
        yield waits
        return
    if waits is not None:
        yield from _wait(view, waits.why, waits.until)
        return
    clouds = view.spec.machine.clouds
    cloud = " and ".join(clouds)
    if all(name in world.unreachable for name in clouds):
        yield from _wait(view, f"{cloud} is unreachable: {world.unreachable[clouds[0]]}", 0.0)
        return
    if view.offers_error:
        yield from _wait(view, f"{cloud} does not list its offers: {view.offers_error}", 0.0)
        return
    found = [_place(world, one, keeps, shared) for one, keeps in _sized(world, view)]
    chosen = next((one for one in found if isinstance(one, PlaceAttempt)), found[0])
    if isinstance(chosen, Wait):
        yield from _wait(view, chosen.why, chosen.until)
    else:
        yield chosen


def _sized(world: World, view: RunView) -> list[tuple[RunView, Kept | None]]:
    """Return the view for each number of machines that the next attempt may have, with the machines that it keeps."""
    found = [(one, kept_with(world, one)) for one in (with_nodes(view, nodes) for nodes in sizes(view))]
    # Machines that are left and suffice are worth more than a larger number elsewhere.
    return [one for one in found if one[1] is not None] or found


def _place(world: World, view: RunView, keeps: Kept | None, shared: tuple[Tally, ...]) -> PlaceAttempt | Wait | Fail:
    """Return the next attempt, with the machines that it keeps."""
    machine = view.spec.machine
    chosen = machine_limit(view, shared) or (keeps.offer if keeps is not None else choose(world, view))
    if isinstance(chosen, Wait | Fail):
        return chosen
    return PlaceAttempt(
        run=view.run,
        attempt=len(view.state.attempts) + 1,
        offer=chosen,
        others=other_pools(world, view, chosen) if machine.nodes == 1 else (),
        nodes=machine.nodes,
        least=machine.nodes_least,
        kept=keeps.machines if keeps is not None else {},
    )


def _plan_move(world: World, view: RunView, working: Attempt, shared: tuple[Tally, ...]) -> Iterator[Step]:
    """Request the better machine first: the run works on if it is refused, and moves once that machine runs."""
    ahead = view.state.ahead
    if ahead is not None:
        machine = world.machines.get(ahead.machine)
        if machine is not None and machine.status == "running":
            yield move_of(view, working, spot=ahead.spot, zone=ahead.zone)
        else:
            yield from _plan_launch(world, view, ahead)
        return
    offer = next_move(world, view)
    if offer is None:
        return
    if working.nodes > 1 or machine_limit(view, shared) is not None:
        # A distributed run keeps machines, and a limit may leave no room for a second one: leave first.
        yield move_of(view, working, spot=offer.spot, zone=offer.zone)
        return
    number, others = len(view.state.attempts) + 1, other_pools(world, view, offer)
    yield PlaceAttempt(run=view.run, attempt=number, offer=offer, others=others, ahead=True)


def _wait(view: RunView, why: str, until: float) -> Iterator[Step]:
    if view.state.waiting != why:
        yield Wait(run=view.run, why=why, until=until)
    last = view.state.last
    if last is not None and last.phase == "over" and survivors(view.state):
        # Machines that wait for others cost money, and other runs may wait for them.
        yield RetireNodes(run=view.run, attempt=last.number, why=why)


def _plan_launch(world: World, view: RunView, attempt: Attempt) -> Iterator[Step]:
    lacking = missing_members(world, view, attempt)
    if not lacking or world.is_silent(attempt.cloud, attempt.zone):
        return
    if offers := _offers_of(view, attempt):
        members = lacking if attempt.nodes > 1 else {}
        tries, others = _refusals(view, attempt), tuple(offers[1:])
        yield Launch(run=view.run, attempt=attempt.number, offer=offers[0], others=others, tries=tries, members=members)
        return
    # The offer was withdrawn between the intent and the launch.
    yield MarkLost(run=view.run, attempt=attempt.number, why=f"{attempt.type} is not offered any more", preempted=True)


def _offers_of(view: RunView, attempt: Attempt) -> list[Offer]:
    """Return the pools of an attempt that are still offered, the first one first."""
    found = {
        (offer.zone, offer.type): offer
        for offer in (*view.spot_offers, *view.on_demand_offers)
        if (offer.cloud, offer.spot) == (attempt.cloud, attempt.spot) and attempt.fits(offer.gpu, offer.gpus)
    }
    if not attempt.pools:
        offer = found.get((attempt.zone, attempt.type))
        return [offer] if offer is not None else []
    # At the prices of the story: a repeated launch must equal the first one.
    first = Pool(attempt.zone, attempt.type, attempt.price_usd_per_hour, attempt.on_demand_usd_per_hour)
    return [
        msgspec.structs.replace(
            found[pool.zone, pool.type], price_usd_per_hour=pool.usd, on_demand_usd_per_hour=pool.on_demand_usd
        )
        for pool in (first, *attempt.pools)
        if (pool.zone, pool.type) in found
    ]


def _refusals(view: RunView, attempt: Attempt) -> int:
    """Return how often in a row this offer was refused."""
    count = 0
    for past in reversed(view.state.attempts[: attempt.number - 1]):
        if (past.zone, past.type, past.spot) == (attempt.zone, attempt.type, attempt.spot):
            if past.outcome != "refused":
                break
            count += 1
    return count


def _plan_releases(world: World, view: RunView) -> Iterator[Step]:
    for attempt in view.state.attempts:
        if attempt.released or not releasable(view.state, attempt):
            continue
        if world.is_silent(attempt.cloud, attempt.zone):
            continue
        machine = world.machines.get(attempt.machine)
        kept_s = attempt.over_at + attempt.keep_s - world.now if attempt.keep_s else 0.0
        if machine is not None and machine.status == "running" and kept_s > 0:
            continue  # kept for debugging
        yield _release(world, view, attempt)


def _release(world: World, view: RunView, attempt: Attempt) -> Release:
    bills = [_bill(world, attempt, name) for name in owned(view.state, attempt)]
    first = bills[0] if bills else Bill(machine="", price_usd_per_hour=0.0)
    return Release(
        run=view.run,
        attempt=attempt.number,
        cloud=attempt.cloud,
        machine=first.machine,
        price_usd_per_hour=first.price_usd_per_hour,
        ran_s=first.ran_s,
        disk_usd=first.disk_usd,
        address_usd_per_hour=attempt.address_usd_per_hour,
        egress_usd=attempt_egress_usd(view.state, attempt),
        started_event=attempt.started_event,
        over_event=attempt.over_event,
        others=tuple(bills[1:]),
    )


def _bill(world: World, attempt: Attempt, name: str) -> Bill:
    machine = world.machines.get(name)
    if machine is None:
        return Bill(
            machine=name,
            price_usd_per_hour=attempt.price_usd_per_hour,
            address_usd_per_hour=attempt.address_usd_per_hour,
        )
    return Bill(
        machine=name,
        price_usd_per_hour=machine.price_usd_per_hour,
        ran_s=machine.ran_s,
        disk_usd=machine.disk_usd,
        address_usd_per_hour=attempt.address_usd_per_hour,
    )


def _plan_orphans(world: World) -> Iterator[Step]:
    """Yield the deletion of machines of this workspace that neither a run nor a record owns."""
    known = {
        name
        for view in world.runs
        for attempt in view.state.attempts
        if not attempt.released
        for name in attempt.machines
    }
    for machine in world.machines.values():
        if machine.labels.get(LABEL_WORKSPACE) != world.workspace_id or machine.name in known:
            continue
        if LABEL_MACHINE in machine.labels:
            if why := _why_orphan(world, machine):
                yield Reap(
                    cloud=machine.cloud, machine=machine.name, why=why, machine_record=machine.labels[LABEL_MACHINE]
                )
            continue
        run, attempt = machine.labels.get(LABEL_RUN, ""), machine.labels.get(LABEL_ATTEMPT, "")
        if not run or run in world.damaged:
            continue  # not created for a run, or its run cannot be read
        yield Reap(cloud=machine.cloud, machine=machine.name, why=f"attempt {attempt} of {run} no longer owns it")


def _why_orphan(world: World, machine: Machine) -> str:
    """Return why a machine that no run owns is an orphan; empty if it is not, or if its record cannot be read."""
    if machine.name not in world.machine_records:
        return ""
    machine_record = world.machine_records[machine.name]
    if machine_record is None or machine_record.id != machine.labels[LABEL_MACHINE]:
        return "it has no record"
    if machine_record.overdue:
        return "the time for which it was kept is over"
    if machine_record.headless:
        return f"the head of its cluster `{machine_record.cluster}` is gone"
    if machine_record.abandoned:
        return f"the process that was {machine_record.phase} it has died"
    idle = not any(view.state.alive for view in world.runs)
    if (
        machine_record.until_idle
        and idle
        and machine.name != world.supervisor_vm
        and machine.seen_at - machine.created_at > IDLE_S
    ):
        return "it supervises until the last run ends, and no run is alive"
    return ""
