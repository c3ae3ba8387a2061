"""Zones with different prices: which of them the deadline leaves time to wait for. Pure.

The dearest price that a job has to pay is the least one at which the zones up to it, by their observed share of time
with capacity, finish the work in time. A spot machine that costs clearly more is as good as none: a cheaper zone is
expected to have capacity soon enough.
"""

from __future__ import annotations

from dataclasses import replace

from outlast.policy.view import PolicyView, Spot

# The prior for the share of time with capacity: one half, which weighs as much as this observed time.
PRIOR_SHARE, PRIOR_S = 0.5, 8 * 3600.0
# A spot machine up to this multiple of the needed price is taken.
TOLERANCE = 1.1


def share(spot: Spot) -> float:
    """Return the observed share of time in which the zone had capacity."""
    return (PRIOR_SHARE * PRIOR_S + spot.up_s) / (PRIOR_S + max(spot.seen_s, spot.up_s))


def needed_usd(view: PolicyView) -> float:
    """Return the least price up to which the zones together finish the work in time; on demand's if none suffices.

    Zones are assumed to lose capacity independently. Without a deadline, and if all prices are equal, the price of on
    demand: every cheaper spot machine is welcome.
    """
    on_demand_usd, left_s = view.on_demand.price, view.time_left_s
    if left_s is None or len({spot.price for spot in view.spots}) < 2:
        return on_demand_usd
    none_up = 1.0
    for spot in sorted(view.spots, key=lambda spot: spot.price):
        none_up *= 1.0 - share(spot)
        if spot.price < on_demand_usd and (1.0 - none_up) * left_s >= view.work_left_s:
            return spot.price
    return on_demand_usd


def is_dear(view: PolicyView, spot: Spot) -> bool:
    """Return whether a cheaper zone is worth waiting for. The held machine is kept: it already runs."""
    return spot.name != view.held and spot.price > TOLERANCE * needed_usd(view)


def without_dear(view: PolicyView) -> PolicyView:
    """Return the view in which spot machines that are too dear have no capacity."""
    limit = TOLERANCE * needed_usd(view)
    if all(spot.price <= limit for spot in view.spots):
        return view
    spots = (replace(spot, up=False) if spot.price > limit and spot.name != view.held else spot for spot in view.spots)
    return replace(view, spots=tuple(spots))
