"""The verdicts of the drill, row by row, without a run."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from outlast.app.drilling import DrillResult
from outlast.drill.compare import compared
from outlast.drill.evidence import Evidence, Injected, Observations
from outlast.drill.findings import Finding, FindingVerdict, Handover, prices
from outlast.drill.handovers import handovers
from outlast.drill.injections import Injection
from outlast.drill.judge import judge, last_save, on_sigterm, report, saved_after_notice
from outlast.drill.lines import lines_of
from outlast.drill.numbers import curve_in, last_numbers, numbers_in
from outlast.drill.resume_check import RESUMES, Case, resumes, right_step
from outlast.drill.steps import StepMark, marks, progress_of, steps_of
from outlast.formatting.two_curves import plot
from outlast.runs import events as ev
from outlast.runs.state import RunState, fold
from outlast.spec.spec import Spec


def parsed_steps(text: str) -> list[int]:
    return [mark.step for mark in steps_of([marks(lines_of(text), at=0.0)])[0]]


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("step 1\nstep 2\nstep 3\n", [1, 2, 3]),
        ("steps: 1000\nstep 1\nstep 2\n", [1, 2]),
        ("epoch 1/60 loss 0.7\nepoch 2/60 loss 0.6\n", [1, 2]),
        ("epoch 1 batch 1\nepoch 1 batch 2\nepoch 2 batch 1\nepoch 2 batch 2\n", [1, 1, 2, 2]),
        ("Epoch 0: step=10\nEpoch 0: step=20\nEpoch 1: step=30\n", [10, 20, 30]),
        ('{"global_step": 5, "loss": 1.0}\n{"global_step": 10, "loss": 0.5}\n', [5, 10]),
        ("footstep 3\nnothing here\n", []),
        ("[1,  2000] loss: 2.173\n[1,  4000] loss: 1.873\n[2,  2000] loss: 1.6\n", [1, 1, 2]),
        ("[0]\ttrain-logloss:0.53\n[1]\ttrain-logloss:0.43\n", [0, 1]),
        (
            "  3%|▎         | 1/30 [00:00<00:09]\n  7%|▋         | 2/30 [00:00<00:09]\nShards: 0%|  | 0/1 [00:00<?]\n",
            [1, 2],
        ),
        ("[12:30:01] INFO: starting\n[1, 2, 3] is a list\n", []),
    ],
)
def test_steps_are_found_in_the_output(text: str, steps: list[int]) -> None:
    assert parsed_steps(text) == steps


def test_a_bar_over_the_rest_begins_at_0_again() -> None:
    def bars(total: int) -> list[StepMark]:
        text = "".join(f"Epochs: {100 * n // total}%|##  | {n}/{total} [00:01<00:02]\r" for n in range(total + 1))
        return marks(lines_of(text), at=0.0)

    whole, rest = steps_of([bars(40)[:5], bars(37)])
    assert ([mark.step for mark in whole], rest[0].step, rest[-1].step) == ([1, 2, 3, 4], 4, 40)
    assert {mark.total for mark in rest} == {40}
    # The same total: it started over.
    _, again = steps_of([bars(40)[:5], bars(40)])
    assert again[0].step == 1


def test_a_count_is_a_step_only_if_nothing_else_is() -> None:
    assert parsed_steps("sampled 100/2000\nsampled 200/2000\n") == [100, 200]
    assert parsed_steps("step 1\nmem 100/2000\nmem 200/2000\nmem 300/2000\nstep 2\n") == [1, 2]


def test_progress_comes_from_the_program_or_from_an_undisturbed_run() -> None:
    assert progress_of(marks(lines_of("step 45/60\n"), at=0.0)) == 0.75
    assert progress_of(marks(lines_of("step 45\n"), at=0.0)) is None
    last = marks(lines_of("step 90\n"), at=0.0)[0]
    assert progress_of(marks(lines_of("step 45\n"), at=0.0), last=last) == 0.5
    assert progress_of(marks(lines_of("epoch 3\n"), at=0.0), last=last) is None, "it counts something else"


def test_numbers_are_found_in_every_usual_shape() -> None:
    assert numbers_in("loss 0.123, acc=0.9, lr: 1e-3") == {"loss": 0.123, "acc": 0.9, "lr": 0.001}
    assert numbers_in('{"eval": {"loss": 2, "time": 7}, "ok": true}') == {"eval.loss": 2.0}
    assert numbers_in("took 3.2 s, elapsed=9") == {}
    assert last_numbers(lines_of('step 1 loss 3\n{"loss": 1.5}\nbye\n')) == {"loss": 1.5}
    assert last_numbers(lines_of("step 1 loss 3\nstep 2 loss 2\nbye\n")) == {"step": 2.0, "loss": 2.0}
    assert curve_in(lines_of("[4] loss: 0.25\n"), "[") == {"loss": {4: 0.25}}
    assert curve_in(lines_of("step 1 loss 3.0\nstep 2 loss 2.0\nloss 9\n"), "step") == {"loss": {1: 3.0, 2: 2.0}}


# Resuming


def handover(**changes: Any) -> Handover:
    usual: dict[str, Any] = {
        "attempt": 1,
        "moment": "in the middle",
        "notice": True,
        "committed": "0001-00001",
        "restored": "0001-00001",
        "committed_step": 40,
        "reached_step": 40,
        "began_step": 1,
        "last_step": 45,
        "first_step": 41,
        "steps_after": 20,
    }
    return Handover(**{**usual, **changes})


def case(*passed: Handover, **changes: Any) -> Case:
    return Case(**{"path": "", "written": True, "commits": 2, "handovers": passed, **changes})


# First and last value before the preemption, and the next one.
LOSS = {"loss": (9.0, 1.0, 0.9)}


def named(**changes: Any) -> Case:
    steps = {"named_step": 40, "began_named_step": 10, "first_step": None, "read": "m.pt"}
    return case(handover(**{**steps, **changes}))


@pytest.mark.parametrize(
    ("given", "verdict", "reason"),
    [
        (case(handover()), "pass", "continued at step 41 after 45"),
        (case(handover(last_step=None)), "pass", "continued at step 41"),
        (case(handover(first_step=1)), "fail", "after every preemption: its checkpoint was restored but ignored"),
        (case(handover(), handover(first_step=1)), "fail", "1 of 2 times"),
        (case(handover(committed="", restored=""), commits=0, written=False), "fail", "no `[checkpoint] path` is set"),
        (case(handover(), commits=0, written=False, path="ckpt"), "fail", "nothing was ever written to `ckpt`"),
        (case(handover(), commits=0, path="ckpt"), "fail", "were never unchanged"),
        (case(handover(), commits=0, only_logs=True, path="ckpt"), "fail", "only logs and settings were written"),
        (case(handover(committed="", restored="")), "fail", "resuming was not tested"),
        (case(handover(restored="")), "fail", "could not be restored"),
        (case(), "fail", "never preempted"),
        (case(handover(first_step=None)), "skip", "nothing shows whether"),
        (
            case(handover(first_step=None, steps_after=0, unread="m.pt"), failed=True),
            "fail",
            "the program failed before",
        ),
        # Files come first: a late step proves nothing if no checkpoint file was opened.
        (case(handover(unread="model.pt")), "fail", "`model.pt` was not opened after the restore"),
        (case(handover(unread="m.pt", trend={"loss": (9.0, 1.0, 1.1)})), "pass", "continued at step 41"),
        (case(handover(read="m.pt", first_step=None)), "skip", "cannot tell: a checkpoint was restored, and it read"),
        (case(handover(steps_after=1)), "skip", "nothing shows"),
        # Names of the checkpoints.
        (named(next_named_step=50), "pass", "its first new checkpoint is of step 50; it read `m.pt`"),
        (named(next_named_step=10, read=""), "fail", "it wrote the checkpoint of step 10 again"),
        # It started over, and skips the names that exist (Orbax).
        (named(next_named_step=50, first_step=1, unread="m.pt", read=""), "fail", "`m.pt` was not opened"),
        (named(next_named_step=50, first_step=1, read=""), "fail", "it began at step 1 again"),
        # A booster counts from 0 again.
        (case(handover(read="m.pt", first_step=1)), "skip", "it began at step 1 again"),
        (case(handover(read="m.pt", first_step=1, trend=LOSS)), "skip", "`loss` continued at 0.9 after 1"),
        (
            case(handover(read="m.pt", first_step=1, trend=LOSS, did_less="it did 60")),
            "pass",
            "it did 60; `loss` continued",
        ),
        (
            case(handover(read="m.pt", first_step=1, trend=LOSS, did_all="it did 100")),
            "fail",
            "it read its checkpoint, and did all of the work again (it did 100; it began at",
        ),
        (case(handover(read="m.pt", first_step=1, did_less="it did 60 of 100")), "pass", "it did 60 of 100; it read"),
        (case(handover(read="m.pt", first_step=1, did_all="it did 100 of 100")), "fail", "it did 100 of 100; it began"),
        (case(handover(read="m.pt", repeats_numbers="`loss` 9, 8")), "fail", "the same numbers again: `loss` 9, 8"),
        (case(handover(first_step=None, trend={"loss": (9.0, 1.0, 8.9)})), "fail", "`loss` was 8.9 again"),
        # It restores the step, and not the weights.
        (case(handover(trend={"loss": (9.0, 1.0, 8.9)})), "fail", "continued at step 41 after 45; but `loss` was 8.9"),
        (case(handover(trend={"loss": (9.0, 1.0, 12.0)})), "fail", "but `loss` was 12 again"),
        (case(handover(trend={"loss": (9.0, 1.0, 30.0)})), "pass", "continued at step 41"),
        (case(handover(trend={"loss": (9.0, 1.0, 8.9), "acc": (0.1, 0.9, 0.9)})), "pass", "continued at step 41"),
        (case(handover(trend={"tokens": (9.0, 1.0, 8.9)})), "pass", "continued at step 41"),
        # A checkpoint of the first steps: a start near the beginning proves nothing.
        (case(handover(committed_step=2, reached_step=2, first_step=1)), "skip", "too early"),
        (case(handover(committed_step=2, reached_step=2, first_step=2)), "pass", "continued at step 2"),
    ],
)
def test_whether_it_resumed(given: Case, verdict: str, reason: str) -> None:
    found = resumes(given)
    assert (found.verdict, reason in found.answer) == (verdict, True), found
    assert found.hint or verdict == "pass"


def test_cannot_tell_is_not_a_pass_and_has_its_own_exit_code() -> None:
    def exit_code(*verdicts: FindingVerdict) -> int:
        questions = ["finishes", RESUMES, *("work lost" for _ in verdicts[2:])]
        findings = [Finding(question=q, verdict=v, answer="") for q, v in zip(questions, verdicts, strict=True)]
        drilled = Evidence(run="r", state=RunState())
        found = DrillResult(report=report(drilled, None, findings, None), drilled=drilled, undisturbed=None)
        return found.exit_code

    assert exit_code("pass", "pass", "warn") == 0
    assert exit_code("pass", "skip", "pass") == 10
    assert exit_code("pass", "fail") == 8
    # A failure counts, whatever is unknown beside it.
    assert exit_code("fail", "skip") == 8


@pytest.mark.parametrize(
    ("given", "verdict", "reason"),
    [
        (case(handover()), "pass", "no step in a checkpoint was repeated"),
        (case(handover(first_step=20)), "fail", "continued at step 20, but step at least 40 was committed"),
        (case(handover(first_step=20, step_is_exact=True)), "fail", "but step 40 was committed"),
        (case(handover(committed="0001-00002")), "fail", "the older `0001-00001` was restored"),
        (case(handover(committed="0001-00002", outcome="fenced")), "pass", "no step"),
        (case(handover(committed_step=None, reached_step=40, first_step=20)), "skip", "unknown"),
        (case(handover(committed_step=None, reached_step=None, first_step=46)), "pass", "no step"),
        # A save in the background holds an earlier step than the last one printed before its files were written.
        (case(handover(first_step=36, steps_per_save=10)), "pass", "no step"),
        (case(handover(first_step=31, steps_per_save=10)), "fail", "step at least 40 was committed"),
        # A booster counts from 0 again; its checkpoints go on.
        (
            case(handover(read="m.pt", first_step=1, named_step=40, next_named_step=45, began_named_step=5)),
            "pass",
            "no",
        ),
        (case(handover(read="m.pt", first_step=1, did_less="it did 60 of 100")), "skip", "unknown"),
        # It read the checkpoint, and only the amount of work will show whether it used it.
        (case(handover(read="m.pt", first_step=1)), "skip", "unknown"),
        (case(handover(read="m.pt", first_step=1, did_all="it did 100 of 100")), "fail", "continued at step 1"),
        # Preempted before it reported a step: undecided.
        (case(handover(first_step=None)), "skip", "unknown"),
        (case(handover(first_step=None), handover()), "pass", "1 of 2 preemptions"),
    ],
)
def test_whether_it_continued_at_the_right_step(given: Case, verdict: str, reason: str) -> None:
    found = right_step(given)
    assert (found.verdict, reason in found.answer) == (verdict, True), found


# Exits


@pytest.mark.parametrize(
    ("leave_s", "exit_code", "grace_s", "verdicts"),
    [
        (3.0, 0, 30.0, ["pass", "pass"]),
        (45.0, 0, 120.0, ["warn", "pass"]),
        (28.0, 137, 30.0, ["fail", "skip"]),
        (118.0, 137, 120.0, ["warn", "fail"]),
    ],
)
def test_whether_the_last_save_fits(leave_s: float, exit_code: int, grace_s: float, verdicts: list[str]) -> None:
    left = handover(leave_s=leave_s, exit_code=exit_code, outcome="preempted")
    assert [found.verdict for found in last_save([left], grace_s)] == verdicts


def test_an_exit_with_0_is_a_remark_and_not_a_failure() -> None:
    assert on_sigterm([handover(exit_code=0)]).verdict == "note"
    assert on_sigterm([handover(exit_code=143)]).verdict == "pass"
    assert on_sigterm([handover(exit_code=None, notice=False)]).verdict == "skip"


WRITING = "the command ended while it was writing"


@pytest.mark.parametrize(
    ("left", "verdict", "reason"),
    [
        # Its handler wrote a checkpoint that is incomplete.
        ({"ending": "handled", "saved_after_notice": True, "unsaved": WRITING}, "fail", f"committed: {WRITING}"),
        ({"ending": "cut", "exit_code": 137, "saved_after_notice": True, "unsaved": WRITING}, "fail", WRITING),
        ({"ending": "handled", "unsaved": WRITING}, "warn", WRITING),
        # Without a handler it died of SIGTERM, during one of its usual saves.
        ({"ending": "cut", "saved_after_notice": True, "unsaved": WRITING, "lost_s": 0.1}, "warn", "SIGTERM killed it"),
        ({"ending": "cut", "saved_after_notice": True, "unsaved": WRITING, "lost_s": 2.9}, "warn", "2.9 s of work"),
        ({"ending": "cut", "saved_after_notice": True, "unsaved": WRITING, "lost_s": 9.0}, "warn", "9.0 s of work"),
        ({"ending": "cut", "unsaved": WRITING, "lost_s": 0.1}, "warn", "SIGTERM killed it"),
        ({"ending": "cut"}, "note", "it saves nothing on SIGTERM"),
        ({"ending": "handled", "saved_after_notice": True}, "pass", "1 of 1 times"),
        ({"notice": False}, "skip", "no preemption had a notice"),
    ],
)
def test_whether_it_saved_after_the_notice(left: dict[str, Any], verdict: str, reason: str) -> None:
    found = saved_after_notice([handover(**{"exit_code": 143, **left})])
    assert (found.verdict, reason in found.answer) == (verdict, True), found
    assert "SIGTERM" in found.hint or verdict not in ("warn", "fail")


# From a story


def story(*, step: int | None = None) -> RunState:
    def placed(attempt: int, at: float) -> ev.Placed:
        return ev.Placed(
            attempt=attempt,
            cloud="local",
            region="r",
            zone="z",
            type="t",
            spot=True,
            price_usd_per_hour=1.0,
            machine=f"m{attempt}",
            at=at,
        )

    return fold(
        [
            ev.Submitted(at=0.0),
            placed(1, 1.0),
            ev.Started(attempt=1, at=2.0),
            ev.Saved(attempt=1, checkpoint="c1", step=step, at=8.0),
            ev.Noticed(attempt=1, why="preempted", grace_s=30.0, at=10.0),
            placed(2, 10.1),
            ev.Stopped(attempt=1, outcome="preempted", exit_code=143, at=11.0),
            ev.Started(attempt=2, resumed_from="c1", resumed_step=step, at=12.0),
            ev.Finished(attempt=2, at=20.0),
        ]
    )


def test_a_handover_is_read_from_the_story_the_steps_and_the_disk() -> None:
    first = [StepMark(word="step", step=n, at=2.0 + n) for n in range(1, 8)]
    second = [StepMark(word="step", step=n, at=9.0 + n) for n in range(5, 10)]
    observed = Observations(
        injected=(Injected(injection=Injection(moment="in the middle", notice=True), attempt=1, at=9.9),),
        writes={1: [(3.1, "state"), (7.5, "state")]},
    )
    (found,) = handovers(Evidence(run="r", state=story(), observed=observed, steps={1: first, 2: second}))
    assert (found.committed, found.restored, found.committed_step, found.step_is_exact) == ("c1", "c1", 5, False)
    assert (found.last_step, found.first_step, found.repeated_steps) == (7, 5, 3)
    assert (found.lost_s, found.recovery_s, found.leave_s) == (3.0, 2.0, 1.0)


def test_the_name_of_a_checkpoint_has_its_step_unless_it_counts_something_else() -> None:
    first = [StepMark(word="epoch", step=n, at=2.0 + n) for n in range(1, 8)]
    (named,) = handovers(Evidence(run="r", state=story(step=4), steps={1: first}))
    assert (named.committed_step, named.step_is_exact) == (4, True)
    (other,) = handovers(Evidence(run="r", state=story(step=4000), steps={1: first}))
    assert (other.committed_step, other.step_is_exact) == (None, False)


def test_a_number_that_an_undisturbed_run_printed_later_proves_nothing() -> None:
    """A noisy loss may be as at the first step by chance."""
    losses = [0.403, 0.31, 0.305, 0.3, 0.295, 0.403, 0.29]
    series = {1: {"loss": list(enumerate(losses[:5], 3))}, 2: {"loss": [(13.0, losses[5]), (14.0, losses[6])]}}
    drilled = Evidence(run="r", state=story(), series=series)

    def undisturbed(values: list[float]) -> Evidence:
        return Evidence(run="u", state=story(), series={1: {"loss": list(enumerate(values))}})

    assert handovers(drilled)[0].trend["loss"] == (0.403, 0.295, 0.403)
    assert handovers(drilled, undisturbed(losses))[0].trend == {}
    # One that starts over prints the first numbers, which an undisturbed run printed once.
    assert handovers(drilled, undisturbed([0.403, 0.29, 0.28]))[0].trend


# Results and cost


def evidence(results: dict[str, float], curve: dict[int, float] | None = None) -> Evidence:
    steps = {2: [StepMark(word="step", step=n, at=0.0) for n in (30, 31, 40)]}
    return Evidence(run="r", state=RunState(), results=results, curves={"loss": curve or {}}, steps=steps)


def test_the_results_are_compared_within_the_tolerance() -> None:
    assert compared(evidence({"loss": 1.0}), evidence({"loss": 1.0 + 1e-9}), 1e-6).verdict == "pass"
    assert compared(evidence({"loss": 1.0}), evidence({"loss": 1.01}), 0.1).verdict == "pass"
    found = compared(evidence({"loss": 1.0, "n": 5}), evidence({"loss": 1.01, "n": 5}), 1e-6)
    assert found.verdict == "fail"
    assert "1 of 2 final numbers differ: `loss` is 1.01 and 1 undisturbed" in found.answer
    assert compared(evidence({}), evidence({"loss": 1.0}), 1e-6).verdict == "warn"
    assert compared(evidence({"loss": float("nan")}), evidence({"loss": float("nan")}), 1e-6).verdict == "pass"


def test_without_a_wish_to_compare_other_results_are_a_warning() -> None:
    one, other = replace(evidence({"loss": 1.0}), state=story()), replace(evidence({"loss": 1.5}), state=story())
    for compare, verdict in ((True, "fail"), (False, "warn")):
        found = judge(
            Spec(name="n", command="c"), other, undisturbed=one, grace_s=30.0, tolerance=1e-6, compare=compare
        )
        assert [f.verdict for f in found if f.question == "same result as undisturbed"] == [verdict]


def test_a_different_curve_names_the_attempt_that_caused_it() -> None:
    found = compared(evidence({}, {29: 3.0, 31: 2.0, 40: 1.0}), evidence({}, {29: 3.0, 31: 2.5, 40: 1.0}), 1e-6)
    assert found.verdict == "fail"
    assert "the curve of `loss` differs from step 31 on, after attempt 2 began at step 30" in found.answer


def test_the_cost_includes_recovery_and_lost_work() -> None:
    cheap = prices(mean_life_s=3600, recovery_s=60, lost_s=300, spot_usd_per_hour=0.9, on_demand_usd_per_hour=3.0)
    assert cheap.spot_usd_per_useful_hour == pytest.approx(1.0)
    assert cheap.saving == pytest.approx(2 / 3)
    never = prices(mean_life_s=100, recovery_s=60, lost_s=60, spot_usd_per_hour=0.9, on_demand_usd_per_hour=3.0)
    assert never.spot_usd_per_useful_hour is None


def test_two_curves_are_plotted() -> None:
    drawn = plot({n: 10.0 - n for n in range(8)}, {n: 10.0 - min(n, 4) for n in range(8)}, width=20, height=6)
    assert "•" in drawn
    assert "×" in drawn
    assert plot({1: 1.0}, {1: 1.0}) == ""
