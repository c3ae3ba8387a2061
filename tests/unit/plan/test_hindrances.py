"""What `outlast ps` shows while a machine was requested and has not reported yet."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.unit.plan.worlds import machine, placed, view, world

from outlast.cli.run.listing import listing_text
from outlast.runs import events as ev
from outlast.runs.state import Attempt
from outlast.supervisor.hindrances import KEY, Hindrances, read_hindrances
from outlast.supervisor.world import World
from outlast.workspace import Workspace, open_workspace

BOOTED = machine(1)
YOUNG = msgspec.structs.replace(BOOTED, created_at=BOOTED.seen_at - 20.0)
CONSOLE = "; last lines of its console: outlast: error: gs://box: Connection refused"


class Supervised:
    """A supervisor's hindrances in a workspace, with a clock."""

    def __init__(self, workspace: Workspace) -> None:
        self.bucket = workspace.bucket
        self.now = 0.0
        self.read: list[str] = []
        self.hindrances = Hindrances(self.bucket, console=self._console, monotonic=lambda: self.now)

    def _console(self, attempt: Attempt) -> str:
        self.read.append(attempt.machine)
        return CONSOLE

    def found(self, seen: World) -> dict[str, str]:
        self.hindrances.update(seen)
        return read_hindrances(self.bucket)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_workspace(str(tmp_path / "ws"))


@pytest.fixture
def supervised(workspace: Workspace) -> Supervised:
    return Supervised(workspace)


def test_a_machine_that_does_not_report_is_listed_with_its_console(supervised: Supervised) -> None:
    silent = world(view(placed(1), silent_s=70.0), machines=[BOOTED])
    assert supervised.found(silent) == {"run-1": f"its machine has not reported yet{CONSOLE}"}
    assert supervised.found(silent)
    assert supervised.read == ["run-1-a1"], "one request a minute"
    supervised.now = 61.0
    supervised.found(silent)
    assert len(supervised.read) == 2
    assert supervised.found(world(view(placed(1), ev.Started(attempt=1, at=990.0)), machines=[BOOTED])) == {}
    assert not list(supervised.bucket.list(KEY))


def test_a_machine_that_boots_as_fast_as_others_is_left_alone(supervised: Supervised) -> None:
    assert supervised.found(world(view(placed(1), silent_s=70.0), machines=[YOUNG])) == {}
    assert supervised.found(world(view(placed(1), silent_s=5.0), machines=[BOOTED])) == {}
    assert supervised.read == []


def test_a_cloud_that_does_not_answer_is_named(supervised: Supervised) -> None:
    unreachable = msgspec.structs.replace(world(view(placed(1))), unreachable={"local": "no route to host"})
    assert supervised.found(unreachable) == {"run-1": "local does not answer: no route to host"}


def test_the_listing_shows_the_hindrance_of_a_booting_run(workspace: Workspace, supervised: Supervised) -> None:
    workspace.story("run-1").append(ev.Submitted(at=890.0, who="ada"), nonce="1")
    workspace.story("run-1").append(placed(1), nonce="2")
    workspace.wake("run-1")
    assert "not reported" not in listing_text(workspace, {}, everything=False, as_json=False)
    supervised.found(world(view(placed(1), silent_s=70.0), machines=[BOOTED]))
    shown = listing_text(workspace, {}, everything=False, as_json=False)
    assert "booting" in shown
    assert "Connection refused" in shown
