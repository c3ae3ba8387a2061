"""What can go wrong, and how often. Drawn from the seed: some worlds are merely unlucky, some are out to get you."""

from __future__ import annotations

import random

import msgspec


class WorldFaults(msgspec.Struct, frozen=True, kw_only=True):
    """Chances per call, or mean times between blows in seconds (0: never)."""

    store_fails: float = 0.0
    store_loses_answers: float = 0.0
    store_slow_s: float = 0.02
    cloud_fails: float = 0.0
    cloud_loses_answers: float = 0.0
    cloud_throttles: float = 0.0
    launch_half_done: float = 0.0
    listing_lag_s: float = 0.0
    listing_partial: float = 0.0
    dies_booting: float = 0.0
    preempt_every_s: float = 0.0
    notice: float = 0.5
    zombie: float = 0.0
    stockout_every_s: float = 0.0
    kill_supervisor_every_s: float = 0.0
    kill_agent_every_s: float = 0.0
    pause_every_s: float = 0.0
    crashes: float = 0.0
    # The power of a noticed machine goes up to so much later than the notice said; until then its network is slow.
    late_power_s: float = 0.0
    # Chance per attempt that the store refuses its outputs for good.
    outputs_denied: float = 0.0
    # Stored objects break or vanish. Events and requests break only where `damage_stories` is set.
    damage_every_s: float = 0.0
    damage_stories: bool = False
    # The computer that holds the store and everything else loses power: writes that were not settled are gone.
    power_cut_every_s: float = 0.0
    # A writer with a stale view appends events that the story must refuse.
    meddler_every_s: float = 0.0
    ignore_lease: bool = False
    supervisors: int = 1
    # How long a launch or a deletion takes on average, beyond a call.
    effects_slow_s: float = 0.0


NONE = WorldFaults()


def draw_rare(faults: WorldFaults, dice: random.Random) -> WorldFaults:
    """Add the rarer faults, from dice of their own: the other faults of a seed stay as they are."""
    replace = msgspec.structs.replace
    if dice.random() < 0.25:
        # Commits of the predecessor come after its deadline, while the successor starts.
        faults = replace(faults, late_power_s=90.0, store_slow_s=0.5, notice=1.0, preempt_every_s=60.0)
    if dice.random() < 0.15:
        faults = replace(faults, outputs_denied=0.3)
    if dice.random() < 0.2:
        faults = replace(faults, meddler_every_s=30.0)
    kind = dice.random()
    if kind < 0.2:
        faults = replace(faults, damage_every_s=dice.choice([20.0, 60.0]), damage_stories=dice.random() < 0.25)
    elif kind < 0.25:
        faults = replace(faults, power_cut_every_s=200.0)
    return faults


def draw_notices(dice: random.Random) -> WorldFaults:
    """Preemption with notice and no other fault: nothing but the handoff is tried."""
    return WorldFaults(
        store_slow_s=dice.choice([0.01, 0.1]),
        preempt_every_s=dice.choice([60.0, 120.0]),
        notice=1.0,
        ignore_lease=dice.random() < 0.5,
        supervisors=dice.choice([1, 2]),
    )


def draw(dice: random.Random) -> WorldFaults:
    """The faults of one world."""

    def maybe(value: float, chance: float = 0.6) -> float:
        return value if dice.random() < chance else 0.0

    return WorldFaults(
        store_fails=maybe(dice.choice([0.01, 0.05])),
        store_loses_answers=maybe(dice.choice([0.01, 0.05])),
        store_slow_s=dice.choice([0.01, 0.1, 1.0]),
        cloud_fails=maybe(dice.choice([0.02, 0.1])),
        cloud_loses_answers=maybe(dice.choice([0.05, 0.2])),
        cloud_throttles=maybe(0.1, 0.3),
        launch_half_done=maybe(0.1, 0.4),
        listing_lag_s=maybe(dice.choice([2.0, 20.0])),
        listing_partial=maybe(0.2, 0.4),
        dies_booting=maybe(0.15),
        preempt_every_s=maybe(dice.choice([30.0, 90.0, 300.0]), 0.9),
        notice=dice.choice([0.0, 0.5, 1.0]),
        zombie=maybe(0.5),
        stockout_every_s=maybe(120.0),
        kill_supervisor_every_s=maybe(dice.choice([20.0, 120.0])),
        kill_agent_every_s=maybe(200.0, 0.4),
        pause_every_s=maybe(60.0, 0.5),
        crashes=maybe(0.1, 0.3),
        ignore_lease=dice.random() < 0.5,
        supervisors=dice.choice([1, 1, 2, 3]),
        effects_slow_s=maybe(dice.choice([10.0, 60.0]), 0.4),
    )
