"""Groups of runs: the tasks of a file, submitted together, and the runs behind the names that a user gives."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from outlast.app.clouds import clouds
from outlast.app.project import Project, check_params, with_places
from outlast.app.user_config import user_config, with_defaults
from outlast.errors import SpecError, UsageError
from outlast.runs.group import Groups
from outlast.spec.tasks import Task, merged, parse_tasks
from outlast.workspace import Workspace

if TYPE_CHECKING:
    from outlast.spec.spec import Spec

Report = Callable[[str], None]
# Called with the specs that are about to be submitted, their numbers and their tasks; raises to decline.
Confirm = Callable[[Sequence[tuple["Spec", int, str]]], None]


def tasks_of(project: Project, overrides: Mapping[str, Any], *, report: Report) -> tuple[Task, ...]:
    """Return the tasks of a project file. Raises SpecError with all problems."""
    table = with_places(project, with_defaults(merged(project.table, overrides), user_config()))
    tables = table.get("tasks")
    if isinstance(tables, dict):
        # Paths of a task are relative to the file, like all others.
        placed = {name: with_places(project, task, bare=True) for name, task in tables.items()}
        table["tasks"] = placed
    tasks = parse_tasks(table, source=project.source)
    check_params(project.table, overrides, [task.spec for task in tasks], report=report)
    if any(task.spec.image for task in tasks):
        raise SpecError(["[image]: a group needs an existing image; build it with `outlast image build`"])
    return tasks


def submit_tasks(
    workspace: Workspace, tasks: Sequence[Task], *, source: str, confirm: Confirm, report: Report
) -> tuple[str, list[str]]:
    """Submit all tasks as a new group; return the group and its runs."""
    submitter = _submitter(workspace, source, report)
    confirm([(task.spec, task.least, task.name) for task in tasks])
    group, requests = submitter.submit(tasks[0].spec.name, tuple(tasks))
    return group, [request.run for request in requests]


def add_to_group(
    workspace: Workspace, task: Task, *, group: str, count: int, source: str, confirm: Confirm, report: Report
) -> tuple[str, list[str]]:
    """Submit more runs of a task to a group; without a name it is the live group of the file."""
    submitter = _submitter(workspace, source, report)
    chosen = group or submitter.live(task.spec.name)
    submitter.groups.record(chosen)
    confirm([(task.spec, count or task.least, task.name)])
    requests = submitter.add(chosen, task, count or task.least)
    return chosen, [request.run for request in requests]


def _submitter(workspace: Workspace, source: str, report: Report) -> Any:
    from outlast.submit.group import GroupSubmitter

    return GroupSubmitter(workspace, clouds(workspace), environment=os.environ, source=source, report=report)


def find_task(tasks: Sequence[Task], name: str, source: str) -> Task:
    """Return a task by its name. Raises UsageError."""
    for task in tasks:
        if task.name == name:
            return task
    raise UsageError(f"task: {source} has no task `{name}`; it has {', '.join(f'`{t.name}`' for t in tasks)}")


def group_runs(workspace: Workspace, group: str) -> list[str]:
    """Return the runs of the group."""
    names = [seat.run for seat in Groups(workspace).seats(group)]
    # A run that was submitted at the same moment as the group may have taken its name.
    return names + ([group] if workspace.story(group).refresh().exists else [])


def runs_behind(workspace: Workspace, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the runs behind each name: a run, a prefix, `last`, or a group. Raises NoSuchRun."""
    known = set(Groups(workspace).all())
    found: dict[str, list[str]] = {}
    for name in names:
        if name in known:
            found[name] = group_runs(workspace, name)
        else:
            run = workspace.find(name)
            found[run] = [run]
    return found


class GroupWatch:
    """The members of a group while it lives: runs may be added, and some serve the others."""

    def __init__(self, workspace: Workspace, group: str) -> None:
        self.workspace = workspace
        self.group = group
        self._groups = Groups(workspace)
        self._known: set[str] = set()

    def added(self) -> list[tuple[str, bool]]:
        """Return the runs that were added since the last call, and whether each ends when others end."""
        found = []
        for seat in self._groups.seats(self.group):
            if seat.run in self._known or not self.workspace.story(seat.run).refresh().exists:
                continue
            self._known.add(seat.run)
            member = self.workspace.request(seat.run).spec.member
            found.append((seat.run, bool(member and member.until)))
        return found
