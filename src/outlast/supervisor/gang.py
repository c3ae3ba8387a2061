"""The machines of a distributed run: how many, which are lost, which stay, which to launch. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from outlast.clouds.cloud import Offer
from outlast.clouds.traits import traits_of
from outlast.runs.members import kept, survivors
from outlast.runs.state import Attempt
from outlast.supervisor.deadline import next_place
from outlast.supervisor.world import LoseNode, RunView, World, cooldown_until

# A training that waits for a lost peer does not react to SIGTERM: it delays the next attempt by at most this.
_GRACE_MAX_S = 30.0


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The machines that the next attempt keeps, by rank, and the offer for those that it replaces."""

    offer: Offer
    machines: dict[int, str]


def kept_with(world: World, view: RunView) -> Kept | None:
    """Return the machines that the next attempt keeps; None if it begins with new ones.

    All machines of an attempt are in one zone: it keeps them only where they are, at their price.
    """
    last, left, nodes = view.state.last, survivors(view.state), view.spec.machine.nodes
    if last is None or not left:
        return None
    running = {
        rank: name
        for rank, name in left.items()
        if name in world.machines and world.machines[name].status in ("pending", "running")
    }
    offers = view.spot_offers if last.spot else view.on_demand_offers
    place = (last.cloud, last.zone, last.type)
    same = (one for one in offers if (one.cloud, one.zone, one.type) == place and last.fits(one.gpu, one.gpus))
    offer = next(same, None)
    if not running or offer is None or world.is_silent(last.cloud, last.zone):
        return None
    if last.nodes != nodes:
        running = dict(enumerate(name for _, name in sorted(running.items())[:nodes]))
    if last.least and len(running) < nodes and cooldown_until(world, offer, nodes) > world.now:
        return None  # the zone has refused this many: fewer will do
    if view.spec.uses_policy:
        best = next_place(world, view)
        if best is not None and (not isinstance(best, Offer) or (best.zone, best.spot) != (last.zone, last.spot)):
            return None
    return Kept(offer=offer, machines=running)


def sizes(view: RunView) -> tuple[int, ...]:
    """Return how many machines the next attempt may have, the best number first.

    A range is tried from its end, in ever smaller steps, and with the machines that are left.
    """
    machine, checkpoints = view.spec.machine, view.state.checkpoints
    least = machine.nodes_least or machine.nodes
    if least == machine.nodes:
        return (machine.nodes,)
    if checkpoints and (bound := checkpoints[-1].nodes):
        return (bound,)
    found = {machine.nodes}
    while (smallest := min(found)) > least:
        found.add((smallest + least) // 2)
    left = len(survivors(view.state))
    return tuple(sorted(found | ({left} if least <= left <= machine.nodes else set()), reverse=True))


def with_nodes(view: RunView, nodes: int) -> RunView:
    """Return the view of a run that needs exactly this many machines."""
    if nodes == view.spec.machine.nodes:
        return view
    replace = msgspec.structs.replace
    return replace(view, spec=replace(view.spec, machine=replace(view.spec.machine, nodes=nodes)))


def missing_members(world: World, view: RunView, attempt: Attempt) -> dict[int, str]:
    """Return the machines of a placed attempt that are to be launched, by rank."""
    before = kept(view.state, attempt)
    return {
        rank: name for rank, name in enumerate(attempt.machines) if name not in world.machines and name not in before
    }


def node_losses(world: World, view: RunView, attempt: Attempt) -> Iterator[LoseNode]:
    """Yield the machines that an attempt has lost, except the one that leads: its loss ends the attempt at once."""
    if attempt.number != view.state.attempts[-1].number:
        return  # the one that leads ends it; its successor reports its own losses
    before = kept(view.state, attempt)
    for rank, name in list(enumerate(attempt.machines))[1:]:
        if rank in attempt.gone:
            continue
        machine = world.machines.get(name)
        if machine is None:
            launching = attempt.phase == "placed" and name not in before
            if launching or world.is_silent(attempt.cloud, attempt.zone):
                continue
            why = "its machine vanished"
        elif machine.status in ("stopped", "broken"):
            why = f"its machine is {machine.status}" + (f": {machine.why}" if machine.why else "")
        else:
            continue
        grace_s = min(traits_of(attempt.cloud).grace_s, _GRACE_MAX_S)
        yield LoseNode(run=view.run, attempt=attempt.number, node=rank, why=f"node {rank}: {why}", grace_s=grace_s)
