"""Estimates of the lifetime of spot machines and the cycle of capacity, from observations. Pure.

Lifetimes have heavy tails: the longer a machine has lived, the longer it will live. A machine of age `a` lives for
about `a` more (the median of a Pareto tail of index one), a new one for a fraction of the observed mean.
"""

from __future__ import annotations

from outlast.policy.view import Spot

# The prior for a zone without observations: a cycle of two hours, half of it with capacity. It weighs as much as four
# observed cycles (eight hours).
CYCLE_S = 7200.0
CYCLES = 4
# With heavy tails the median is far below the mean; a new machine is expected to live this part of the mean.
NEWBORN = 0.25


def mean_life_s(spot: Spot) -> float:
    """Return the mean observed lifetime; a life that still continues counts with its age."""
    advised = spot.advised_life_s or CYCLE_S / 2
    return (CYCLES * advised + spot.up_s) / (CYCLES + spot.ups)


def life_s(spot: Spot, interval_s: float) -> float:
    """Return how long a machine of this zone is expected to live from now on."""
    newborn = NEWBORN * mean_life_s(spot)
    # Ages are multiples of the interval: a machine first seen at this decision may be up to one interval old.
    old = spot.age_s + interval_s
    return old if old > newborn else newborn


def cycle_s(spots: tuple[Spot, ...]) -> float:
    """Return the mean time from one start of capacity to the next, over all zones."""
    seen_s = CYCLES * CYCLE_S
    ups = float(CYCLES)
    for spot in spots:
        seen_s += spot.seen_s
        ups += spot.ups
    return seen_s / ups
