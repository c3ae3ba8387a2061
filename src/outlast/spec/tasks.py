"""The reader of `[tasks]`: a group of runs in one file. Reports the problems of all tasks at once. No IO."""

from __future__ import annotations

import re
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

import msgspec

from outlast.errors import SpecError
from outlast.spec import fields
from outlast.spec.parse import parse
from outlast.spec.reader import Reader, text, texts
from outlast.spec.spec import Member, Spec

# Machine names have at most 63 characters: group, number, task, number, attempt, workspace.
_NAMES_MAX = 40
_COUNT_MAX = 1000
_HINT = "see docs/groups.md"
_READY = re.compile(r"^(started|done|port:[1-9][0-9]{0,4}|file:[^\0]+)$")


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One task: its spec and the number of its runs."""

    name: str
    spec: Spec
    least: int = 1
    most: int = 1
    # No `count` is set: the name of its run has no number.
    single: bool = True


def parse_tasks(table: Mapping[str, Any], *, source: str = "outlast.toml") -> tuple[Task, ...]:
    """Return the tasks in the order in which they may start. Raises SpecError with all problems."""
    reader = Reader(table)
    tables = reader.section_of("tasks")
    common = {field: value for field, value in table.items() if field != "tasks"}
    if not tables.table:
        tables.wrong("tasks", "expected at least one `[tasks.NAME]` with a `command`")
    shared = _shared_problems(common, source)
    problems = reader.problems
    problems += shared
    tasks: list[Task] = []
    for name in tables.table:
        inner = Reader(_table(tables, name), section=f"tasks.{name}", problems=problems)
        _check_name(inner, name, common)
        task = _task(inner, name, tables.table, common, shared, source)
        if task is not None:
            tasks.append(task)
    problems += _check_order(tables)
    if problems:
        raise SpecError(list(dict.fromkeys(problems)), source=source, hint=_HINT)
    explicit = {name for name, own in tables.table.items() if "until" in own}
    return _ordered(_with_until(tasks, explicit))


def _table(tables: Reader, name: str) -> dict[str, Any]:
    value = tables.table[name]
    if not isinstance(value, Mapping):
        tables.wrong(name, f"expected a table, got {value!r}")
        return {"command": "true"}
    return dict(value)


def _shared_problems(common: Mapping[str, Any], source: str) -> list[str]:
    """Return the problems of the fields that all tasks share, which are reported once."""
    try:
        parse({"command": "true", **common}, source=source)
    except SpecError as problem:
        return problem.problems
    return []


def _check_name(reader: Reader, name: str, common: Mapping[str, Any]) -> None:
    try:
        fields.name(name)
    except ValueError as problem:
        reader.problems.append(f"[tasks]: {problem}")
    if len(name) + len(str(common.get("name", ""))) > _NAMES_MAX:
        reader.problems.append(f"[tasks] {name}: expected at most {_NAMES_MAX} characters including the group's name")


def _task(
    reader: Reader,
    name: str,
    all_tasks: Mapping[str, Any],
    common: Mapping[str, Any],
    shared: list[str],
    source: str,
) -> Task | None:
    single = "count" not in reader.table
    least, most = reader.take("count", _count, (1, 1))
    after: tuple[str, ...] = reader.take("after", texts, ())
    until: tuple[str, ...] = reader.take("until", texts, ())
    for field, named in (("after", after), ("until", until)):
        for other in named:
            if other not in all_tasks:
                reader.wrong(field, f"unknown task `{other}`: expected one of {', '.join(f'`{t}`' for t in all_tasks)}")
            elif other == name:
                reader.wrong(field, "a task cannot wait for itself")
    ready = reader.take("ready", _ready, "started")
    own = {field: value for field, value in reader.table.items() if field not in ("count", "after", "until", "ready")}
    if "command" not in own and "command" not in common:
        reader.wrong("command", 'missing: set it, e.g. command = "python train.py"')
        return None
    try:
        spec = parse(merged(common, own), source=source)
    except SpecError as problem:
        reader.problems += [_within(name, text) for text in problem.problems if text not in shared]
        return None
    if spec.machine.nodes > 1:
        reader.wrong("machine", "`nodes` cannot be used in a task; submit a separate run, see docs/distributed.md")
    member = Member(task=name, after=after, until=until, ready=ready)
    return Task(name=name, spec=msgspec.structs.replace(spec, member=member), least=least, most=most, single=single)


def _within(task: str, problem: str) -> str:
    """Turn `[machine] cpus: …` into `[tasks.worker] machine.cpus: …`."""
    section, found, rest = problem.partition("] ")
    if problem.startswith("[") and found:
        return f"[tasks.{task}] {section[1:]}.{rest}"
    return f"[tasks.{task}] {problem}"


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two tables recursively; `above` wins."""
    found = dict(below)
    for key, value in above.items():
        under = found.get(key)
        found[key] = merged(under, value) if isinstance(value, Mapping) and isinstance(under, Mapping) else value
    return found


def _count(value: Any) -> tuple[int, int]:
    """Read `3`, or `2..8`: at least two, up to eight while there is capacity."""
    match = (
        re.fullmatch(r"\s*(\d+)\s*(?:\.\.\s*(\d+)\s*)?", str(value)) if not isinstance(value, bool | float) else None
    )
    if match is None:
        raise ValueError(f'invalid count {value!r}: expected a number such as 4, or a range such as "2..8"')
    least = int(match.group(1))
    most = int(match.group(2) or least)
    if most < least:
        raise ValueError(f'invalid range "{value}": its end is below its start; write "{most}..{least}"')
    if not 1 <= most <= _COUNT_MAX:
        raise ValueError(f"expected between 1 and {_COUNT_MAX} runs of a task, got {value!r}")
    return least, most


def _ready(value: Any) -> str:
    ready = text(value)
    if not _READY.match(ready):
        raise ValueError(f"expected `started`, `done`, `port:N` or `file:PATH`, got {value!r}")
    if ready.startswith("port:") and int(ready[5:]) > 65535:
        raise ValueError(f"expected a port of at most 65535, got {value!r}")
    return ready


def _check_order(tables: Reader) -> list[str]:
    """Return a message that lists a dependency cycle, if there is one."""
    for field, verb in (("after", "wait for"), ("until", "end with")):
        graph = {name: _named(table, field) for name, table in tables.table.items()}
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as problem:
            way = " → ".join(f"`{name}`" for name in reversed(problem.args[1]))
            if len(set(problem.args[1])) > 1:
                return [f"[tasks] {field}: these tasks {verb} each other: {way}"]
    return []


def _named(table: Any, field: str) -> list[str]:
    try:
        return list(texts(table[field]))
    except (ValueError, KeyError, TypeError):
        return []


def _with_until(tasks: list[Task], explicit: set[str]) -> list[Task]:
    """Let tasks with a count end with the single tasks, which they serve, unless `until` is set.

    `until = []` marks tasks with independent work, which always run to their end.
    """
    served = tuple(task.name for task in tasks if task.single)
    found = []
    for task in tasks:
        member = task.spec.member
        assert member is not None
        if not task.single and task.name not in explicit and served:
            member = msgspec.structs.replace(member, until=served)
            task = msgspec.structs.replace(task, spec=msgspec.structs.replace(task.spec, member=member))
        found.append(task)
    return found


def _ordered(tasks: list[Task]) -> tuple[Task, ...]:
    by_name = {task.name: task for task in tasks}
    graph = {name: task.spec.member.after for name, task in by_name.items() if task.spec.member}
    return tuple(by_name[name] for name in TopologicalSorter(graph).static_order())
