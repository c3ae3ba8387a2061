"""`outlast local` shows and changes zone conditions, and lists and deletes machines."""

from __future__ import annotations

import json

import pytest

from outlast.clouds.cloud import LABEL_ATTEMPT, LABEL_RUN, Boot, Requirements
from outlast.clouds.local.cloud import LocalCloud
from tests.integration.cli.console import Console
from tests.support.waiting import eventually


@pytest.fixture
def machine(console: Console) -> str:
    cloud = LocalCloud(str(console.cloud))
    labels = {LABEL_RUN: "census-7", LABEL_ATTEMPT: "2"}
    offer = cloud.offers(Requirements(zones=("local1-a",)))[0]
    return cloud.launch(offer, "census-7-a2", boot=Boot(script="echo hello from inside"), labels=labels).name


def test_lists_the_zones_of_a_cloud_that_was_never_used(console: Console) -> None:
    lines = console.well("local", "zones").splitlines()
    assert lines[0].split()[:3] == ["ZONE", "CAPACITY", "RUNNING"]
    assert len(lines) == 6
    zone = console.json("local", "zones")[0]
    assert zone["zone"] == "local1-a"
    assert zone["capacity"] is None
    low, high = zone["spot_usd_per_hour"]
    assert 0 < low < high < zone["on_demand_usd_per_hour"][1]


def test_sets_and_removes_named_settings(console: Console) -> None:
    console.well("local", "set", "local1-a", "--capacity", "2", "--mean-life", "10m", "--grace", "5s")
    console.well("local", "set", "local1-a", "--grace", "none")
    found = {zone["zone"]: zone for zone in console.json("local", "zones")}
    assert (found["local1-a"]["capacity"], found["local1-a"]["mean_life_s"]) == (2, 600.0)
    assert found["local1-a"]["grace_s"] == 30.0
    assert found["local1-b"]["capacity"] is None


def test_sets_all_zones_at_once(console: Console) -> None:
    console.well("local", "set", "all", "--capacity", "0")
    assert [zone["capacity"] for zone in console.json("local", "zones")] == [0] * 5


def test_replays_a_trace_and_shows_it(console: Console) -> None:
    (console.folder / "trace.json").write_text(json.dumps({"gap_seconds": 600, "windows": {"7": "1"}}))
    console.well("local", "set", "local1-b", "--trace", "trace.json", "--window", "7", "--speed-up", "60")
    zone = console.json("local", "zones")[1]
    assert zone["outage"]
    assert (zone["trace"]["window"], zone["trace"]["speed_up"]) == ("7", 60.0)
    assert "ticks" not in zone["trace"]
    assert "trace.json window 7, x60, no capacity now" in console.well("local", "zones")
    console.well("local", "set", "local1-b", "--trace", "none")
    assert console.json("local", "zones")[1]["trace"] is None


def test_replays_a_trace_of_counts(console: Console) -> None:
    (console.folder / "counts.json").write_text(json.dumps({"metadata": {"gap_seconds": 300}, "data": [0, 1]}))
    answer = console.run("local", "set", "local1-b", "--trace", "counts.json")
    assert answer.returncode == 2
    assert "--ones machines" in answer.stderr
    console.well("local", "set", "local1-b", "--trace", "counts.json", "--ones", "machines")
    assert console.json("local", "zones")[1]["outage"]
    console.well("local", "set", "local1-b", "--trace", "counts.json", "--ones", "none")
    assert not console.json("local", "zones")[1]["outage"]


@pytest.mark.parametrize(
    ("argv", "result"),
    [
        (["local9-z", "--capacity", "1"], "local9-z"),
        (["local1-a"], "no setting given"),
        (["local1-a", "--capacity", "-1"], "--capacity"),
        (["local1-a", "--capacity", "many"], "--capacity"),
        (["local1-a", "--mean-life", "soon"], "--mean-life"),
        (["local1-a", "--grace", "-3s"], "--grace"),
        (["local1-a", "--trace", "nowhere.json"], "nowhere.json"),
        (["local1-a", "--window", "1"], "--trace"),
        (["local1-a", "--speed-up", "2"], "--trace"),
        (["local1-a", "--ones", "none"], "--trace"),
        (["local1-a", "--trace", "x", "--ones", "two"], "--ones"),
        (["local1-a", "--trace", "x", "--speed-up", "0"], "--speed-up"),
        (["local1-a", "--trace", "x", "--speed-up", "nan"], "--speed-up"),
    ],
)
def test_invalid_settings_are_refused_and_change_nothing(console: Console, argv: list[str], result: str) -> None:
    before = console.json("local", "zones")
    answer = console.run("local", "set", *argv)
    assert answer.returncode == 2
    assert result in answer.stderr
    assert console.json("local", "zones") == before


def test_a_window_that_the_trace_lacks_is_refused(console: Console) -> None:
    (console.folder / "trace.json").write_text(json.dumps({"gap_seconds": 600, "windows": {"7": "1"}}))
    answer = console.run("local", "set", "local1-b", "--trace", "trace.json")
    assert answer.returncode == 2
    assert "no window `0`; windows: `7`" in answer.stderr


def test_lists_machines_with_their_run(console: Console, machine: str) -> None:
    found = console.json("local", "machines")
    assert [(m["name"], m["run"], m["attempt"], m["zone"]) for m in found] == [(machine, "census-7", "2", "local1-a")]
    assert found[0]["age_s"] >= 0
    assert found[0]["cost_usd"] >= 0
    line = console.well("local", "machines").splitlines()[1]
    assert line.startswith(machine)
    assert "census-7" in line
    assert console.json("local", "zones")[0]["running"] == 1


def test_reports_that_there_are_no_machines(console: Console) -> None:
    assert console.well("local", "machines") == "no machines\n"
    assert console.json("local", "machines") == []


def test_prints_the_serial_output(console: Console, machine: str) -> None:
    eventually(
        lambda: "hello from inside" in console.well("local", "serial", machine), within_s=20.0, what="the script's line"
    )


def test_deletes_after_confirmation(console: Console, machine: str) -> None:
    refused = console.run("local", "delete", machine, says="n\n")
    assert refused.returncode == 0
    assert "census-7" in refused.stderr
    silent = console.run("local", "delete", machine)
    assert silent.returncode == 2
    assert "--yes" in silent.stderr
    assert len(console.json("local", "machines")) == 1
    assert console.run("local", "delete", machine, says="y\n").stdout == f"deleted {machine}\n"
    assert console.json("local", "machines") == []


def test_deletes_at_once_with_yes(console: Console, machine: str) -> None:
    assert console.well("local", "delete", machine, "--yes") == f"deleted {machine}\n"
    assert console.json("local", "machines") == []


@pytest.mark.parametrize("argv", [["serial", "absent"], ["delete", "absent", "--yes"]])
def test_a_missing_machine_is_an_error_of_the_cloud(console: Console, argv: list[str]) -> None:
    answer = console.run("local", *argv)
    assert answer.returncode == 5
    assert "absent" in answer.stderr


def test_a_read_only_local_cloud_is_a_clear_error(console: Console) -> None:
    (console.folder / "file").touch()
    where = str(console.folder / "file" / "cloud")
    answer = console.run("local", "set", "all", "--capacity", "1", OUTLAST_LOCAL_CLOUD=where)
    assert answer.returncode == 5
    assert "OUTLAST_LOCAL_CLOUD" in answer.stderr
