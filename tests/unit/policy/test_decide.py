"""Single decisions with their reasons and sentences."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outlast.policy import OnDemand, PolicyView, Spot, decide, explain

HOUR = 3600.0
UP = Spot(name="here", price=1.0, up=True, age_s=HOUR, start_s=60.0, ups=1, up_s=HOUR, seen_s=HOUR)
DOWN = replace(UP, up=False)
JOB = PolicyView(
    work_left_s=10 * HOUR,
    time_left_s=14 * HOUR,
    on_demand=OnDemand(price=3.0, start_s=60.0),
    spots=(UP,),
)


def chosen(view: PolicyView) -> str:
    choice = decide(view)
    explanation = explain(view)
    assert explanation.choice == choice
    assert sum(option.chosen for option in explanation.options) == 1
    assert explanation.sentence
    return choice.place or choice.kind


def test_uses_spot_where_it_is_available() -> None:
    assert chosen(JOB) == "here"


def test_waits_while_there_is_time_to_spare() -> None:
    assert chosen(replace(JOB, spots=(DOWN,))) == "wait"


def test_goes_on_demand_before_the_reserve_is_touched() -> None:
    assert chosen(replace(JOB, spots=(DOWN,), time_left_s=10.5 * HOUR)) == "on demand"


def test_goes_on_demand_when_the_loss_of_a_spot_machine_could_miss_the_deadline() -> None:
    assert chosen(replace(JOB, time_left_s=10 * HOUR + 100.0)) == "on demand"


def test_stays_on_spot_with_no_more_slack_than_a_start_on_demand_needs() -> None:
    assert chosen(replace(JOB, held="here", time_left_s=10 * HOUR + 60.0)) == "here"


def test_leaves_on_demand_only_for_a_spot_machine_that_pays_for_the_move() -> None:
    old = replace(JOB, held="on demand")
    assert chosen(old) == "here"
    blip = replace(UP, age_s=0.0, ups=500, start_s=600.0)
    assert chosen(replace(old, spots=(blip,))) == "on demand"


def test_prefers_the_spot_machine_that_has_lived_longer() -> None:
    young = replace(UP, name="young", age_s=0.0)
    assert chosen(replace(JOB, spots=(young, UP))) == "here"


def test_transfer_costs_can_make_the_cheaper_zone_more_expensive() -> None:
    far = replace(UP, name="far", price=0.9, move_usd=50.0)
    assert chosen(replace(JOB, spots=(far, UP))) == "here"
    assert chosen(replace(JOB, spots=(replace(far, move_usd=0.0), UP))) == "far"


def test_does_not_move_between_zones_with_similar_prices() -> None:
    rival = replace(UP, name="rival", price=0.95, age_s=100 * HOUR)
    assert chosen(replace(JOB, spots=(UP, rival), held="here")) == "here"
    bargain = replace(rival, price=0.1)
    assert chosen(replace(JOB, spots=(UP, bargain), held="here")) == "rival"


def test_unsaved_work_counts_as_lost_with_the_machine() -> None:
    tight = replace(JOB, time_left_s=11 * HOUR)
    assert chosen(tight) == "here"
    assert chosen(replace(tight, unsaved_s=1.5 * HOUR)) == "on demand"


def test_does_not_wait_for_spot_above_the_on_demand_price() -> None:
    assert chosen(replace(JOB, spots=(replace(DOWN, price=3.5),))) == "on demand"


def test_without_a_deadline_it_waits_for_the_cheapest_progress() -> None:
    free = replace(JOB, time_left_s=None)
    assert chosen(replace(free, spots=(DOWN,))) == "wait"
    assert chosen(free) == "here"


def test_without_a_deadline_machines_with_short_lives_are_not_chosen() -> None:
    hopeless = replace(UP, up=False, ups=1000, up_s=1000 * 30.0, start_s=600.0)
    assert chosen(replace(JOB, time_left_s=None, spots=(hopeless,))) == "on demand"


@pytest.mark.parametrize("left", [-5.0, 0.0, 10.0])
def test_an_impossible_deadline_is_missed_by_as_little_as_possible(left: float) -> None:
    late = replace(JOB, time_left_s=left)
    assert chosen(late) == "on demand"
    assert "can no longer be met" in explain(late).sentence


def test_work_that_is_done_needs_no_machine() -> None:
    assert chosen(replace(JOB, work_left_s=0.0)) == "wait"


CHEAP = replace(DOWN, name="cheap", price=0.5, up_s=20 * HOUR, seen_s=24 * HOUR)
DEAR = replace(UP, name="dear", price=2.2)


def test_waits_for_a_cheap_zone_that_is_often_available_instead_of_taking_an_expensive_one() -> None:
    roomy = replace(JOB, time_left_s=20 * HOUR, spots=(CHEAP, DEAR))
    assert chosen(roomy) == "wait"
    assert "a cheaper spot machine" in explain(roomy).sentence
    notes = {option.name: option.note for option in explain(roomy).options}
    assert notes["dear"] == "expensive: zones up to $0.5 an hour should be enough"


def test_takes_an_expensive_zone_if_the_cheap_ones_may_not_finish_the_work_in_time() -> None:
    assert chosen(replace(JOB, time_left_s=11.5 * HOUR, spots=(CHEAP, DEAR))) == "dear"
    rare = replace(CHEAP, up_s=HOUR)
    assert chosen(replace(JOB, time_left_s=20 * HOUR, spots=(rare, DEAR))) == "dear"


def test_an_expensive_spot_machine_is_taken_before_an_on_demand_machine() -> None:
    late = replace(JOB, time_left_s=10.5 * HOUR, spots=(replace(CHEAP, up_s=24 * HOUR), DEAR))
    assert chosen(late) == "dear"


def test_without_a_deadline_every_spot_machine_below_the_on_demand_price_is_welcome() -> None:
    assert chosen(replace(JOB, time_left_s=None, spots=(CHEAP, DEAR))) == "dear"
