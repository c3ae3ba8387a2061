"""Machines start near the data, and a cloud that chooses among pools is followed by the story."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.plan.worlds import NOW, machine, offer, placed, spec, view, world

from outlast.clouds.cloud import Offer
from outlast.runs import events as ev
from outlast.runs.state import fold
from outlast.spec.spec import Spec
from outlast.supervisor.choose import other_pools
from outlast.supervisor.plan import plan
from outlast.supervisor.world import Launch, Locate, MarkLost, PlaceAttempt, RunView

HOME, NEAR, FAR = (
    offer("us-east1-a", price=1.0),
    offer("us-west1-a", price=0.5),
    offer("europe-west4-a", price=0.1),
)


def near(location: str, **table: object) -> Spec:
    found = spec(**table)
    return msgspec.structs.replace(found, machine=msgspec.structs.replace(found.machine, near=location))


def zone_of(seen: RunView, **fields: object) -> str:
    (step,) = plan(world(seen, **fields))  # type: ignore[arg-type]
    assert isinstance(step, PlaceAttempt)
    return step.offer.zone


def test_the_datas_region_comes_first_then_its_continent_whatever_the_price() -> None:
    offers = (FAR, NEAR, HOME)
    assert zone_of(view(spec=near("us-east1"), spot_offers=offers)) == "us-east1-a"
    full = {one.key: NOW + 60 for one in (HOME,)}
    assert zone_of(view(spec=near("us-east1"), spot_offers=offers), cooldowns=full) == "us-west1-a"
    full = {one.key: NOW + 60 for one in (HOME, NEAR)}
    assert zone_of(view(spec=near("us-east1"), spot_offers=offers), cooldowns=full) == "europe-west4-a"
    assert zone_of(view(spec=near("EU"), spot_offers=offers)) == "europe-west4-a"


def test_without_a_location_the_cheapest_is_used_and_zones_of_the_user_precede_it() -> None:
    assert zone_of(view(spot_offers=(FAR, NEAR, HOME))) == "europe-west4-a"
    mine = near("us-east1", machine={"zones": ["us-west1", "*"]})
    assert zone_of(view(spec=mine, spot_offers=(FAR, NEAR, HOME))) == "us-west1-a"


def test_traffic_is_part_of_the_price_of_equally_near_machines() -> None:
    """In a bucket of several regions none of them is the nearest: the one with cheaper traffic wins at equal prices."""
    saved = ev.Saved(attempt=1, checkpoint="c1", bytes=50 * 10**9, sent_bytes=50 * 10**9, at=940.0)
    events = (placed(1), ev.Started(attempt=1, at=905.0), saved, ev.Lost(attempt=1, why="gone", at=950.0))
    gcp, aws = (
        msgspec.structs.replace(offer("us-east1-b", price=1.0), cloud="gcp"),
        msgspec.structs.replace(offer("us-east-1b", price=0.9), cloud="aws", region="us-east-1"),
    )
    both = near("us-east1", machine={"cloud": ["aws", "gcp"], "cpus": "1+", "memory": "1GB+"})
    seen = view(*events, spec=both, spot_offers=(aws, gcp), on_demand_offers=())
    from outlast.supervisor.deadline import progress_usd

    here = world(seen, workspace_url="gs://box/ws")
    assert progress_usd(here, seen, gcp) < 1.2
    assert progress_usd(here, seen, aws) > 100.0, "50 GB in 35 seconds, at 0.09 dollars each"


POOLS = (
    offer("us-east1-a", price=1.0),
    offer("us-east1-b", price=1.2),
    offer("us-east1-c", price=1.3),
    offer("us-west1-a", price=1.0),
    offer("us-east1-b", price=1.1, type="large"),
)


def pool(one: Offer) -> ev.Pool:
    return ev.Pool(one.zone, one.type, one.price_usd_per_hour, one.on_demand_usd_per_hour)


def test_other_pools_are_of_the_same_region_and_not_much_dearer() -> None:
    seen = view(spot_offers=POOLS)
    found = other_pools(world(seen), seen, POOLS[0])
    assert [(one.zone, one.type) for one in found] == [("us-east1-b", "small"), ("us-east1-b", "large")]
    rests = world(seen, cooldowns={POOLS[1].key: NOW + 60})
    assert [one.type for one in other_pools(rests, seen, POOLS[0])] == ["large"]
    silent = world(seen, unreachable={"local/us-east1-b": "no answer"})
    assert other_pools(silent, seen, POOLS[0]) == ()
    assert other_pools(world(seen), seen, offer("us-east1-a", spot=False)) == ()


@pytest.mark.parametrize(
    ("zones", "expected"),
    [
        (["us-east1-a", "us-east1-b"], []),
        (["us-east1-a", "*"], []),
        (["us-east1", "*"], ["us-east1-b", "us-east1-b"]),
        (["us-west1", "*"], ["us-east1-b", "us-east1-b"]),
    ],
)
def test_other_pools_do_not_include_zones_that_the_user_prefers_less(zones: list[str], expected: list[str]) -> None:
    seen = view(spec=spec(machine={"zones": zones}), spot_offers=POOLS)
    assert [one.zone for one in other_pools(world(seen), seen, POOLS[0])] == expected


INTENT = msgspec.structs.replace(placed(1, "us-east1-a"), pools=(pool(POOLS[1]), pool(POOLS[4])))


def test_a_launch_has_the_pools_and_the_prices_of_the_story() -> None:
    dearer = tuple(msgspec.structs.replace(one, price_usd_per_hour=9.0) for one in POOLS)
    (step,) = plan(world(view(INTENT, spot_offers=dearer)))
    assert isinstance(step, Launch)
    offers = [step.offer, *step.others]
    assert [(one.zone, one.price_usd_per_hour) for one in offers] == [
        *(("us-east1-a", 1.0), ("us-east1-b", 1.2), ("us-east1-b", 1.1)),
    ]
    (step,) = plan(world(view(INTENT, spot_offers=POOLS[1:])))
    assert isinstance(step, Launch), "the first pool was withdrawn, the others were not"
    (step,) = plan(world(view(INTENT, spot_offers=POOLS[2:4])))
    assert isinstance(step, MarkLost)


@pytest.mark.parametrize("events", [(), (ev.Started(attempt=1, at=905.0),)])
def test_the_story_follows_the_pool_that_the_cloud_chose(events: tuple[ev.Event, ...]) -> None:
    seen = view(INTENT, *events, spot_offers=POOLS)
    there = machine(1, zone="us-east1-b")
    (step,) = plan(world(seen, machines=[there]))
    assert isinstance(step, Locate)
    assert step.pool == pool(POOLS[1])
    located = ev.Located(
        attempt=1, zone="us-east1-b", type="small", price_usd_per_hour=1.2, on_demand_usd_per_hour=3.0, at=910.0
    )
    after = view(INTENT, *events, located, spot_offers=POOLS)
    assert plan(world(after, machines=[there])) == ()
    attempt = after.state.attempts[0]
    assert (attempt.zone, attempt.price_usd_per_hour, attempt.pools) == ("us-east1-b", 1.2, ())


def test_a_machine_in_the_first_pool_needs_no_event() -> None:
    assert plan(world(view(INTENT, spot_offers=POOLS), machines=[machine(1, zone="us-east1-a")])) == ()


def test_an_attempt_that_is_over_is_not_located() -> None:
    story = [ev.Submitted(at=890.0), INTENT, ev.Lost(attempt=1, why="gone", at=950.0)]
    state = fold(story)
    assert not any(isinstance(step, Locate) for step in plan(world(view(*story[1:]), machines=[machine(1)])))
    assert state.attempts[0].asked("us-east1-b", "large")
    assert not state.attempts[0].asked("us-west1-a", "small")
