"""The driver over real stories: one result per trial despite crashes; pruning; sweeps that stop early."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.billing.limits import Limits, write_limits
from outlast.sweep import events as ev
from outlast.sweep.plan import SweepView, plan
from outlast.sweep.state import SweepState, best, why_illegal
from outlast.sweep.study import Search
from tests.integration.sweep.computer import Computer, Died

SPACE = {"lr": "log(1e-4..1e-1)", "depth": "3..10", "opt": ["adam", "sgd"]}


def loss(params: dict[str, Any]) -> float:
    return float(abs(params["lr"] - 0.01) + abs(params["depth"] - 6) + (params["opt"] == "sgd"))


def check_results(state: SweepState, count: int) -> None:
    assert [trial.outcome for trial in state.trials] == ["complete"] * count
    assert sorted(state.ended) == list(range(count))
    assert all(trial.values == (loss(trial.params),) for trial in state.trials)


def test_each_trial_is_a_run_and_has_one_result() -> None:
    computer = Computer(params=SPACE, trials=12, parallel=4)
    check_results(computer.play(loss), 12)
    assert computer.bucket.children("runs/") == sorted(f"try-s1-t{n}" for n in range(12))
    request = computer.workspace.request("try-s1-t3")
    assert request.spec.params == computer.state.trials[3].params
    assert request.spec.command == ("python", "train.py", "--lr", "{lr}", "--depth", "{depth}", "--opt", "{opt}")


def test_at_most_parallel_trials_run() -> None:
    computer = Computer(params=SPACE, trials=12, parallel=3)
    driver = computer.driver()
    for _ in range(4):
        driver.round()
    assert len(computer.state.trials) == len(computer.state.open) == 3


def test_a_crash_of_the_driver_at_any_point_does_not_change_the_search() -> None:
    calm = Computer(params=SPACE, trials=5, parallel=2, sampler="random")
    before = calm.bucket.writes
    undisturbed = calm.play(loss)
    points = calm.bucket.writes - before
    assert points > 40
    for point in range(1, points):
        computer = Computer(params=SPACE, trials=5, parallel=2, sampler="random")
        computer.bucket.dies_at = computer.bucket.writes + point
        with pytest.raises(Died):
            computer.play(loss)
        computer.bucket.dies_at = -1
        state = computer.play(loss)
        check_results(state, 5)
        assert [trial.params for trial in state.trials] == [trial.params for trial in undisturbed.trials]
        assert len(computer.bucket.children("runs/")) == 5


def test_two_drivers_submit_each_trial_once() -> None:
    computer = Computer(params=SPACE, trials=9, parallel=3)
    one, other = computer.driver(), computer.driver()
    while not computer.state.over:
        one.round()
        for trial in computer.state.open:
            if computer.workspace.story(trial.run).refresh().alive:
                computer.end(trial.run, {"loss": [loss(trial.params)]})
        other.round()
    check_results(computer.state, 9)


def test_a_grid_visits_every_point_once() -> None:
    computer = Computer(params={"a": "1..3", "b": ["x", "y"]}, trials=6, parallel=2, sampler="grid")
    state = computer.play(lambda params: float(params["a"]))
    assert len({tuple(trial.params.items()) for trial in state.trials}) == 6


def test_a_grid_continues_after_the_driver_died() -> None:
    computer = Computer(params={"a": "1..3", "b": ["x", "y"]}, trials=6, parallel=1, sampler="grid")
    while not computer.state.over:  # a new driver for every round
        computer.driver().round()
        for trial in computer.state.open:
            if computer.workspace.story(trial.run).refresh().alive:
                computer.end(trial.run, {"loss": [1.0]})
    assert len({tuple(trial.params.items()) for trial in computer.state.trials}) == 6


def test_several_goals_have_a_pareto_front() -> None:
    computer = Computer(params={"x": "0..20"}, trials=30, parallel=3, goal=["min:loss", "max:gain"])
    driver = computer.driver()
    while not computer.state.over:
        driver.round()
        for trial in computer.state.open:
            x = float(trial.params["x"])
            if computer.workspace.story(trial.run).refresh().alive:
                computer.end(trial.run, {"loss": [x], "gain": [min(x, 10.0)]})
    front = best(computer.state, ("min:loss", "max:gain"))
    assert front
    assert all(trial.values[0] <= 10 for trial in front)


def test_tpe_improves_on_the_first_trials() -> None:
    computer = Computer(params={"x": "0..1000"}, trials=40, parallel=1)
    state = computer.play(lambda params: abs(params["x"] - 700))
    assert min(t.values[0] for t in state.trials[20:]) <= min(t.values[0] for t in state.trials[:10])


def test_a_goal_that_is_never_logged_stops_the_sweep_and_lists_the_logged_metrics() -> None:
    computer = Computer(params=SPACE, trials=50, parallel=1)
    driver = computer.driver()
    driver.round()
    driver.round()
    computer.end("try-s1-t0", {"accuracy": [0.5], "auc": [0.9]})
    for _ in range(3):
        driver.round()
    state = computer.state
    assert state.stopped
    assert "no number logged for `loss`" in state.why
    assert "`accuracy`, `auc`" in state.why
    assert len(state.trials) <= 2


def test_three_failed_trials_in_a_row_stop_the_sweep() -> None:
    computer = Computer(params=SPACE, trials=100, parallel=2)
    driver = computer.driver()
    for _ in range(30):
        driver.round()
        for trial in computer.state.open:
            if computer.workspace.story(trial.run).refresh().alive:
                computer.end(trial.run, failed="it crashed 3 times; the last time: exit code 1")
    state = computer.state
    assert state.stopped
    assert state.over
    assert "3 trials in a row failed" in state.why
    assert len(state.trials) <= 5


def test_another_trial_replaces_a_cancelled_one() -> None:
    from outlast.runs.events import Cancelled

    computer = Computer(params=SPACE, trials=3, parallel=1)
    driver = computer.driver()
    driver.round()
    driver.round()
    computer.workspace.story("try-s1-t0").append_or_raise(Cancelled(who="me"), nonce="c")
    state = computer.play(loss, driver)
    assert [trial.outcome for trial in state.trials] == ["cancelled", "complete", "complete", "complete"]


def test_the_pruner_cancels_a_bad_trial() -> None:
    computer = Computer(params={"x": "0..9"}, trials=6, parallel=6, pruner="median", min_steps=1)
    driver = computer.driver()
    driver.round()
    driver.round()
    for number in range(5):
        computer.end(f"try-s1-t{number}", {"loss": [5.0, 1.0, 1.0, 1.0]})
    driver.round()
    computer.start("try-s1-t5")
    computer.log("try-s1-t5", {"loss": [5.0, 90.0, 90.0]})
    driver.judged_at = 0.0
    driver.round()
    assert computer.state.trials[5].outcome == "pruned"
    driver.round()
    assert computer.workspace.story("try-s1-t5").refresh().ending == "cancelled"
    assert computer.state.over


def test_a_stopped_sweep_resumes_with_more_trials() -> None:
    computer = Computer(params=SPACE, trials=4, parallel=2)
    driver = computer.driver()
    driver.round()
    driver.round()
    computer.story.append_or_raise(ev.SweepStopped(who="me", why="stopped by me"), nonce="h")
    check_results(computer.play(loss), 2)
    assert not plan(SweepView(sweep=computer.sweep, state=computer.state))
    computer.story.append_or_raise(ev.Extended(who="me", more=3), nonce="e")
    check_results(computer.play(loss), 7)


def test_stopping_now_cancels_running_trials() -> None:
    computer = Computer(params=SPACE, trials=4, parallel=2)
    driver = computer.driver()
    driver.round()
    driver.round()
    computer.story.append_or_raise(ev.SweepStopped(who="me", now=True), nonce="h")
    driver.round()
    driver.round()
    assert [trial.outcome for trial in computer.state.trials] == ["cancelled"] * 2
    computer.story.append_or_raise(ev.Extended(who="me"), nonce="e")
    state = computer.play(loss)
    assert [trial.outcome for trial in state.trials] == ["cancelled"] * 2 + ["complete"] * 4


def test_results_of_a_replaced_worker_are_illegal() -> None:
    computer = Computer(params=SPACE, trials=4, parallel=4, per_machine=2)
    driver = computer.driver()
    for _ in range(4):
        driver.round()
    assert computer.state.workers == ("try-s1-w1", "try-s1-w2")
    assert sorted(trial.run for trial in computer.state.trials) == ["try-s1-w1"] * 2 + ["try-s1-w2"] * 2
    computer.end("try-s1-w1", failed="no new checkpoint in 8 attempts")
    for _ in range(4):
        driver.round()
    state = computer.state
    assert "try-s1-w3" in state.workers
    assert {trial.run for trial in state.open} == {"try-s1-w2", "try-s1-w3"}
    for trial in state.open:
        late = ev.ResultRecorded(trial=trial.number, run="try-s1-w1", outcome="complete", values=(1.0,))
        assert "belongs to" in why_illegal(state, late)


@pytest.mark.parametrize("per_machine", [1, 2])
def test_no_trial_is_submitted_over_the_spending_limit(per_machine: int) -> None:
    computer = Computer(params=SPACE, trials=9, parallel=2, per_machine=per_machine)
    write_limits(computer.bucket, Limits(cost_usd=0.000001, per="total"))  # type: ignore[arg-type]
    driver = computer.driver()
    for _ in range(6):
        driver.round()
    state = computer.state
    assert state.stopped
    assert state.over
    assert "the workspace has" in state.why
    assert not computer.bucket.children("runs/")


def test_a_trial_has_one_result() -> None:
    computer = Computer(params=SPACE, trials=1, parallel=1)
    computer.play(loss)
    again = ev.ResultRecorded(trial=0, run="try-s1-t0", outcome="complete", values=(0.0,))
    assert not computer.story.append(again, nonce="again")


def test_the_exported_study_equals_the_story(tmp_path: Any) -> None:
    import optuna

    computer = Computer(params=SPACE, trials=8, parallel=2)
    state = computer.play(loss)
    for name, storage in (
        ("study.db", f"sqlite:///{tmp_path}/study.db"),
        ("study.log", None),
    ):
        search = Search(computer.sweep.name, computer.sweep.search)
        search.follow(state)
        search.export(str(tmp_path / name))
        backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / name))
        study = optuna.load_study(study_name="try-s1", storage=storage or optuna.storages.JournalStorage(backend))
        assert [trial.params for trial in study.trials] == [trial.params for trial in state.trials]
        assert study.best_value == min(trial.values[0] for trial in state.trials)
    assert sum(search.importance().values()) == pytest.approx(1.0)
