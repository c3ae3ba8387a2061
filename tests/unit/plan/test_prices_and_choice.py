"""Spot machines that cost nearly as much as on demand, and views of the policy with figures that are no numbers."""

from __future__ import annotations

import math

import msgspec
import pytest
from tests.unit.plan.worlds import offer, view, world

from outlast.clouds.cloud import Offer
from outlast.policy.explain import explain
from outlast.policy.view import OnDemand, PolicyView, Spot
from outlast.spec.quantity import gpu_count
from outlast.supervisor.choose import worth_a_preemption


@pytest.mark.parametrize(("price", "spot"), [(3.0, True), (3.7, True), (3.9, False), (4.0, False)])
def test_spot_that_costs_nearly_as_much_as_on_demand_is_not_worth_a_preemption(price: float, spot: bool) -> None:
    dear = msgspec.structs.replace(offer(price=price), on_demand_usd_per_hour=4.0)
    [found] = worth_a_preemption(world(), view(), (dear,))
    assert isinstance(found, Offer)
    assert found.spot is spot
    assert found.price_usd_per_hour == (price if spot else 4.0)


def test_a_spot_machine_without_a_known_on_demand_price_stays() -> None:
    assert worth_a_preemption(world(), view(), (offer(price=3.9),)) == (offer(price=3.9),)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("field", ["work_left_s", "time_left_s", "start_left_s", "interval_s", "unsaved_s"])
def test_explain_survives_figures_that_are_no_numbers(field: str, bad: float) -> None:
    usual = {
        "work_left_s": 3600.0,
        "time_left_s": 7200.0,
        "on_demand": OnDemand(price=3.0, start_s=60.0),
        "spots": (Spot(name="a", price=1.0, up=True), Spot(name="b", price=bad, up=True, age_s=bad)),
    }
    found = explain(PolicyView(**{**usual, field: bad}))  # type: ignore[arg-type]
    assert found.sentence
    assert "nan" not in found.sentence
    assert "b" not in [option.name for option in found.options]


def test_a_gpu_is_requested_by_its_memory() -> None:
    assert gpu_count("24GB+") == ("24GB+", 1)
    assert gpu_count("80gb+:8") == ("80GB+", 8)
    with pytest.raises(ValueError, match="24GB"):
        gpu_count("24GB")
