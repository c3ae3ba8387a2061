"""The work of a run with a deadline, as earlier runs of its command needed it."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.code.record import CodeRecord
from outlast.runs import events as ev
from outlast.runs.ended import EndedRuns, record_of
from outlast.runs.state import fold
from outlast.spec.parse import parse
from outlast.spec.spec import Spec
from outlast.store.object_store import ObjectBucket
from outlast.submit.earlier import with_measured_work
from outlast.workspace import RunRequest, Workspace

HOUR = 3600.0


def spec(command: str = "python train.py", **limits: Any) -> Spec:
    return parse({"name": "train", "command": command, "limits": limits})


@pytest.fixture
def workspace() -> Workspace:
    """A workspace with one finished run, which worked for five hours on two machines."""
    found = Workspace(ObjectBucket("memory://"))
    EndedRuns(found).rebuild()
    place = {"cloud": "local", "region": "here", "zone": "here-a", "type": "t", "spot": True, "price_usd_per_hour": 1.0}
    state = fold(
        [
            ev.Submitted(at=1.0),
            ev.Placed(attempt=1, machine="m1", at=10.0, **place),
            ev.Started(attempt=1, at=100.0),
            ev.Saved(attempt=1, checkpoint="c", at=100.0 + 2 * HOUR),
            ev.Lost(attempt=1, why="gone", at=100.0 + 2.5 * HOUR),
            ev.Placed(attempt=2, machine="m2", at=3 * HOUR, **place),
            ev.Started(attempt=2, resumed_from="c", at=4 * HOUR),
            ev.Finished(attempt=2, exit_code=0, at=7 * HOUR),
        ]
    )
    found.write_request(RunRequest(run="train-1", spec=spec(), code=CodeRecord(), submitted_at=1.0, who="ada", path=""))
    EndedRuns(found).add(record_of("train-1", state))
    return found


def planned(workspace: Workspace, given: Spec) -> tuple[float, list[str]]:
    lines: list[str] = []
    return with_measured_work(workspace, given, lines.append).limits.work_s, lines


def test_an_earlier_run_that_worked_longer_replaces_the_estimate(workspace: Workspace) -> None:
    work_s, (line,) = planned(workspace, spec(deadline="9h", work="4h"))
    assert work_s == pytest.approx(5 * HOUR)
    assert "train-1, the same command, worked 5h 00m" in line


def test_a_deadline_without_work_is_planned_with_the_earlier_run(workspace: Workspace) -> None:
    assert planned(workspace, spec(deadline="9h"))[0] == pytest.approx(5 * HOUR)


@pytest.mark.parametrize(
    "given", [spec(deadline="9h", work="6h"), spec("python other.py", deadline="9h", work="4h"), spec(work="4h")]
)
def test_other_commands_longer_estimates_and_runs_without_a_deadline_change_nothing(
    workspace: Workspace, given: Spec
) -> None:
    assert planned(workspace, given) == (given.limits.work_s, [])
