"""Why a run waits: what each zone answered, when it is tried next, and what would help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.home import Home

from outlast.app.waiting import WaitingPlace, advice, waiting_of
from outlast.clouds.cloud import Offer
from outlast.code.record import CodeRecord
from outlast.errors import OutlastError
from outlast.runs import events as ev
from outlast.runs.state import RunState
from outlast.spec.parse import parse
from outlast.supervisor.world import RunView

PLACE = WaitingPlace(zone="z", type="t", spot=True, price_usd_per_hour=1.0)


def test_refusals_prices_and_the_next_request_are_known_by_zone(tmp_path: Path) -> None:
    home = Home(tmp_path)
    workspace = home.workspace
    run = workspace.reserve(parse({"name": "x", "command": "true"}), CodeRecord(), who="ada", version="0").run
    offers = home.cloud.offers(parse({"name": "x", "command": "x"}).machine.needs(spot=True))
    refused = min(offers, key=lambda offer: offer.bills_usd_per_hour)
    keys = tuple(offer.key for offer in offers if offer.zone == refused.zone)
    now = workspace.clock()
    placed = ev.Placed(
        attempt=1, cloud="local", region=refused.region, zone=refused.zone, type=refused.type, spot=True,
        price_usd_per_hour=1.0, at=now,
    )  # fmt: skip
    answer = ev.LaunchRefused(attempt=1, why="no capacity", until=now + 900, offers=keys, at=now)
    for event in (ev.Submitted(who="ada", at=now), placed, answer):
        workspace.story(run).append_or_raise(event, nonce=workspace.ids())
    workspace.wake(run)
    found = waiting_of(workspace, run)
    first, *rest = found.places
    assert (first.zone, first.news, first.news_at) == (refused.zone, "refused: no capacity", now)
    assert first.until == pytest.approx(now + 900)
    assert first.price_usd_per_hour == refused.bills_usd_per_hour
    assert rest
    assert all(place.until == 0 and not place.news for place in rest if place.zone != refused.zone)
    assert found.next_at == 0  # other zones may be requested now
    workspace.story(run).append_or_raise(ev.Cancelled(who="ada", at=now), nonce="c")
    with pytest.raises(OutlastError, match="does not wait"):
        waiting_of(workspace, run)


@pytest.mark.parametrize(
    ("machine", "limits", "texts"),
    [
        ({}, {}, ["fallback = true", "deadline"]),
        ({"fallback": True}, {}, ["deadline"]),
        ({}, {"deadline": "2h", "work": "1h"}, ["fallback = true"]),
        ({"spot": False}, {}, []),
        ({"spot": False, "zones": ["z"]}, {}, ["allows z only"]),
        ({"spot": False, "type": "t"}, {}, ["allows t only"]),
    ],
)
def test_advice_names_what_the_run_does_not_use_yet(
    machine: dict[str, Any], limits: dict[str, Any], texts: list[str]
) -> None:
    spec = parse({"name": "x", "command": "true", "machine": {"cloud": "gcp", **machine}, "limits": limits})
    offer = Offer(
        cloud="gcp", region="r", zone="z", type="t", cpus=1, memory_gb=1, spot=True, price_usd_per_hour=1.0,
        on_demand_usd_per_hour=3.0,
    )  # fmt: skip
    found = advice(RunView(run="x-1", spec=spec, state=RunState(), spot_offers=(offer,)), [PLACE])
    assert len(found) == len(texts), found
    assert all(text in one for text, one in zip(texts, found, strict=True))


def test_an_impossible_machine_has_one_advice() -> None:
    view = RunView(run="x-1", spec=parse({"name": "x", "command": "true"}), state=RunState())
    assert advice(view, []) == ("no machine fits `[machine]`: see `outlast prices`",)
