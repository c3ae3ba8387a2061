"""The machine that supervises, killed while it makes sure that nothing is left to do."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from outlast.clouds.cloud import LABEL_HAND, Machine
from outlast.clouds.local.cloud import LocalCloud
from outlast.supervisor.station import Station
from outlast.workspace.hand import Hand, Hands, mark_of_this_process, supervisor_name
from outlast.workspace.workspace import open_workspace


def stationed(name: str) -> Machine:
    return Machine(
        name=name,
        cloud="local",
        zone="local1-a",
        type="local-1",
        spot=False,
        status="running",
        labels={LABEL_HAND: "1"},
        created_at=0.0,
        price_usd_per_hour=0.01,
    )


@pytest.mark.parametrize(
    ("by", "until_idle", "stays"),
    [
        pytest.param("", True, True, id="by one that died here while it looked a last time"),
        pytest.param("laptop:7.1", True, False, id="by somebody who called it off from elsewhere"),
        pytest.param("", False, False, id="though it was to stay until it is called off"),
    ],
)
def test_a_supervisor_that_finds_its_machine_about_to_go_stays_if_that_may_have_been_taken_back(
    tmp_path: Path, by: str, until_idle: bool, stays: bool
) -> None:
    workspace = open_workspace(str(tmp_path / "workspace"))
    hands, name = Hands(workspace), supervisor_name(workspace)
    hand = Hand(name=name, id="1", cloud="local", phase="deleting", until_idle=until_idle)
    hand = msgspec.structs.replace(hand, by=by or mark_of_this_process())
    workspace.bucket.put(f"machines/{name}.json", msgspec.json.encode(hand))
    machine = stationed(name)
    clouds = {"local": LocalCloud(str(tmp_path / "cloud"))}
    told_to_stop = threading.Event()
    told_to_stop.set()
    assert Station(workspace, clouds, machine, say=lambda _: None).serve(told_to_stop) is stays
    found = hands.find(name)
    assert found is not None
    assert found.phase == ("ready" if stays else "deleting")


def test_whoever_takes_up_a_last_look_waits_for_no_first_run_again(tmp_path: Path) -> None:
    workspace = open_workspace(str(tmp_path / "workspace"))
    name = supervisor_name(workspace)
    hand = Hand(name=name, id="1", cloud="local", phase="deleting", until_idle=True, by=mark_of_this_process())
    workspace.bucket.put(f"machines/{name}.json", msgspec.json.encode(hand))
    clouds = {"local": LocalCloud(str(tmp_path / "cloud"))}
    given_up = threading.Event()
    patience = threading.Timer(30.0, given_up.set)
    patience.start()
    stays = Station(workspace, clouds, stationed(name), say=lambda _: None).serve(given_up)
    patience.cancel()
    assert not stays, "it is done at once"
