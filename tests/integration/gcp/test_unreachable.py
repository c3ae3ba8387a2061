"""Machines and supervisors that cannot reach the workspace or the endpoint: `outlast ps` shows the reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.clouds.gcp.cloud import GcpCloud
from outlast.records.machines import supervisor_name
from outlast.supervisor import hindrances
from outlast.supervisor.loop import Supervisor
from outlast_gcp_emulator.faults import Fault
from tests.integration.gcp.home import at_home
from tests.support.gcp import ZONE, Rehearsal
from tests.support.home import Home
from tests.support.waiting import eventually

MACHINE = ("--cloud", "gcp", "--type", "e2-standard-2", "--zone", ZONE)
ALWAYS = 1_000_000


@pytest.fixture
def home(rehearsal: Rehearsal, gcp: GcpCloud, tmp_path: Path) -> Iterator[Home]:
    with at_home(tmp_path, rehearsal, gcp) as own:
        yield own
        rehearsal.endpoint.faults.clear()


@pytest.fixture
def supervisor(home: Home, gcp: GcpCloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    """The supervisor of the workspace, which takes a machine for late after a second instead of a minute."""
    monkeypatch.setattr(hindrances, "_BOOT_S", 1.0)
    monkeypatch.setattr(hindrances, "_CONSOLE_S", 1.0)
    own = Supervisor(home.workspace, {"gcp": gcp})
    assert own.hold_lease()
    yield own
    own.lease.release()


def submit(home: Home) -> str:
    submitted = home.outlast("submit", "--name", "far", *MACHINE, "--", "echo", "reached")
    assert submitted.returncode == 0, submitted.stderr
    return submitted.stdout.strip()


def shows(home: Home, supervisor: Supervisor, text: str) -> None:
    def shown() -> bool:
        supervisor.hold_lease()
        supervisor.round()
        return text in home.outlast("ps").stdout

    eventually(shown, within_s=120, what=f"`{text}` in the listing")


@pytest.mark.full
def test_a_machine_that_cannot_read_the_workspace_is_listed_with_its_reason_until_it_can(
    home: Home, rehearsal: Rehearsal, supervisor: Supervisor
) -> None:
    rehearsal.endpoint.faults.add(Fault(path="*/wheels/*", method="GET", status=403, times=ALWAYS))
    run = submit(home)
    shows(home, supervisor, "its machine has not reported yet; last lines of its console: ")
    assert "The caller does not have permission" in home.outlast("ps").stdout
    rehearsal.endpoint.faults.clear()
    story = home.workspace.story(run)

    def ended() -> bool:
        supervisor.hold_lease()
        supervisor.round()
        return bool(story.refresh().closed)

    eventually(ended, within_s=180, what="the end of the run")
    assert (story.state.ending, len(story.state.attempts)) == ("finished", 1)
    assert "has not reported" not in home.outlast("ps", "--all").stdout


@pytest.mark.full
def test_an_endpoint_that_does_not_answer_is_named_while_a_machine_boots(
    home: Home, rehearsal: Rehearsal, supervisor: Supervisor
) -> None:
    rehearsal.endpoint.faults.add(Fault(path="*/wheels/*", method="GET", status=403, times=ALWAYS))
    run = submit(home)

    def placed() -> bool:
        supervisor.round()
        return bool(home.workspace.story(run).refresh().attempts)

    eventually(placed, within_s=60, what="the placement")
    rehearsal.endpoint.faults.add(Fault(path="*/aggregated/instances", method="GET", status=503, times=ALWAYS))
    shows(home, supervisor, "gcp does not answer: ")
    rehearsal.endpoint.faults.clear()
    assert home.outlast("cancel", run).returncode == 0


@pytest.mark.full
def test_a_supervisor_machine_that_cannot_read_the_workspace_is_listed_with_its_reason(
    home: Home, rehearsal: Rehearsal
) -> None:
    rehearsal.endpoint.faults.add(Fault(path="*/wheels/*", method="GET", status=403, times=ALWAYS))
    started = home.outlast("supervise", "--on", "gcp", "--no-wait", timeout_s=120)
    assert started.returncode == 0, started.stderr
    name = supervisor_name(home.workspace)

    def shown() -> bool:
        listed = home.outlast("ps").stdout
        known = f"supervisor: {name} on gcp does not supervise yet; its console ends with: " in listed
        return known and "outlast: waiting for the rights of this machine" in listed

    eventually(shown, within_s=60, what="the reason in the listing")
    assert home.outlast("supervise", "--off", timeout_s=120).returncode == 0
