"""The parser of `[tasks]`, and its error messages."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.errors import SpecError
from outlast.spec.tasks import Task, parse_tasks

MASTER = {"command": "python master.py"}
WORKER = {"command": "python worker.py", "count": "2..8"}


def tasks(**tables: Any) -> dict[str, Task]:
    return {task.name: task for task in parse_tasks({"name": "evolve", "tasks": tables})}


def problems(**tables: Any) -> list[str]:
    with pytest.raises(SpecError) as raised:
        tasks(**tables)
    return raised.value.problems


def test_a_task_inherits_top_level_values() -> None:
    table = {
        "name": "evolve",
        "machine": {"cpus": 2, "memory": "4GB"},
        "env": {"A": "1", "B": "2"},
        "tasks": {"master": {**MASTER, "machine": {"cpus": 8}, "env": {"B": "3"}}},
    }
    (task,) = parse_tasks(table)
    assert str(task.spec.machine.cpus) == "8"
    assert str(task.spec.machine.memory_gb) == "4"
    assert task.spec.env == {"A": "1", "B": "3"}


def test_tasks_with_a_count_end_with_the_single_tasks_by_default() -> None:
    found = tasks(master=MASTER, worker=WORKER, watcher={**WORKER, "until": "worker"}, own={**WORKER, "until": []})
    expected = {name: task.spec.member.until for name, task in found.items() if task.spec.member}
    assert expected == {"master": (), "worker": ("master",), "watcher": ("worker",), "own": ()}


def test_tasks_are_ordered_by_their_dependencies() -> None:
    assert list(tasks(worker={**WORKER, "after": "master"}, master={**MASTER, "after": "base"}, base=MASTER)) == [
        "base",
        "master",
        "worker",
    ]


@pytest.mark.parametrize(("count", "expected"), [(3, (3, 3)), ("3", (3, 3)), ("2..8", (2, 8)), ("0..4", (0, 4))])
def test_counts(count: object, expected: tuple[int, int]) -> None:
    task = tasks(master=MASTER, worker={**WORKER, "count": count})["worker"]
    assert (task.least, task.most) == expected


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        ("8..2", 'its end is below its start; write "2..8"'),
        ("many", "invalid count"),
        (0, "between 1 and 1000"),
        (True, "invalid count"),
        (2.5, "invalid count"),
        (-1, "invalid count"),
        ("1..1001", "between 1 and 1000"),
    ],
)
def test_invalid_counts_are_refused(count: object, expected: str) -> None:
    (problem,) = problems(worker={**WORKER, "count": count})
    assert problem.startswith("[tasks.worker] count: ")
    assert expected in problem


def test_a_cycle_is_reported_with_its_tasks() -> None:
    (problem,) = problems(a={**MASTER, "after": "c"}, b={**MASTER, "after": "a"}, c={**MASTER, "after": ["b"]})
    assert problem.startswith("[tasks] after: these tasks wait for each other: ")
    assert problem.count("→") == 3


def test_a_task_cannot_wait_for_itself_or_for_an_unknown_task() -> None:
    assert problems(a={**MASTER, "after": ["a", "b"]}) == [
        "[tasks.a] after: a task cannot wait for itself",
        "[tasks.a] after: unknown task `b`: expected one of `a`",
    ]


@pytest.mark.parametrize("ready", ["started", "done", "port:5432", "file:up/now"])
def test_valid_ready_conditions(ready: str) -> None:
    member = tasks(master={**MASTER, "ready": ready})["master"].spec.member
    assert member is not None
    assert member.ready == ready


@pytest.mark.parametrize("ready", ["", "soon", "port:", "port:0", "port:65536", "port:x", "file:", 3])
def test_invalid_ready_conditions(ready: object) -> None:
    (problem,) = problems(master={**MASTER, "ready": ready})
    assert problem.startswith("[tasks.master] ready: ")


def test_all_problems_are_reported_at_once_and_shared_ones_once() -> None:
    table = {
        "name": "evolve",
        "colour": "red",
        "tasks": {"a": {"machine": {"cpu": 2}}, "b": {**MASTER, "limits": {"crashes": 0}}, "C": MASTER, "d": 3},
    }
    with pytest.raises(SpecError) as raised:
        parse_tasks(table)
    expected = raised.value.problems
    assert sum("colour" in problem for problem in expected) == 1
    assert "[tasks.a] command: missing" in "\n".join(expected)
    assert "[tasks.b] limits.crashes: expected a whole number of at least 1, got 0" in expected
    assert any("invalid name 'C'" in problem for problem in expected)
    assert any("expected a table, got 3" in problem for problem in expected)


def test_names_that_are_too_long_for_machines_are_refused() -> None:
    (problem,) = problems(**{"w" * 36: MASTER})
    assert "at most 40 characters" in problem


def test_a_table_without_tasks_is_refused() -> None:
    assert "expected at least one `[tasks.NAME]`" in problems()[0]
