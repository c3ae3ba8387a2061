"""Builders of worlds for tests."""

from __future__ import annotations

from typing import Any

import msgspec

from outlast.clouds.cloud import LABEL_ATTEMPT, LABEL_RUN, LABEL_WORKSPACE, Machine, Offer
from outlast.runs import events as ev
from outlast.runs.events import Event
from outlast.runs.state import fold
from outlast.spec.parse import parse
from outlast.spec.spec import Spec
from outlast.supervisor.world import RunView, Step, World, describe

NOW = 1000.0


def spec(**table: Any) -> Spec:
    return parse({"name": "run", "command": "true", **table})


def offer(zone: str = "here-a", *, price: float = 1.0, spot: bool = True, type: str = "small") -> Offer:
    return Offer(
        cloud="local",
        region=zone.rsplit("-", 1)[0],
        zone=zone,
        type=type,
        cpus=1,
        memory_gb=4,
        spot=spot,
        price_usd_per_hour=price,
    )


OFFERS = (offer("here-a", price=1.0), offer("here-b", price=1.1), offer("there-a", price=1.2))
ON_DEMAND = (offer("here-a", price=4.0, spot=False), offer("here-b", price=4.1, spot=False))


def placed(attempt: int, zone: str = "here-a", at: float = 900.0, *, spot: bool = True) -> ev.Placed:
    return ev.Placed(
        attempt=attempt,
        cloud="local",
        region=zone.rsplit("-", 1)[0],
        zone=zone,
        type="small",
        spot=spot,
        price_usd_per_hour=1.0,
        machine=f"run-1-a{attempt}",
        at=at,
    )


def machine(
    attempt: int, status: str = "running", *, run: str = "run-1", why: str = "", zone: str = "here-a"
) -> Machine:
    return msgspec.convert(
        {
            "name": f"{run}-a{attempt}",
            "cloud": "local",
            "zone": zone,
            "type": "small",
            "spot": True,
            "status": status,
            "labels": {LABEL_WORKSPACE: "ws", LABEL_RUN: run, LABEL_ATTEMPT: str(attempt)},
            "created_at": 900.0,
            "seen_at": 995.0,
            "price_usd_per_hour": 1.0,
            "why": why,
        },
        Machine,
    )


def view(*events: Event, run: str = "run-1", silent_s: float = 0.0, **fields: Any) -> RunView:
    story: list[Event] = [ev.Submitted(at=890.0), *events]
    return RunView(
        run=run,
        spec=fields.pop("spec", spec()),
        state=fold(story),
        silent_s=silent_s,
        spot_offers=fields.pop("spot_offers", OFFERS),
        on_demand_offers=fields.pop("on_demand_offers", ON_DEMAND),
        **fields,
    )


def world(*views: RunView, machines: list[Machine] | None = None, **fields: Any) -> World:
    cooldowns = fields.pop("cooldowns", {})
    for seen in views:
        cooldowns = {**seen.state.cooldowns, **cooldowns}
    return World(
        now=NOW,
        workspace_id="ws",
        runs=views,
        machines={m.name: m for m in machines or []},
        cooldowns=cooldowns,
        **fields,
    )


def described(steps: tuple[Step, ...]) -> list[str]:
    return [describe(step) for step in steps]
