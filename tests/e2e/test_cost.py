"""Costs of machines of the local cloud: the sums agree with the stories and with the cloud."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from outlast.billing.ledger import grouped
from outlast.billing.limits import Limits, write_limits
from outlast.cli.cost.cost import per_day
from outlast.clouds.local.catalog import DISK_USD_PER_GB_HOUR, TYPES, ZONES
from outlast.records.machines import MachineRecords
from outlast.runs import events as ev
from outlast.ui.overview_data import OverviewReader
from tests.support.home import COUNTER, Home


def cost(home: Home, *argv: str) -> dict[str, Any]:
    answer = home.outlast("cost", "--json", *argv)
    assert answer.returncode == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def released(home: Home) -> list[ev.Released]:
    story = home.workspace.story(home.only_run())
    story.refresh()
    return [event for event in story.events if isinstance(event, ev.Released)]


@pytest.mark.full
def test_the_cost_of_a_preempted_run_is_the_sum_of_its_releases_and_includes_lost_work(home: Home) -> None:
    home.write("train.py", COUNTER)
    process = home.start("run", "--no-pull", "--", "python", "train.py", "120", "0.1")
    home.until_counted(10)
    home.until(lambda: home.state().checkpoints, "a checkpoint: else nothing of it was work")
    assert home.outlast("preempt", "last", "--no-notice").returncode == 0
    assert process.wait(timeout=600) == 0
    result, bills = cost(home), released(home)
    assert result["total"]["cost_usd"] == pytest.approx(sum(bill.cost_usd for bill in bills), rel=1e-9)
    assert result["total"]["machines"] == len(bills) == 2
    assert result["total"]["estimated_usd"] == 0
    # The price of the catalogue for the billed time, plus the disk.
    for line, bill in zip(result["lines"], bills, strict=True):
        price = TYPES[line["type"]].on_demand_usd_per_hour * ZONES[line["zone"]]
        disk = 10.0 * DISK_USD_PER_GB_HOUR
        assert bill.cost_usd == pytest.approx(bill.seconds / 3600 * price + bill.disk_usd, rel=1e-3)
        assert bill.disk_usd == pytest.approx(bill.seconds / 3600 * disk, rel=0.5)
        assert sum(line["causes"].values()) == pytest.approx(line["cost_usd"])
        assert line["on_demand_usd"] > line["cost_usd"] * 2
    assert result["lines"][0]["causes"]["work"] > 0
    assert 0 < result["total"]["goodput"] < 1
    one = cost(home, home.only_run(), "--by", "machine")
    assert set(one["groups"]) == {attempt.machine for attempt in home.state().attempts}
    assert one["total"]["cost_usd"] == pytest.approx(result["total"]["cost_usd"])


@pytest.mark.full
def test_the_cost_of_a_running_machine_is_an_estimate_until_it_ends(home: Home) -> None:
    home.write("train.py", COUNTER)
    process = home.start("run", "--no-pull", "--", "python", "train.py", "100", "0.1")
    home.until_counted(1)
    result = cost(home)
    assert result["total"]["estimated_usd"] == result["total"]["cost_usd"] > 0
    assert "~$" in home.outlast("cost").stdout
    assert process.wait(timeout=600) == 0
    assert cost(home)["total"]["estimated_usd"] == 0


@pytest.mark.full
def test_a_stopped_manual_machine_costs_its_disk_and_a_deleted_one_stays_in_the_report(home: Home) -> None:
    answer = home.outlast("machine", "create", "desk", "--type", "local-2", "--wait", "60s", "--no-ssh-config")
    assert answer.returncode == 0, answer.stderr
    (line,) = cost(home)["lines"]
    assert (line["kind"], line["name"], line["estimated"]) == ("manual", "desk", True)
    assert set(line["causes"]) == {"manual", "disk"}
    assert home.outlast("machine", "stop", "desk").returncode == 0
    home.until(lambda: home.cloud.machine("desk").status == "stopped", "the stop")
    stopped = cost(home)["lines"][0]
    home.until(lambda: cost(home)["total"]["wasted_usd"] > stopped["causes"].get("stopped", 0.0), "a dearer disk")
    later = cost(home)["lines"][0]
    assert later["causes"]["manual"] == pytest.approx(stopped["causes"]["manual"])
    machine = home.cloud.machine("desk")
    assert later["cost_usd"] == pytest.approx(machine.cost_usd, rel=0.05)
    assert home.outlast("machine", "delete", "desk", "--yes").returncode == 0
    (closed,) = cost(home)["lines"]
    assert closed["cost_usd"] >= later["cost_usd"]
    assert not closed.get("estimated")
    assert cost(home)["groups"] == cost(home)["groups"]  # the cost no longer grows


def test_an_expired_manual_machine_is_reaped_and_its_cost_is_kept(home: Home) -> None:
    answer = home.outlast("machine", "create", "desk", "--wait", "60s", "--no-ssh-config")
    assert answer.returncode == 0, answer.stderr
    machine_records = MachineRecords(home.workspace)
    machine_record = machine_records.find("desk")
    assert machine_record is not None
    machine_records.write(msgspec.structs.replace(machine_record, until=1.0))
    before = cost(home)["lines"][0]
    assert home.outlast("supervise", "--until-idle").returncode == 0
    home.until(lambda: not home.machines(), "the end of the machine")
    (line,) = cost(home)["lines"]
    assert line["cost_usd"] >= before["cost_usd"]
    assert not line.get("estimated")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--user", "unknown-user"], "user `unknown-user`"),
        (["--since", "2026-13-40"], "invalid date"),
        (["--since", "soon"], "--since soon"),
        (["--since", "2999-01-01"], "in the future"),
    ],
)
def test_invalid_options_are_refused(home: Home, argv: list[str], says: str) -> None:
    answer = home.outlast("cost", *argv)
    assert answer.returncode == 2
    assert says in answer.stderr
    assert "Traceback" not in answer.stderr


def test_an_unknown_run_has_a_separate_exit_code(home: Home) -> None:
    assert home.outlast("cost", "census-7").returncode == 3


def test_a_budget_that_does_not_pay_for_an_hour_is_refused_before_anything_is_launched(home: Home) -> None:
    answer = home.outlast("submit", "--cost", "0.005", "--", "true")
    assert answer.returncode == 2
    assert "pays for less than an hour" in answer.stderr
    assert "local-1" in answer.stderr
    for amount in ("-1", "0"):
        answer = home.outlast("submit", "--cost", amount, "--", "true")
        assert answer.returncode == 2
        assert "--cost: expected a number above zero" in answer.stderr
    assert not home.workspace.runs()
    assert not home.machines()


def test_a_spent_budget_refuses_further_runs(home: Home) -> None:
    write_limits(home.workspace.bucket, Limits(cost_usd=0.001, per="total"))
    for argv in (["submit", "--", "true"], ["machine", "create", "desk", "--no-ssh-config"]):
        answer = home.outlast(*argv)
        assert answer.returncode == 9, answer.stderr
        assert "the workspace has $" in answer.stderr
    assert not home.workspace.runs()
    assert not home.machines()


def test_limits_are_shown_and_set_and_invalid_ones_are_refused(home: Home) -> None:
    assert "there are no limits" in home.outlast("limits").stderr
    assert home.outlast("limits", "--cost-usd", "50", "--max-machines", "3").returncode == 0
    assert "$0 of $50 this month; 3 machines at a time" in home.outlast("limits").stdout
    for argv in (["--cost-usd", "-5"], ["--max-hours", "nan"], ["--user", "ann", "--cost-usd", "5"], ["--per", "day"]):
        answer = home.outlast("limits", *argv)
        assert answer.returncode == (0 if argv == ["--per", "day"] else 2), answer.stderr
    assert home.outlast("limits", "--user", "ann", "--cost-usd", "5", "--new").returncode == 0
    (all_of_them, ann) = json.loads(home.outlast("limits", "--json").stdout)
    assert (all_of_them["per"], ann["who"]) == ("day", "ann")
    home.outlast("limits", "--cost-usd", "0", "--max-machines", "0")
    assert [one["who"] for one in json.loads(home.outlast("limits", "--json").stdout)] == ["ann"]


def test_limits_count_live_machines_that_no_run_owns(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = home.outlast("machine", "create", "desk", "--no-ssh-config")
    assert answer.returncode == 0, answer.stderr
    assert home.outlast("limits", "--cost-usd", "50").returncode == 0

    def used() -> float:
        (row,) = json.loads(home.outlast("limits", "--json").stdout)
        return float(row["used_usd"])

    home.until(lambda: used() > 0, "the cost of the live machine")
    monkeypatch.setenv("OUTLAST_LOCAL_CLOUD", home.environment["OUTLAST_LOCAL_CLOUD"])
    overview = OverviewReader(home.workspace, lambda now: []).read()
    assert overview.limits[0].used_usd > 0
    assert home.outlast("machine", "delete", "desk", "--yes").returncode == 0


@pytest.mark.full
def test_prices_are_listed_although_some_clouds_cannot_be_queried(home: Home) -> None:
    answer = home.outlast("prices", "--gpu", "T4", "--json")
    assert answer.returncode == 0, answer.stderr
    result = json.loads(answer.stdout)
    assert [offer["cloud"] for offer in result["offers"]] == ["local", "local"]
    assert set(result["problems"]) == {"gcp", "aws"}
    assert all(offer["source"] for offer in result["offers"])
    prices = [offer["price_usd_per_hour"] for offer in result["offers"]]
    assert prices == sorted(prices)
    page = home.outlast("prices", "--gpu", "T4")
    assert "gcp: " in page.stderr
    assert "(1) the local cloud's own list" in page.stdout
    assert home.outlast("prices", "--cpus", "-4").returncode == 2
    assert home.outlast("prices", "--cpus", "7777", "--cloud", "local").returncode == 2
    assert home.outlast("prices", "--cloud", "gcp").returncode == 5


def test_the_bars_have_one_row_per_day_and_one_character_per_cause(home: Home) -> None:
    from outlast.billing.ledger import DAY_S, lines_of
    from outlast.runs.state import fold
    from tests.unit.test_ledger import LOST, _shifted

    (line,) = lines_of("run-1", fold(LOST), 0.0)
    lines = [line, _shifted(line, 2 * DAY_S), _shifted(line, 2 * DAY_S + 800)]
    rows = per_day(grouped(lines, "day"), width=80).splitlines()
    assert [row[:10] for row in rows[:3]] == ["2023-11-14", "2023-11-15", "2023-11-16"]
    assert rows[1].strip() == "2023-11-15"
    assert rows[2].count("█") == pytest.approx(2 * rows[0].count("█"), abs=1)
    assert rows[0].count("░") == pytest.approx(rows[0].count("█") / 2, abs=1)
    assert "$0.20" in rows[0]
