"""Baseline policies for comparison: on demand only, greedy, and Uniform Progress. Pure.

Greedy and Uniform Progress follow the can't-be-late paper, in the form that the public benchmark scores: both stay on
demand once the time left does not exceed the work left plus their starts, in whole ticks.
"""

from __future__ import annotations

import math

from outlast.policy.decide import DEMAND, WAIT
from outlast.policy.replay import Policy, ReplayJob
from outlast.policy.view import ON_DEMAND, Choice, PolicyView

_ROUND = 1e-6


def on_demand_only(view: PolicyView) -> Choice:
    return DEMAND


def greedy(view: PolicyView) -> Choice:
    """Use spot whenever it is available and wait otherwise, until the deadline is near."""
    return _net(view, _spot(view) or WAIT)


def uniform_progress(job: ReplayJob) -> Policy:
    """Return a policy that keeps progress on a straight line from the start to the deadline."""

    def policy(view: PolicyView) -> Choice:
        spot = _spot(view)
        if view.time_left_s is None or job.deadline_s is None:
            return spot or WAIT
        done, passed = job.work_s - view.work_left_s, job.deadline_s - view.time_left_s
        rate = job.work_s / job.deadline_s
        choice = spot or (DEMAND if done < passed * rate - _ROUND else WAIT)
        ahead = done > (passed + 2 * view.on_demand.start_s) * rate + _ROUND
        if view.held == ON_DEMAND and (spot is None or not ahead):
            choice = DEMAND
        return _net(view, choice)

    return policy


def _spot(view: PolicyView) -> Choice | None:
    """Return the held spot machine, else the cheapest available one."""
    available = [spot for spot in view.spots if spot.up]
    if not available:
        return None
    return Choice("spot", min(available, key=lambda spot: (spot.name != view.held, spot.price)).name)


def _net(view: PolicyView, choice: Choice) -> Choice:
    if view.time_left_s is None:
        return choice
    interval, start = view.interval_s, view.on_demand.start_s
    left = math.floor(view.time_left_s / interval + _ROUND)
    on_spot = view.held not in ("", ON_DEMAND)
    if math.ceil((view.work_left_s + 2 * start) / interval - _ROUND) >= left and not on_spot:
        choice = DEMAND
    if math.ceil((view.work_left_s + start) / interval - _ROUND) >= left:
        choice = Choice("spot", view.held) if on_spot and view.start_left_s <= _ROUND else DEMAND
    return choice
