"""A distributed run on the local cloud ends with the right result, whichever machine is preempted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.test_survival import assert_nothing_left
from tests.support.gang import expected, write_gang
from tests.support.home import Home

STEPS = 80


def write_job(home: Home, nodes: int, *, hold: int = 0, layout: str = "shards") -> None:
    write_gang(home, "local", "", nodes=nodes, hold=hold, steps=STEPS, layout=layout)


def started_and_saved(home: Home, count: int) -> bool:
    """Return whether that many attempts have started, and the newest of them has committed a checkpoint."""
    if not home.workspace.runs():
        return False
    state = home.state()
    started = sum(bool(attempt.started_at) for attempt in state.attempts)
    return started >= count and state.current is not None and state.current.saves > 0


def saved(home: Home, attempt: int) -> bool:
    """Return whether an attempt runs and has committed a checkpoint."""
    if not home.workspace.runs():
        return False
    current = home.state().current
    return current is not None and current.number >= attempt and current.saves > 0


@pytest.mark.full
def test_a_run_on_two_machines_survives_the_loss_of_each(home: Home) -> None:
    write_job(home, 2, hold=3)
    process = home.start("run")
    for attempt, options in ((1, ["--node", "1"]), (2, ["--no-notice"])):
        home.until(lambda n=attempt: saved(home, n), f"a checkpoint of attempt {attempt}")
        answer = home.outlast("preempt", "last", *options)
        assert answer.returncode == 0, answer.stderr
        home.until(lambda n=attempt: home.state().attempts[n - 1].phase == "over", f"the end of attempt {attempt}")
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    state = home.state()
    assert state.ending == "finished"
    assert state.crashes == 0
    first, second, third = state.attempts[:3]
    # Only the lost machine is replaced, and its rank stays.
    assert second.machines[0] == first.machines[0]
    assert second.machines[1] != first.machines[1]
    assert third.machines[1] == second.machines[1]
    assert third.machines[0] != second.machines[0]
    assert (home.project / "outputs" / home.only_run() / "result.txt").read_text() == expected(STEPS, 2)
    assert "[1] rank 1 of 2 begins" in home.outlast("logs", "last").stdout
    assert_nothing_left(home)


@pytest.mark.full
def test_a_surviving_machine_starts_with_the_files_of_a_new_one(home: Home) -> None:
    """The checkpoint is a file beside the program, and the first attempt saves nothing that could be restored."""
    write_job(home, 2, hold=2, layout="copies")
    process = home.start("run")
    home.until(lambda: home.workspace.runs() and "begins" in home.log(), "start")
    (survivor,) = [m for m in home.machines() if m.name == home.state().attempts[0].machines[0]]
    work = Path(home.cloud.home_path(survivor.name)) / "work"
    (work / "left behind").touch()
    (work / "train.py").unlink()
    home.cloud.preempt(home.state().attempts[0].machines[1], notice=False)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    state = home.state()
    assert state.crashes == 0
    assert state.attempts[-1].machines[0] == survivor.name
    result = (home.project / "outputs" / home.only_run() / "result.txt").read_text()
    assert result == expected(STEPS, 2, "copies")
    assert_nothing_left(home)


def test_a_run_on_two_machines_starts_and_finishes_as_one(home: Home) -> None:
    write_job(home, 2)
    answer = home.outlast("run")
    assert answer.returncode == 0, answer.stderr
    assert len(home.state().attempts) == 1
    assert (home.project / "outputs" / home.only_run() / "result.txt").read_text() == expected(STEPS, 2)
    assert "[1] rank 1 of 2 begins" not in home.outlast("logs", "last", "--node", "0").stdout
    assert_nothing_left(home)


@pytest.mark.full
def test_an_elastic_run_takes_the_machines_that_there_are(home: Home) -> None:
    write_gang(home, "local", "", nodes="2..4", hold=0, steps=STEPS, layout="copies")
    spec = home.project / "outlast.toml"
    spec.write_text(spec.read_text().replace("HOLD_UNTIL =", 'HOLD_NODES = "4", HOLD_UNTIL ='))

    def set_capacity(count: int) -> None:
        answer = home.outlast("local", "set", "all", "--capacity", str(count))
        assert answer.returncode == 0, answer.stderr

    set_capacity(3)
    process = home.start("run")
    # The machines of the first attempt, and those for which there is room when one of them is preempted.
    for attempt, capacity in ((1, 2), (2, 4)):
        home.until(lambda n=attempt: started_and_saved(home, n), f"a checkpoint of the {attempt}. attempt that started")
        set_capacity(capacity)
        current = home.state().current
        assert current is not None
        home.cloud.preempt(current.machines[1], notice=False)
        home.until(lambda n=current.number: home.state().attempts[n - 1].phase == "over", "the end of the attempt")
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    state = home.state()
    started = [attempt for attempt in state.attempts if attempt.started_at]
    assert [attempt.nodes for attempt in started] == [3, 2, 4]
    first, second, third = (attempt.machines for attempt in started)
    # The machines that are left stay, with new ranks.
    assert second == (first[0], first[2])
    assert third[0] == second[0]
    assert all(attempt.resumed_from for attempt in started[1:])
    assert_nothing_left(home)
