"""`[machine] gpu = ["H100", "T4:2"]`: which alternative the next attempt gets."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.plan.worlds import NOW, placed, spec, view, world

from outlast.app.choice import ranked
from outlast.clouds.cloud import Offer
from outlast.runs import events as ev
from outlast.runs.events import Event
from outlast.supervisor.plan import plan
from outlast.supervisor.world import Launch, PlaceAttempt, RunView, Wait, gpu_key, region_key

GPUS = ["H100", "T4:2", "T4"]
HOUR = 3600.0


def offer(gpu: str, gpus: int, zone: str = "here-a", *, price: float, type: str = "n1", spot: bool = True) -> Offer:
    return Offer(
        cloud="local",
        region=zone[:-2],
        zone=zone,
        type=type,
        cpus=4,
        memory_gb=15,
        gpu=gpu,
        gpus=gpus,
        spot=spot,
        price_usd_per_hour=price,
    )


H100, PAIR, ONE = offer("H100", 1, price=9.0, type="a3"), offer("T4", 2, price=2.0), offer("T4", 1, price=1.0)
OFFERS = (ONE, PAIR, H100)


def run(*events: Event, offers: tuple[Offer, ...] = OFFERS, **table: object) -> RunView:
    on_demand = tuple(msgspec.structs.replace(one, spot=False, price_usd_per_hour=20.0) for one in offers)
    machine = {"gpu": GPUS}
    return view(*events, spec=spec(machine=machine, **table), spot_offers=offers, on_demand_offers=on_demand)


def refused(attempt: int, of: Offer, key: str = "") -> tuple[Event, Event]:
    asked = msgspec.structs.replace(placed(attempt, of.zone), type=of.type, gpu=of.gpu, gpus=of.gpus)
    keys = (of.key, key or gpu_key(of))
    return asked, ev.LaunchRefused(attempt=attempt, why="none", until=NOW + 60, offers=keys, at=950.0)


def next_of(seen: RunView) -> Offer:
    (step,) = plan(world(seen))
    assert isinstance(step, PlaceAttempt)
    return step.offer


def test_the_first_alternative_is_taken_whatever_it_costs() -> None:
    assert next_of(run()) == H100
    assert ranked(run().spec.machine, OFFERS) == [H100, PAIR, ONE], "the same order as `outlast run` shows"


@pytest.mark.parametrize("key", [gpu_key, region_key])
def test_a_refusal_of_one_alternative_leaves_the_next_one_of_the_same_zone(key: object) -> None:
    assert callable(key)
    first, second = refused(1, H100, key(H100)), refused(2, PAIR)
    assert next_of(run(*first)) == PAIR
    # Where two GPUs are not to be had, one may be.
    assert next_of(run(*first, *second)) == ONE
    (step,) = plan(world(run(*first, *second, *refused(3, ONE))))
    assert isinstance(step, Wait)


def test_another_zone_of_the_first_alternative_comes_before_the_second() -> None:
    elsewhere = offer("H100", 1, "there-a", price=11.0, type="a3")
    assert next_of(run(*refused(1, H100), offers=(*OFFERS, elsewhere))) == elsewhere


def test_prices_choose_among_the_machines_of_one_alternative() -> None:
    cheaper, dear = offer("H100", 1, "there-a", price=7.0, type="a3"), offer("H100", 1, price=20.0, type="a4")
    assert next_of(run(offers=(dear, *OFFERS, cheaper))) == cheaper
    assert dear not in ranked(run().spec.machine, [dear, *OFFERS])


def test_a_type_that_can_have_several_gpus_is_launched_with_those_of_the_attempt() -> None:
    for wanted in (PAIR, ONE):
        asked = msgspec.structs.replace(placed(1), type="n1", gpu="T4", gpus=wanted.gpus)
        for offers in (OFFERS, OFFERS[::-1]):
            (step,) = plan(world(run(asked, offers=offers)))
            assert isinstance(step, Launch)
            assert step.offer == wanted


def test_with_a_deadline_the_price_decides_among_those_that_are_not_refused() -> None:
    limits = {"deadline": 9 * HOUR, "work": HOUR}
    assert next_of(run(limits=limits, checkpoint={"path": "c"})) == ONE
    assert next_of(run(*refused(1, ONE), limits=limits, checkpoint={"path": "c"})) == PAIR
    same = msgspec.structs.replace(PAIR, price_usd_per_hour=1.0)
    assert next_of(run(limits=limits, checkpoint={"path": "c"}, offers=(ONE, same))) == same
