"""How long a spot machine will live, and how often capacity comes and goes, from what was seen. Pure.

Lives of spot machines have heavy tails: the longer one has lived, the longer it will. A machine of age `a` lives for
about `a` more (the median of a Pareto tail of index one), a newborn one for a fraction of the mean that was seen.
"""

from __future__ import annotations

from outlast.policy.view import Spot

# What is assumed of a place that nobody has seen: capacity comes and goes every two hours, half of each. It weighs as
# much as four such cycles, eight hours of looking, and gives way to what is seen.
CYCLE_S = 7200.0
CYCLES = 4
# Of a heavy-tailed life the median is far below the mean; a machine that is born is given this part of the mean.
NEWBORN = 0.25


def mean_life_s(spot: Spot) -> float:
    """The mean life of what was seen; the life that still goes on counts for as long as it has lasted."""
    advised = spot.advised_life_s or CYCLE_S / 2
    return (CYCLES * advised + spot.up_s) / (CYCLES + spot.ups)


def life_s(spot: Spot, look_s: float) -> float:
    """How long the machine of this place can be expected to live from now on."""
    newborn = NEWBORN * mean_life_s(spot)
    # An age is told in looks: what was seen first at the last look is older than nothing.
    old = spot.age_s + look_s
    return old if old > newborn else newborn


def cycle_s(spots: tuple[Spot, ...]) -> float:
    """The mean time from one coming of capacity to the next, over all places."""
    seen_s = CYCLES * CYCLE_S
    ups = float(CYCLES)
    for spot in spots:
        seen_s += spot.seen_s
        ups += spot.ups
    return seen_s / ups
