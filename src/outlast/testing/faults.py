"""The faults of a simulated world and their frequency, drawn from the seed."""

from __future__ import annotations

import random

import msgspec


class WorldFaults(msgspec.Struct, frozen=True, kw_only=True):
    """Probabilities per call, or mean times between faults in seconds (0: never)."""

    store_fails: float = 0.0
    store_loses_answers: float = 0.0
    store_slow_s: float = 0.02
    cloud_fails: float = 0.0
    cloud_loses_answers: float = 0.0
    cloud_throttles: float = 0.0
    launch_half_done: float = 0.0
    # A launch of several machines breaks off in the middle.
    launch_partial: float = 0.0
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
    # A noticed machine loses power up to this long after its grace; until then its network is slow.
    late_power_s: float = 0.0
    # Probability per attempt that the store permanently refuses its outputs.
    outputs_denied: float = 0.0
    # Stored objects are damaged or lost; events and requests only with `damage_stories`.
    damage_every_s: float = 0.0
    damage_stories: bool = False
    # The one computer that runs everything loses power, and with it all writes that are not durable.
    power_cut_every_s: float = 0.0
    # A writer with a stale view appends events that the story must refuse.
    stale_writer_every_s: float = 0.0
    ignore_lease: bool = False
    supervisors: int = 1
    # How long a launch or a deletion takes on average, beyond a call.
    effects_slow_s: float = 0.0


NONE = WorldFaults()


def draw_rare(faults: WorldFaults, rng: random.Random) -> WorldFaults:
    """Add the rarer faults, from a separate RNG, so that the other faults of a seed stay the same."""
    replace = msgspec.structs.replace
    if rng.random() < 0.25:
        # The predecessor commits after its deadline, while the successor starts.
        faults = replace(faults, late_power_s=90.0, store_slow_s=0.5, notice=1.0, preempt_every_s=60.0)
    if rng.random() < 0.15:
        faults = replace(faults, outputs_denied=0.3)
    if rng.random() < 0.2:
        faults = replace(faults, stale_writer_every_s=30.0)
    kind = rng.random()
    if kind < 0.2:
        faults = replace(faults, damage_every_s=rng.choice([20.0, 60.0]), damage_stories=rng.random() < 0.25)
    elif kind < 0.25:
        faults = replace(faults, power_cut_every_s=200.0)
    return faults


def draw_notices(rng: random.Random) -> WorldFaults:
    """Draw preemptions with notice and no other fault, to test the handoff alone."""
    return WorldFaults(
        store_slow_s=rng.choice([0.01, 0.1]),
        preempt_every_s=rng.choice([60.0, 120.0]),
        notice=1.0,
        ignore_lease=rng.random() < 0.5,
        supervisors=rng.choice([1, 2]),
    )


def draw(rng: random.Random) -> WorldFaults:
    """Draw the faults of one world."""

    def maybe(value: float, chance: float = 0.6) -> float:
        return value if rng.random() < chance else 0.0

    return WorldFaults(
        store_fails=maybe(rng.choice([0.01, 0.05])),
        store_loses_answers=maybe(rng.choice([0.01, 0.05])),
        store_slow_s=rng.choice([0.01, 0.1, 1.0]),
        cloud_fails=maybe(rng.choice([0.02, 0.1])),
        cloud_loses_answers=maybe(rng.choice([0.05, 0.2])),
        cloud_throttles=maybe(0.1, 0.3),
        launch_half_done=maybe(0.1, 0.4),
        listing_lag_s=maybe(rng.choice([2.0, 20.0])),
        listing_partial=maybe(0.2, 0.4),
        dies_booting=maybe(0.15),
        preempt_every_s=maybe(rng.choice([30.0, 90.0, 300.0]), 0.9),
        notice=rng.choice([0.0, 0.5, 1.0]),
        zombie=maybe(0.5),
        stockout_every_s=maybe(120.0),
        kill_supervisor_every_s=maybe(rng.choice([20.0, 120.0])),
        kill_agent_every_s=maybe(200.0, 0.4),
        pause_every_s=maybe(60.0, 0.5),
        crashes=maybe(0.1, 0.3),
        ignore_lease=rng.random() < 0.5,
        supervisors=rng.choice([1, 1, 2, 3]),
        effects_slow_s=maybe(rng.choice([10.0, 60.0]), 0.4),
    )
