"""Files with `[tasks]`: several runs that are submitted, followed and cancelled as one group."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from outlast.app.user_config import user_config, with_defaults
from outlast.cli.run.choice import Wanted, confirm_choice
from outlast.cli.run.follow import Follower
from outlast.cli.shared.options import clouds
from outlast.cli.shared.project import Project, check_params, with_places
from outlast.cli.shared.terminal import note
from outlast.errors import SpecError, UsageError
from outlast.runs.group import Groups
from outlast.spec.tasks import Task, merged, parse_tasks

if TYPE_CHECKING:
    from outlast.app.types import Workspace

_POLL_S = 1.0


class GroupOptions:
    """The options `--task`, `--group` and `--count`."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.task: str = options.pop("task")
        self.group: str = options.pop("group")
        self.count: int = options.pop("count")

    def check(self, project: Project) -> bool:
        """Return whether the file describes a group. Raises UsageError."""
        is_group = "tasks" in project.table
        for option, value in (("--task", self.task), ("--group", self.group), ("--count", self.count)):
            if value and not is_group:
                raise UsageError(f"{option}: {project.source} has no `[tasks]`")
        if (self.group or self.count) and not self.task:
            raise UsageError("--group and --count need --task")
        return is_group


def submit_group(
    workspace: Workspace,
    project: Project,
    overrides: Mapping[str, Any],
    command: tuple[str, ...],
    options: GroupOptions,
    *,
    yes: bool = False,
) -> tuple[str, list[str]]:
    """Check, confirm and submit all tasks, or more runs of one; return the group and the submitted runs."""
    from outlast.submit.group import GroupSubmitter

    if command:
        raise UsageError("a file with `[tasks]` has a command for each task; remove the command after `--`")
    tasks = _tasks(project, overrides)
    known = clouds(workspace)
    submitter = GroupSubmitter(workspace, known, environment=os.environ, source=project.source, report=note)
    if not options.task:
        confirm_choice(
            known, [Wanted(spec=t.spec, count=t.least, task=t.name) for t in tasks], url=workspace.url, yes=yes
        )
        group, requests = submitter.submit(tasks[0].spec.name, tasks)
    else:
        task = _find_task(tasks, options.task, project.source)
        group = options.group or submitter.live(task.spec.name)
        submitter.groups.record(group)
        confirm_choice(
            known,
            [Wanted(spec=task.spec, count=options.count or task.least, task=task.name)],
            url=workspace.url,
            yes=yes,
        )
        requests = submitter.add(group, task, options.count or task.least)
    return group, [request.run for request in requests]


def _tasks(project: Project, overrides: Mapping[str, Any]) -> tuple[Task, ...]:
    table = with_places(project, with_defaults(merged(project.table, overrides), user_config()))
    tables = table.get("tasks")
    if isinstance(tables, dict):
        # Paths of a task are relative to the file, like all others.
        placed = {name: with_places(project, task, bare=True) for name, task in tables.items()}
        table["tasks"] = placed
    tasks = parse_tasks(table, source=project.source)
    check_params(project.table, overrides, [task.spec for task in tasks])
    if any(task.spec.image for task in tasks):
        raise SpecError(["[image]: a group needs an existing image; build it with `outlast image build`"])
    return tasks


def _find_task(tasks: tuple[Task, ...], name: str, source: str) -> Task:
    for task in tasks:
        if task.name == name:
            return task
    raise UsageError(f"--task: {source} has no task `{name}`; it has {', '.join(f'`{t.name}`' for t in tasks)}")


def group_runs(workspace: Workspace, group: str) -> list[str]:
    """Return the runs of the group."""
    names = [seat.run for seat in Groups(workspace).seats(group)]
    # A run that was submitted at the same moment as the group may have taken its name.
    return names + ([group] if workspace.story(group).refresh().exists else [])


class GroupFollower:
    """All runs of a group, followed together; each line of output starts with the name of its run."""

    def __init__(self, workspace: Workspace, group: str, *, quiet: bool = False) -> None:
        self.workspace = workspace
        self.group = group
        self.quiet = quiet
        self.groups = Groups(workspace)
        self.before: Callable[[], None] | None = None
        self.followers: dict[str, Follower] = {}
        self.serves: dict[str, bool] = {}
        self._listed_at = -math.inf

    def follow(self) -> None:
        """Follow until every run is over."""
        while True:
            self._add_followers()
            # `sum`, not `any`: every follower must advance.
            moved = sum(follower.advance() for follower in self.followers.values()) > 0
            if not moved and all(f.story.state.ending for f in self.followers.values()):
                return
            time.sleep(0.02 if moved else 2.0 if self.workspace.store.remote else 0.1)

    def _add_followers(self) -> None:
        """Follow runs that were added since the last poll."""
        if time.monotonic() - self._listed_at < _POLL_S:
            return
        self._listed_at = time.monotonic()
        for seat in self.groups.seats(self.group):
            if seat.run in self.followers or not self.workspace.story(seat.run).refresh().exists:
                continue
            name = seat.run.removeprefix(f"{self.group}-")
            self.followers[seat.run] = Follower(self.workspace, seat.run, quiet=self.quiet, prefix=name)
            member = self.workspace.request(seat.run).spec.member
            self.serves[seat.run] = bool(member and member.until)

    def cancel(self) -> None:
        from outlast.app.actions import cancel_run

        for run in group_runs(self.workspace, self.group):
            cancel_run(self.workspace, run)

    def wait_until_closed(self) -> None:
        for follower in self.followers.values():
            follower.wait_until_closed()

    def finished(self) -> list[str]:
        return [run for run, follower in self.followers.items() if follower.story.state.ending == "finished"]

    def exit_code(self) -> int:
        """Return the first failure, without runs that serve others: their release is not a failure."""
        codes = [follower.exit_code() for run, follower in self.followers.items() if not self.serves[run]]
        return next((code for code in codes if code), 0)
