"""The users, limits, supervisors and faults of a seed. Each concern has a separate RNG."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec

from outlast.billing.limits import Limits
from outlast.testing.faults import draw, draw_notices, draw_rare
from outlast.testing.simcloud import ZONES
from outlast.testing.simgang import KINDS, LAYOUTS

if TYPE_CHECKING:
    from outlast.testing.simulate import Simulation

# The fraction of worlds with preemption with notice and no other fault.
_NOTICES_ONLY = 0.12


def has_notices_only(seed: int) -> bool:
    """Return whether the seed's world has preemption with notice and no other fault; its first draw."""
    return random.Random(f"rare {seed}").random() < _NOTICES_ONLY


def populate(world: Simulation, seed: int) -> None:
    """Add the users, supervisors, limits and faults that the seed draws."""
    rare = random.Random(f"rare {seed}")
    notices_only = rare.random() < _NOTICES_ONLY
    world.set_faults(draw_notices(rare) if notices_only else draw_rare(world.faults, rare))
    world.notices_only = notices_only
    rng = world.scheduler.rng
    money, rules = random.Random(f"money {seed}"), random.Random(f"rules {seed}")
    hurry = random.Random(f"deadline {seed}")
    _limit_workspace(world, money, rules)
    for _ in range(rng.choice([1, 1, 2, 3])):
        cancel_after_s = rng.uniform(1.0, 400.0) if rng.random() < 0.2 else 0.0
        steps, pace_s = rng.randint(4, 40), rng.choice([1.0, 5.0, 20.0])
        world.add_user(
            steps=steps,
            pace_s=pace_s,
            at_s=rng.uniform(0, 200.0),
            cancel_after_s=cancel_after_s,
            cost_usd=money.uniform(0.02, 0.2) if money.random() < 0.25 else 0.0,
            deadline_s=steps * pace_s * hurry.uniform(1.1, 6.0) + 60.0 if hurry.random() < 0.1 else 0.0,
            secret="hush" if rules.random() < 0.5 else "",
            keep=rules.choice([1, 1, 2, 3]),
            crashes=rules.choice([1, 2, 3, 1000, 1000]),
            # This ends a run whose agents cannot read the story, while its supervisor has it cached.
            no_progress=rules.choice([2, 4, 8] if world.faults.damage_stories else [2, 4, 8, 1000, 1000]),
            # The machine of an unreadable story lives until `max_hours`.
            max_hours=0.5 if world.faults.damage_stories else 0.0,
        )
    for _ in range(world.faults.supervisors):
        world.add_supervisor(after_s=rng.uniform(0, 30.0))
    world.keep_supervised()
    world.storm()


def _limit_workspace(world: Simulation, money: random.Random, rules: random.Random) -> None:
    cost_usd = money.uniform(0.05, 0.3) if money.random() < 0.15 else 0.0
    max_machines = rules.choice([1, 2]) if rules.random() < 0.15 else 0
    if cost_usd or max_machines:
        world.limit_workspace(Limits(cost_usd=cost_usd, per="total", max_machines=max_machines))


def populate_nodes(world: Simulation, seed: int, *, elastic: bool = False) -> None:
    """Add users with distributed runs, which may compete for the room of the zones, and the faults of the seed.

    With `elastic`, the runs can do with fewer machines, and some zones have no room for all.
    """
    rng = random.Random(f"nodes {seed}")
    rare = random.Random(f"rare {seed}")
    notices_only = rng.random() < _NOTICES_ONLY
    faults = draw_notices(rare) if notices_only else draw(random.Random(f"faults {seed}"))
    damage = 60.0 if not notices_only and rng.random() < 0.1 else 0.0
    partial = rng.choice([0.0, 0.2])
    world.set_faults(msgspec.structs.replace(faults, launch_partial=partial, damage_every_s=damage))
    runs = rng.choice([1, 1, 2])
    nodes = [rng.choice([2, 2, 3, 4]) for _ in range(runs)]
    if runs == 2 and rng.random() < 0.7:
        # Room for one of them in each zone, and for a part of the other.
        for zone in ZONES:
            world.cloud.capacity[zone] = max(nodes) + rng.randrange(0, min(nodes))
    if elastic:
        nodes = [max(3, count) for count in nodes]
        for zone in ZONES:
            world.cloud.capacity[zone] = rng.randint(2, max(nodes) + 1)
    for count in nodes:
        world.add_user(
            steps=rng.randint(4, 40),
            pace_s=rng.choice([1.0, 5.0, 20.0]),
            at_s=rng.uniform(0, 60.0),
            nodes=f"2..{count}" if elastic else count,
            layout=rng.choice(LAYOUTS),
            kind=rng.choice(KINDS),
            secret="hush" if rng.random() < 0.2 else "",
            keep=rng.choice([1, 2]),
            cancel_after_s=rng.uniform(1.0, 400.0) if rng.random() < 0.1 else 0.0,
        )
    for _ in range(world.faults.supervisors):
        world.add_supervisor(after_s=rng.uniform(0, 30.0))
    world.keep_supervised()
    world.storm()
