"""The notation of search spaces, and errors in it."""

from __future__ import annotations

import pytest

from outlast.errors import SpecError
from outlast.spec.parse import parse
from outlast.spec.spec import Dimension
from outlast.spec.sweep import dimension, grid_size, looks_searched, values_of


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("3..10", Dimension(kind="int", low=3, high=10)),
        ("-3..10:2", Dimension(kind="int", low=-3, high=10, step=2)),
        ("0.5..2", Dimension(kind="float", low=0.5, high=2)),
        ("1..2.", Dimension(kind="float", low=1, high=2)),
        ("log(1e-4..1e-1)", Dimension(kind="float", low=1e-4, high=1e-1, log=True)),
        ("log( 1 .. 1000 )", Dimension(kind="int", low=1, high=1000, log=True)),
        ("adam, sgd", Dimension(kind="choice", choices=("adam", "sgd"))),
        ("1,2.5,true,x", Dimension(kind="choice", choices=(1, 2.5, True, "x"))),
        ([16, 32], Dimension(kind="choice", choices=(16, 32))),
    ],
)
def test_ranges_and_lists_are_parsed(written: object, meant: Dimension) -> None:
    assert dimension(written) == meant


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("10..3", "is empty: 10 is more than 3"),
        ("log(0..1)", "must start above 0"),
        ("0..1:0", "the step must be above 0"),
        ("log(1..2):1", "cannot have a step"),
        ("3..", "invalid range"),
        ("log(3)", "invalid range"),
        ("adam,,sgd", "not empty"),
        ([], "not empty"),
        ("a,a", "each value once"),
        (5, "invalid search space 5"),
        ("1..1e999", "finite"),
    ],
)
def test_invalid_ranges_are_refused_with_a_reason(written: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        dimension(written)


def test_every_problem_of_the_section_is_named() -> None:
    table = {
        "command": "true",
        "sweep": {"params": {"lr": "2..1", "x": "0.1..1"}, "goal": "loss", "sampler": "grid", "pruner": "magic"},
    }
    with pytest.raises(SpecError) as raised:
        parse(table)
    said = "\n".join(raised.value.problems)
    for part in ("[sweep.params] lr", "[sweep] goal", "[sweep] pruner", "give `x` a step"):
        assert part in said


def test_a_grid_can_be_counted() -> None:
    space = {"a": dimension("0..1:0.25"), "b": dimension("1..3"), "c": dimension("x,y")}
    assert values_of(space["a"]) == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert grid_size(space) == 30
    assert values_of(dimension("0..1.")) is None


def test_a_single_value_is_not_searched() -> None:
    assert [looks_searched(word) for word in ("3..10", "a,b", "log(1..2)", "5", "adam", "1.5")] == [True] * 3 + [
        False
    ] * 3


def test_a_run_of_the_same_file_takes_a_value_of_each_range() -> None:
    spec = parse({"command": "run {lr} {opt}", "sweep": {"params": {"lr": "1..3", "opt": ["a", "b"]}}})
    assert spec.params == {"lr": 1, "opt": "a"}
