"""`outlast simulate`: its predictions, and its errors for bad input."""

from __future__ import annotations

import json

import pytest

from tests.integration.cli.console import Console

JOB = ("--work", "6h", "--deadline", "9h", "--start", "3m", "--runs", "40")


@pytest.mark.full
def test_prints_cost_end_and_risk_with_histograms(console: Console) -> None:
    result = console.well("simulate", *JOB)
    for word in ("6h 00m of work", "perfect foresight", "uniform-progress", "0.0 %", "cost with outlast", "waiting"):
        assert word in result


@pytest.mark.full
def test_the_same_seed_gives_the_same_runs(console: Console) -> None:
    one, again, other = (console.json("simulate", *JOB, "--seed", seed) for seed in ("3", "3", "4"))
    assert one == again
    assert one["policies"]["outlast"] != other["policies"]["outlast"]
    assert one["policies"]["outlast"]["late"] == 0.0
    assert one["foresight"]["cost_usd"] <= one["policies"]["outlast"]["cost_usd"] * 1.5
    assert one["policies"]["outlast"]["cost_usd"] < one["policies"]["on-demand"]["cost_usd"]


def test_simulates_recorded_capacity_of_several_zones(console: Console) -> None:
    for name, ticks in (("a", "0011" * 30), ("b", "1100" * 30)):
        (console.folder / f"{name}.json").write_text(json.dumps({"gap_seconds": 600, "windows": {"0": ticks}}))
    result = console.json("simulate", *JOB, "--trace", "a.json", "--trace", "b.json")
    assert result["tick_s"] == 600.0
    assert result["policies"]["outlast"]["spot_share"] > 0.9
    assert console.json("simulate", *JOB, "--trace", ".")["policies"] == result["policies"]


@pytest.mark.full
def test_takes_the_job_from_the_file(console: Console) -> None:
    (console.folder / "job.toml").write_text(
        'command = "true"\n[machine]\ntype = "local-8-v100"\n[limits]\nwork = "2h"\ndeadline = "3h"\n'
    )
    result = console.json("simulate", "job.toml", "--runs", "5")
    assert (result["work_s"], result["deadline_s"], result["on_demand_usd_per_hour"]) == (7200.0, 10800.0, 2.8)


def test_simulates_a_job_without_a_deadline(console: Console) -> None:
    result = console.json("simulate", "--work", "4h", "--runs", "20")
    assert result["deadline_s"] is None
    assert "foresight" not in result


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        ((), "the duration of the work is unknown"),
        (("--work", "-3h"), "work"),
        (("--work", "soon"), "invalid duration"),
        (("--work", "3h", "--deadline", "2h"), "work` with one start takes"),
        (("--work", "3h", "--deadline", "2020-01-01T00:00:00Z"), "passed"),
        (("--work", "3h", "--deadline", "2030-01-01T00:00:00"), "time zone"),
        (("--work", "3h", "--deadline", "2030-13-01T00:00:00Z"), "invalid time"),
        (("--work", "3h", "--runs", "0"), "--runs"),
        (("--work", "3h", "--start", "-1m"), "--start"),
        (("--work", "3h", "--mean-life", "0"), "--mean-life"),
        (("--work", "3h", "--policy", "lucky"), "--policy"),
        (("--work", "3h", "--trace", "nowhere.json"), "nowhere.json"),
        (("--work", "3h", "--trace", "empty.json"), "empty"),
        (("--work", "3h", "--trace", "strange.json"), "at tick 2: expected"),
        (("--work", "3h", "--trace", "strange.json", "--mean-life", "1h"), "cannot be combined"),
        (("nowhere.toml",), "nowhere.toml"),
    ],
)
def test_invalid_input_is_reported_at_once(console: Console, argv: tuple[str, ...], why: str) -> None:
    (console.folder / "empty.json").write_text('{"gap_seconds": 600, "windows": {}}')
    (console.folder / "strange.json").write_text('{"gap_seconds": 600, "windows": {"0": "01é"}}', encoding="utf-8")
    answer = console.run("simulate", *argv)
    assert answer.returncode == 2
    assert why in answer.stderr
    assert "Traceback" not in answer.stderr
    assert not answer.stdout
