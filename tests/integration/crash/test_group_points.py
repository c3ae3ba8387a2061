"""The submitter of a group crashes before and after every effect, or is suspended for too long."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outlast.app.actions import cancel_run
from outlast.app.groups import group_runs
from outlast.clouds.local.cloud import LocalCloud
from outlast.errors import UsageError
from outlast.runs.events import Cancelled, Submitted
from outlast.runs.group import Groups, Seat
from outlast.spec.tasks import Task, parse_tasks
from outlast.submit.group import GroupSubmitter
from outlast.submit.write import write_request
from outlast.workspace import Workspace, open_workspace
from tests.integration.machines.crash_points import Doomed, Point, points_passed


def _cancel(workspace: Workspace, group: str) -> list[str]:
    """Cancel the runs of a group as `outlast cancel` does; return those that were alive."""
    return [run for run in group_runs(workspace, group) if cancel_run(workspace, run)]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_workspace(str(tmp_path / "workspace"))


def tasks(tmp_path: Path) -> tuple[Task, ...]:
    (tmp_path / "code").mkdir(exist_ok=True)
    common = {"name": "evolve", "code": {"path": str(tmp_path / "code")}}
    own = {"master": {"command": "true"}, "worker": {"command": "true", "count": 1}}
    return parse_tasks({**common, "tasks": own})


def submitter(workspace: Workspace, tmp_path: Path) -> GroupSubmitter:
    clouds = {"local": LocalCloud(str(tmp_path / "cloud"))}
    return GroupSubmitter(workspace, clouds, environment={"PATH": os.environ["PATH"]})


def test_a_group_with_a_crashed_submitter_is_complete_or_never_starts_and_keeps_its_name(tmp_path: Path) -> None:
    def life(workspace: Workspace, point: Point) -> None:
        bucket = Doomed(workspace.bucket, {"create", "put", "upload", "write"}, point)
        submitter(Workspace(bucket), tmp_path).submit("evolve", tasks(tmp_path))  # type: ignore[arg-type]

    asked = ["evolve-1-master", "evolve-1-worker-1"]
    unharmed = open_workspace(str(tmp_path / "unharmed"))
    points = points_passed(lambda point: life(unharmed, point), -1)
    assert len(points) > 20
    # Dead after an effect is dead before the next.
    for number, label in list(enumerate(points))[::2]:
        workspace = open_workspace(str(tmp_path / str(number)))
        points_passed(lambda point, workspace=workspace: life(workspace, point), number)  # type: ignore[misc]
        groups, where = Groups(workspace), f"after a death at {number}, {label}"
        begun = [run for run in asked if workspace.story(run).refresh().alive]
        assert begun == asked or not groups.sealed("evolve-1"), where
        assert set(begun) <= {seat.run for seat in groups.seats("evolve-1")}, where
        assert set(begun) <= {*workspace.wakeups()}, where
        # A run that is asked for next is not called as the group is: `cancel` could mean but one of them.
        assert f"evolve-{workspace.next_number('evolve')}" not in groups.all(), where
        assert _cancel(workspace, "evolve-1") == begun, where


def test_a_group_does_not_start_if_a_member_ended_during_its_submission(workspace: Workspace, tmp_path: Path) -> None:
    group_submitter = submitter(workspace, tmp_path)
    announced: list[str] = []

    def wake(run: str, *, durable: bool = False) -> None:
        Workspace.wake(workspace, run, durable=durable)
        announced.append(run)
        if run == "evolve-1-worker-1":
            # As if we had slept before the last of them, and a supervisor or a teammate had lost patience.
            workspace.story(announced[0]).append(Cancelled(who="eve", at=1.0), nonce="1")

    workspace.wake = wake  # type: ignore[method-assign]
    with pytest.raises(UsageError, match="evolve-1 does not start: evolve-1-master is cancelled"):
        group_submitter.submit("evolve", tasks(tmp_path))
    assert not group_submitter.groups.sealed("evolve-1")
    runs = [seat.run for seat in group_submitter.groups.seats("evolve-1")]
    assert len(runs) == 2
    assert {workspace.story(run).refresh().ending for run in runs} == {"cancelled"}


def test_an_interrupted_submission_cancels_the_group_at_once(workspace: Workspace, tmp_path: Path) -> None:
    group_submitter = submitter(workspace, tmp_path)

    def point(label: str) -> None:
        if label == "after put" and workspace.story("evolve-1-master").refresh().exists:
            workspace.bucket = bucket
            raise KeyboardInterrupt

    bucket = workspace.bucket
    workspace.bucket = Doomed(bucket, {"put"}, point)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        group_submitter.submit("evolve", tasks(tmp_path))
    assert not group_submitter.groups.sealed("evolve-1")
    assert workspace.story("evolve-1-master").refresh().ending == "cancelled"


def test_adding_an_existing_member_keeps_its_seat(workspace: Workspace, tmp_path: Path) -> None:
    group_submitter = submitter(workspace, tmp_path)
    group_submitter.submit("evolve", tasks(tmp_path))
    ready = Seat(run="evolve-1-worker-1", task="worker", attempt=1, address="10.1.0.3", ready=True)
    group_submitter.groups.sit("evolve-1", ready)
    group_submitter.groups.claim("evolve-1", Seat(run="evolve-1-worker-1", task="worker"))
    assert ready in group_submitter.groups.seats("evolve-1")


def test_cancelling_a_group_cancels_a_run_that_took_its_name_concurrently(workspace: Workspace, tmp_path: Path) -> None:
    group_submitter = submitter(workspace, tmp_path)
    master = next(task for task in tasks(tmp_path) if task.name == "master")
    group_submitter.groups.reserve("evolve", who="eve", tasks=("master",))
    (prepared,) = group_submitter._prepare([master])
    write_request(workspace, prepared, "evolve-1")
    workspace.story("evolve-1").append_or_raise(Submitted(who="eve", at=1.0), nonce="1")
    assert _cancel(workspace, "evolve-1") == ["evolve-1"]
    assert workspace.story("evolve-1").refresh().ending == "cancelled"
