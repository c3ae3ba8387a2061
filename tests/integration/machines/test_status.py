"""The status of machines: drift, cost, unreachable clouds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from outlast.errors import CloudUnreachable
from outlast.machines.packages import changes
from outlast.machines.status import collect_status, cost_usd, drift
from outlast.records.machines import Facts, MachineRecord
from tests.support.machines import Bench

BORN = Facts(type="small", disk_gb=10.0, image="env-1", labels={"team": "ada"}, metadata={"colour": "blue"})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"type": "large"}, ["type: small → large"]),
        ({"disk_gb": 20.0}, ["disk: 10 GB → 20 GB"]),
        ({"image": "env-2"}, ["image: env-1 → env-2"]),
        ({"labels": {}}, ["label team: removed"]),
        ({"labels": {"team": "bob"}}, ["label team: ada → bob"]),
        ({"metadata": {"colour": "blue", "size": "big"}}, ["metadata size: added"]),
        ({"metadata": {"colour": "x" * 99}}, [f"metadata colour: blue → {'x' * 29}…"]),
    ],
)
def test_drift_is_described(change: dict[str, Any], expected: list[str]) -> None:
    assert list(drift(BORN, msgspec.structs.replace(BORN, **change))) == expected


def test_packages_are_compared_per_package_manager() -> None:
    before = {"dpkg": {"git": "1", "vim": "1"}, "pip": {"numpy": "1.0"}}
    after = {"dpkg": {"git": "2"}, "pip": {"numpy": "1.0", "torch": "2.0"}}
    assert list(changes(before, after)) == ["dpkg git: 1 → 2", "dpkg vim 1: removed", "pip torch 2.0: installed"]


def test_the_cost_under_earlier_types_is_added() -> None:
    machine_record = MachineRecord(name="box", id="i", cloud="local", extra_usd=2.0)
    assert cost_usd(None, machine_record) == 2.0
    assert cost_usd(None, None) == 0.0


def test_an_unreachable_cloud_is_named_and_its_machines_do_not_count_as_gone(bench: Bench) -> None:
    bench.machine()

    class Away:
        name = "away"

        def machines(self) -> Any:
            raise CloudUnreachable("no line")

    bench.machine_records.create(MachineRecord(name="far", id="f", cloud="away", phase="ready"))
    bench.machine_records.create(MachineRecord(name="lost", id="l", cloud="local", phase="ready"))
    clouds: Any = {"local": bench.cloud, "away": Away()}
    sights, unreachable = collect_status(clouds, bench.machine_records)
    assert unreachable == {"away": "no line"}
    assert {sight.name: sight.status for sight in sights} == {"box": "running", "lost": "gone"}
