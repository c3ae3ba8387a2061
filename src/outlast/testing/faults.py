"""What can go wrong, and how often. Drawn from the seed: some worlds are merely unlucky, some are out to get you."""

from __future__ import annotations

import random

import msgspec


class Faults(msgspec.Struct, frozen=True, kw_only=True):
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
    ignore_lease: bool = False
    supervisors: int = 1


NONE = Faults()


def draw(dice: random.Random) -> Faults:
    """The faults of one world."""

    def maybe(value: float, chance: float = 0.6) -> float:
        return value if dice.random() < chance else 0.0

    return Faults(
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
    )
