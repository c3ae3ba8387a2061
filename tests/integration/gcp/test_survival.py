"""A run through Google's API that is preempted, meets a stockout, and finishes in another zone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.clouds.gcp.cloud import GcpCloud
from outlast_gcp_emulator.faults import Fault
from tests.integration.gcp.home import at_home
from tests.support.gcp import Rehearsal
from tests.support.home import UNHURRIED, Home
from tests.support.waiting import eventually

ZONES = ("us-central1-a", "us-central1-b", "us-central1-c")


@pytest.fixture
def home(rehearsal: Rehearsal, gcp: GcpCloud, tmp_path: Path) -> Iterator[Home]:
    with at_home(tmp_path, rehearsal, gcp) as own:
        own.write("count.py", UNHURRIED)
        yield own


def test_a_run_survives_preemption_and_stockout_and_leaves_nothing_behind(
    home: Home, gcp: GcpCloud, rehearsal: Rehearsal
) -> None:
    argv = [
        "run",
        "--cloud",
        "gcp",
        "--type",
        "e2-standard-2",
        "--name",
        "count",
        "--checkpoint",
        "ckpt",
        "--secret",
        "KEY",
    ]
    argv += [word for zone in ZONES for word in ("--zone", zone)]
    runner = home.start(*argv, "--", "python3", "count.py", "20", "0.25", KEY="hunter2-very-secret")
    story = home.workspace.story("count-1")

    def saved(attempt: int) -> bool:
        state = story.refresh()
        return any(one.attempt == attempt for one in state.checkpoints)

    eventually(lambda: saved(1), within_s=90, what="a checkpoint of the first machine")
    first = story.state.attempts[0]
    assert first.zone == ZONES[0]
    (machine,) = gcp.machines()
    assert (machine.spot, machine.zone, machine.status) == (True, ZONES[0], "running")
    rehearsal.local.set_zone(ZONES[1], capacity=0)
    assert home.outlast("preempt", "count-1").returncode == 0
    output, _ = runner.communicate(timeout=600)
    assert runner.returncode == 0, output
    state = story.refresh()
    assert [attempt.zone for attempt in state.attempts] == list(ZONES)
    assert state.attempts[1].outcome == "refused"
    assert "does not have enough resources" in state.attempts[1].why
    assert "prices: built-in prices of 2026-08-21" in output
    assert "count 20" in output
    assert "resumed at" in output
    resumed = [int(line.split()[-1]) for line in output.splitlines() if "resumed at" in line]
    assert resumed[0] == 0
    assert resumed[-1] > 0
    assert gcp.machines() == []
    secret_place = Path(rehearsal.endpoint.root) / "secrets"
    assert not list(secret_place.rglob("*.json")), "the secrets of a run that is over are forgotten"
    assert "hunter2" not in output


@pytest.mark.full
def test_a_machine_without_the_agent_reports_why_and_powers_off(
    home: Home, gcp: GcpCloud, rehearsal: Rehearsal
) -> None:
    from outlast.clouds.cloud import Boot, Requirements
    from outlast.kit.boot_script import boot_script

    offer = gcp.offers(Requirements(type="e2-standard-2", zones=(ZONES[0],)))[0]
    wheel = f"{home.workspace.url}/wheels/{'0' * 64}/outlast-0-py3-none-any.whl"
    home.workspace.bucket.put(wheel.partition("/ws/")[2], b"no wheel")
    boot = Boot(script=boot_script("agent", "outlast.agent"), metadata={"outlast-wheel": wheel})
    gcp.launch(offer, "no-agent", boot=boot, labels={"kind": "test"})
    eventually(lambda: gcp.machine("no-agent").status == "stopped", within_s=60, what="the machine being off")
    serial = rehearsal.local.serial("no-agent")
    assert "is damaged: " in serial
    assert "outlast: error: could not fetch outlast and its libraries from the workspace" in serial
    gcp.delete("no-agent")


def test_a_machine_deletes_itself_with_its_own_token_and_reads_its_secrets(
    home: Home, gcp: GcpCloud, rehearsal: Rehearsal
) -> None:
    import sys

    from outlast.clouds.cloud import Boot, Requirements

    offer = gcp.offers(Requirements(type="e2-standard-2", zones=(ZONES[0],)))[0]
    gcp.put_secrets("outlast-x-run-1", {"KEY": "seven-words"})
    program = (
        "from outlast.agent.instance import GceInstance; from outlast.code.bootstrap import when_allowed; import sys;"
        "i = GceInstance(); found = when_allowed(lambda: i.secrets('outlast-x-run-1'));"
        "sys.exit(3) if found != {'KEY': 'seven-words'} else i.delete_self()"
    )
    boot = Boot(
        script=f'{sys.executable} -P -c "{program}"; echo left $?; sleep 1000',
        metadata={"outlast-secrets": "outlast-x-run-1"},
    )
    gcp.launch(offer, "own-end", boot=boot, labels={"kind": "test"})
    eventually(lambda: gcp.machines({"kind": "test"}) == [], within_s=60, what="the machine deleting itself")
    gcp.drop_secrets("outlast-x-run-1")


@pytest.mark.full
def test_a_machine_waits_for_rights_that_take_effect_late(home: Home, gcp: GcpCloud, rehearsal: Rehearsal) -> None:
    fault = Fault(path="*/wheels/*", method="GET", status=403, times=2)
    rehearsal.endpoint.faults.add(fault)
    answer = home.outlast("run", "--cloud", "gcp", "--zone", ZONES[0], "--", "python", "-c", "print('reached')")
    assert answer.returncode == 0, answer.stderr
    assert "reached" in answer.stdout
    assert "attempt 2" not in answer.stderr
    assert rehearsal.endpoint.faults.left() == 0
