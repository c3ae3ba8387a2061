"""When each preemption of a drill is due, row by row."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from outlast.drill.injections import AttemptView, Injection, choose, due, moment_timeout_s


def view(**changes: Any) -> AttemptView:
    usual: dict[str, Any] = {"working_s": 1.0, "saves": 0, "own_saves": 0, "since_save_s": 0.0}
    return AttemptView(**{**usual, "steps_saved": None, "writing": False, **changes})


def test_few_preemptions_are_the_most_informative_ones_in_order() -> None:
    assert [str(injection) for injection in choose(3)] == [
        "before the first checkpoint, without notice",
        "in the middle, with notice",
        "while saving, without notice",
    ]
    assert [injection.moment for injection in choose(1)] == ["in the middle"]
    assert len(choose(9)) == 9
    assert choose(9)[-1].moment == "right before the end"
    assert not any(injection.notice for injection in choose(6, notice=False))


def test_a_distributed_run_loses_one_machine_all_machines_and_one_at_the_start() -> None:
    assert [str(injection) for injection in choose(4, nodes=2)] == [
        "before the start, without notice",
        "in the middle, with notice",
        "in the middle, without notice, all machines",
        "while saving, without notice",
    ]


@pytest.mark.parametrize(
    ("moment", "seen", "expected"),
    [
        ("before the first checkpoint", view(working_s=None), "wait"),
        ("before the first checkpoint", view(), "inject"),
        ("before the first checkpoint", view(saves=1), "late"),
        # It may start for minutes, however much an undisturbed run took.
        ("in the middle", view(working_s=None, saves=3, progress=0.9), "wait"),
        ("right before the end", view(working_s=None, saves=3, progress=0.9), "wait"),
        ("in the middle", view(), "wait"),
        ("in the middle", view(saves=3), "wait"),
        # Without steps, only the amount of work shows a resume.
        ("in the middle", view(saves=3, own_saves=1, since_save_s=0.5), "wait"),
        ("in the middle", view(saves=3, own_saves=3, since_save_s=0.5), "inject"),
        ("in the middle", view(saves=3, own_saves=1, since_save_s=0.5, steps_saved=2), "wait"),
        ("in the middle", view(saves=3, own_saves=1, since_save_s=0.5, steps_saved=3), "inject"),
        ("in the middle", view(saves=3, own_saves=3, since_save_s=0.5, steps_saved=2), "inject"),
        ("in the middle", view(saves=3, own_saves=3, since_save_s=0.1, progress=0.4), "wait"),
        ("in the middle", view(saves=3, own_saves=3, since_save_s=0.1, progress=0.5), "inject"),
        ("in the middle", view(saves=3, own_saves=3, since_save_s=0.5, progress=0.2), "wait"),
        ("in the middle", view(saves=3, own_saves=3, since_save_s=0.5, progress=0.3), "inject"),
        ("in the middle", view(progress=0.55), "wait"),
        ("in the middle", view(progress=0.6), "wait"),
        ("in the middle", view(progress=0.95), "wait"),
        ("in the middle", view(progress=0.6, sure=True), "inject"),
        ("in the middle", view(saves=1, progress=0.6), "inject"),
        ("in the middle", view(saves=1, own_saves=1, progress=0.6, steps_saved=3), "inject"),
        ("in the middle", view(saves=4, own_saves=4, since_save_s=0.1), "inject"),
        ("in the middle", view(working_s=61.0), "inject"),
        ("while saving", view(writing=True), "wait"),
        ("while saving", view(saves=1, writing=True), "inject"),
        ("while saving", view(saves=1), "wait"),
        ("right before the end", view(progress=0.5), "wait"),
        ("right before the end", view(progress=0.9), "inject"),
        ("right before the end", view(working_s=61.0), "late"),
    ],
)
def test_a_preemption_is_due_when_its_moment_comes(moment: Any, seen: AttemptView, expected: str) -> None:
    assert due(Injection(moment=moment, notice=True), seen, wait_s=60.0) == expected


def test_the_middle_can_begin_later() -> None:
    middle, seen = Injection(moment="in the middle", notice=True), view(saves=3, own_saves=3, since_save_s=0.5)
    for progress, expected in ((0.4, "wait"), (0.6, "inject"), (None, "wait")):
        seen = msgspec.structs.replace(seen, progress=progress)
        assert due(middle, seen, wait_s=60.0, from_share=0.5) == expected


def test_the_wait_is_short_for_a_program_that_never_saved() -> None:
    assert moment_timeout_s(60.0, undisturbed_s=10.0, saves=2) == 60.0
    assert moment_timeout_s(60.0, undisturbed_s=10.0, saves=0) == 4.0
    assert moment_timeout_s(1.0, undisturbed_s=10.0, saves=0) == 1.0
