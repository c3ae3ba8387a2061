"""Files with `[tasks]`: several runs that are submitted, followed and cancelled as one group."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from outlast.app.groups import GroupWatch, add_to_group, find_task, group_runs, submit_tasks, tasks_of
from outlast.cli.run.choice import Wanted, confirm_choice
from outlast.cli.run.follow import Follower
from outlast.cli.shared.options import clouds
from outlast.cli.shared.project import Project, naming_options
from outlast.cli.shared.terminal import note
from outlast.errors import UsageError

if TYPE_CHECKING:
    from outlast.app.types import Workspace
    from outlast.spec.spec import Spec

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
    if command:
        raise UsageError("a file with `[tasks]` has a command for each task; remove the command after `--`")
    tasks = tasks_of(project, overrides, report=note)

    def confirm(wanted: Sequence[tuple[Spec, int, str]]) -> None:
        asked = [Wanted(spec=spec, count=count, task=task) for spec, count, task in wanted]
        confirm_choice(clouds(workspace), asked, url=workspace.url, yes=yes)

    if not options.task:
        return submit_tasks(workspace, tasks, source=project.source, confirm=confirm, report=note)
    with naming_options({"task": "--task"}):
        task = find_task(tasks, options.task, project.source)
    return add_to_group(
        workspace,
        task,
        group=options.group,
        count=options.count,
        source=project.source,
        confirm=confirm,
        report=note,
    )


class GroupFollower:
    """All runs of a group, followed together; each line of output starts with the name of its run."""

    def __init__(self, workspace: Workspace, group: str, *, quiet: bool = False) -> None:
        self.workspace = workspace
        self.group = group
        self.quiet = quiet
        self.watch = GroupWatch(workspace, group)
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
        for run, serves in self.watch.added():
            name = run.removeprefix(f"{self.group}-")
            self.followers[run] = Follower(self.workspace, run, quiet=self.quiet, prefix=name)
            self.serves[run] = serves

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
