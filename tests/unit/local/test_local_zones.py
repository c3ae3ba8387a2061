"""Zones have capacity, conditions and prices."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.clouds.cloud import Range, Requirements
from outlast.clouds.local.cloud import LocalCloud
from outlast.clouds.local.zones import ZoneConditions, draw_life_s
from outlast.errors import BadRequest, Denied, NoCapacity
from outlast.spec.gpus import GpuChoice
from outlast.testing.cloud_conformance import MachineFactory, eventually

ZONE = "local2-b"  # the cheapest, so the first on offer

_RACER = """
import sys
from outlast.clouds.cloud import Boot, Requirements
from outlast.clouds.local.cloud import LocalCloud
from outlast.errors import NoCapacity
cloud = LocalCloud(sys.argv[1], mode="plain")
offer = cloud.offers(Requirements(zones=("local2-b",)))[0]
input()
for number in range(4):
    try:
        cloud.launch(offer, f"m-{sys.argv[2]}-{number}", boot=Boot(), labels={})
    except NoCapacity:
        pass
"""


def test_alternative_gpus_are_offered_each_with_its_number(plain_cloud: LocalCloud) -> None:
    needs = Requirements(gpu="A100", gpus=8, other_gpus=(GpuChoice("T4"), GpuChoice("16GB+")), zones=(ZONE,))
    found = [(offer.type, offer.gpus) for offer in plain_cloud.offers(needs)]
    assert found == [("local-4-t4", 1), ("local-8-v100", 1), ("local-12-a100", 1), ("local-96-a100", 8)]


def test_racing_launches_never_exceed_the_capacity(plain_cloud: LocalCloud) -> None:
    plain_cloud.set_zone(ZONE, capacity=3)
    command = [sys.executable, "-c", _RACER, plain_cloud.root]
    racers = [subprocess.Popen([*command, str(n)], stdin=subprocess.PIPE, text=True) for n in range(4)]
    for racer in racers:
        racer.communicate("go\n", timeout=30)
    assert [racer.returncode for racer in racers] == [0] * 4
    assert len(plain_cloud.machines()) == 3


def test_a_full_zone_refuses_launches_and_keeps_running_machines(
    plain_cloud: LocalCloud, plain_fleet: MachineFactory
) -> None:
    running, stopped = plain_fleet.launch().name, plain_fleet.launch().name
    plain_fleet.wait(running, "running")
    plain_cloud.stop(stopped)
    plain_cloud.set_zone(ZONE, capacity=0)
    with pytest.raises(NoCapacity, match=ZONE):
        plain_fleet.launch()
    with pytest.raises(NoCapacity, match=ZONE):
        plain_cloud.start(stopped)
    assert plain_cloud.machine(running).status == "running"
    assert plain_fleet.launch(running).status == "running"
    plain_cloud.set_zone(ZONE, capacity=None)
    plain_cloud.start(stopped)


def test_a_denied_zone_raises_its_message(plain_cloud: LocalCloud, plain_fleet: MachineFactory) -> None:
    plain_cloud.set_zone(ZONE, deny="project acme has no billing")
    with pytest.raises(Denied, match="project acme has no billing"):
        plain_fleet.launch()


def test_spot_machines_have_random_lifetimes(plain_cloud: LocalCloud, plain_fleet: MachineFactory) -> None:
    plain_cloud.set_zone(ZONE, mean_life_s=0.1, grace_s=0.1)
    name = plain_fleet.launch().name
    assert plain_fleet.wait(name, "stopped").why == "preempted"
    assert "notice: preempted, 0.1 s left" in plain_cloud.serial(name)


def test_a_mean_lifetime_applies_to_running_machines(plain_cloud: LocalCloud, plain_fleet: MachineFactory) -> None:
    spot, paid_in_full = plain_fleet.launch().name, plain_fleet.launch(spot=False).name
    for name in (spot, paid_in_full):
        plain_fleet.wait(name, "running")
    plain_cloud.set_zone(ZONE, mean_life_s=0.05, grace_s=0.0)
    plain_cloud.set_zone("local1-a", mean_life_s=0.05, grace_s=0.0)
    plain_fleet.wait(spot, "stopped")
    assert plain_cloud.machine(paid_in_full).status == "running"


def test_lifetimes_are_exponential() -> None:
    lives = [draw_life_s(10.0) for _ in range(4000)]
    assert 9 < sum(lives) / len(lives) < 11
    assert 0.58 < sum(life < 10.0 for life in lives) / len(lives) < 0.68


@pytest.mark.full
def test_an_outage_in_a_trace_preempts_machines_and_refuses_launches(
    plain_cloud: LocalCloud, plain_fleet: MachineFactory, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"gap_seconds": 600, "windows": {"5": "0" * 10 + "1" * 60}}))
    plain_cloud.set_zone(ZONE, grace_s=0.1, trace=str(trace), window="5", speed_up=6000)
    name = plain_fleet.launch().name
    assert plain_fleet.wait(name, "stopped").why == "preempted"
    with pytest.raises(NoCapacity, match=ZONE):
        plain_fleet.launch()
    plain_fleet.launch(offer=plain_cloud.offers(Requirements(zones=(ZONE,), spot=False))[0])

    def works_again() -> bool:
        try:
            return bool(plain_fleet.launch())
        except NoCapacity:
            return False

    eventually("the trace wraps around", works_again, patience_s=30.0)


def test_a_trace_has_a_next_outage() -> None:
    trace = {"ticks": "0010", "gap_s": 10.0, "speed_up": 2.0, "started_at": 100.0}
    conditions = ZoneConditions({"trace": trace})
    assert conditions.outage_at(100.0) == 110.0
    assert conditions.outage_at(112.0) == 112.0
    assert conditions.outage_at(115.0) == 130.0
    assert conditions.is_out(112.0)
    assert not conditions.is_out(116.0)
    assert ZoneConditions({"trace": {**trace, "ticks": "000"}}).outage_at(0.0) is None


def test_an_unusable_trace_or_zone_is_refused(plain_cloud: LocalCloud, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="nowhere"):
        plain_cloud.set_zone(ZONE, trace=str(tmp_path / "nowhere.json"))
    (tmp_path / "t.json").write_text('{"gap_seconds": 1, "windows": {"0": "01"}}')
    with pytest.raises(BadRequest, match="7"):
        plain_cloud.set_zone(ZONE, trace=str(tmp_path / "t.json"), window="7")
    with pytest.raises(BadRequest, match="local9-a") as refusal:
        plain_cloud.set_zone("local9-a", capacity=1)
    assert "local1-a" in refusal.value.hint
    assert plain_cloud.zone_settings()[ZONE] == {}


def test_gpus_are_offered_on_request(plain_cloud: LocalCloud) -> None:
    assert {offer.type for offer in plain_cloud.offers(Requirements(gpu="t4", gpus=1))} == {"local-4-t4"}
    assert {offer.type for offer in plain_cloud.offers(Requirements(gpu="A100"))} == {"local-12-a100", "local-96-a100"}
    assert {offer.type for offer in plain_cloud.offers(Requirements(gpu="A100", gpus=8))} == {"local-96-a100"}
    assert not any(offer.gpu for offer in plain_cloud.offers(Requirements()))
    assert {offer.cpus for offer in plain_cloud.offers(Requirements(memory_gb=Range(low=200)))} == {64}
