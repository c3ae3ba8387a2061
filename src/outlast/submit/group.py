"""Submission of a group: all tasks are validated before any is written, and none starts before all are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import msgspec

from outlast.clouds.cloud import Cloud
from outlast.code.record import CodeRecord
from outlast.errors import Exists, NoSuchRun, OutlastError, SpecError, UsageError
from outlast.runs.events import Cancelled
from outlast.runs.group import Groups, Seat
from outlast.spec.spec import CodeSpec, EnvironmentSpec
from outlast.spec.tasks import Task
from outlast.store.parallel import in_parallel
from outlast.submit.prepare import PreparedRun, prepare, store_code
from outlast.submit.validate import validate
from outlast.submit.write import write_member
from outlast.user import current_user
from outlast.workspace import RunRequest, Workspace


class GroupSubmitter:
    """One submission of a group, or of more runs for a group."""

    def __init__(
        self,
        workspace: Workspace,
        clouds: Mapping[str, Cloud],
        *,
        environment: Mapping[str, str],
        source: str = "outlast.toml",
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.workspace = workspace
        self.clouds = clouds
        self.environment = environment
        self.source = source
        self.report = report
        self.groups = Groups(workspace)

    def submit(self, name: str, tasks: Sequence[Task]) -> tuple[str, list[RunRequest]]:
        """Write a group and its runs. They start when the last is written; if we crash before that, never."""
        # Prepare all first: it may take long, and supervisors wait for the last run of a group only for a while.
        prepared = self._prepare(tasks)
        group = self.groups.reserve(name, who=current_user(), tasks=tuple(task.name for task in tasks))
        with ExitStack() as undo:
            undo.callback(self._cancel, group)
            members = [
                (task, one, number)
                for task, one in zip(tasks, prepared, strict=True)
                for number in range(1, task.most + 1)
            ]
            requests = self.workspace.each(lambda member: self._write_first(group, *member), members)
            self._check_unended(group, requests)
            self.groups.seal(group)
            undo.pop_all()
        self.workspace.each(lambda request: self.workspace.wake(request.run), requests)
        return group, requests

    def add(self, group: str, task: Task, count: int) -> list[RunRequest]:
        """Write more runs of one task of a live group. Several users may do so at once."""
        if task.single:
            raise UsageError(
                f"task `{task.name}` of {group} has no `count`: the group has exactly one run of it",
                hint=f'to allow several, write `count = "1..8"` into [tasks.{task.name}]',
            )
        if not self.groups.sealed(group):
            raise UsageError(
                f"group {group} is not complete: its submission is still going on, or has failed",
                hint="try again in a moment, or submit the group again",
            )
        (prepared,) = self._prepare([task])
        taken = {seat.run for seat in self.groups.seats(group)}
        requests: list[RunRequest] = []
        number = 1
        while len(requests) < count:
            if f"{group}-{task.name}-{number}" not in taken:
                try:
                    requests.append(self._write(group, task, prepared, number, spare=False))
                except Exists:
                    pass  # another user added this number at the same time
            number += 1
        return requests

    def live(self, name: str) -> str:
        """Return the newest group of this name that has a live run. Raises NoSuchRun."""
        live = {*self.workspace.heartbeats(), *self.workspace.wakeups()}
        found = [
            group
            for group in self.groups.all()
            if group.rpartition("-")[0] == name and any(seat.run in live for seat in self.groups.seats(group))
        ]
        if not found:
            raise NoSuchRun(
                f"no group `{name}` is running in {self.workspace.url}",
                hint="start it with `outlast run`, or name one with `--group`",
            )
        return max(found, key=lambda group: int(group.rpartition("-")[2]))

    def _prepare(self, tasks: Sequence[Task]) -> list[PreparedRun]:
        """Validate all tasks, then prepare each; tasks of one folder share one bundle. Raises SpecError."""
        problems: list[str] = []
        specs = []
        for task in tasks:
            try:
                specs.append(
                    validate(self.workspace, self.clouds, task.spec, environment=self.environment, source=self.source)
                )
            except SpecError as problem:
                problems += [f"[tasks.{task.name}] {text}" for text in problem.problems]
        if problems:
            raise SpecError(problems, source=self.source)
        codes: dict[tuple[CodeSpec, EnvironmentSpec], CodeRecord] = {}
        for spec in specs:
            if (spec.code, spec.environment) not in codes:
                codes[spec.code, spec.environment] = store_code(self.workspace, spec, self.report)
        return [
            prepare(
                self.workspace,
                self.clouds,
                spec,
                codes[spec.code, spec.environment],
                environment=self.environment,
                report=self.report,
            )
            for spec in specs
        ]

    def _write_first(self, group: str, task: Task, prepared: PreparedRun, number: int) -> RunRequest:
        return self._write(group, task, prepared, 0 if task.single else number, spare=number > task.least)

    def _write(self, group: str, task: Task, prepared: PreparedRun, number: int, *, spare: bool) -> RunRequest:
        run = f"{group}-{task.name}" + (f"-{number}" if number else "")
        member = prepared.spec.member
        assert member is not None
        member = msgspec.structs.replace(member, group=group, spare=spare)
        spec = msgspec.structs.replace(prepared.spec, member=member)
        # The seat goes first: a member without one would never be released.
        self.groups.claim(group, Seat(run=run, task=task.name))
        return write_member(self.workspace, self.clouds, msgspec.structs.replace(prepared, spec=spec), run=run)

    def _check_unended(self, group: str, requests: Sequence[RunRequest]) -> None:
        """Raise UsageError if a run ended while we wrote the others, as happens if this computer was suspended.

        The other runs would run and be billed without it.
        """
        stories = [self.workspace.story(request.run) for request in requests]
        in_parallel(lambda story: story.refresh(), stories)
        for story in stories:
            if story.state.ending:
                raise UsageError(
                    f"{group} does not start: {story.run} is {story.state.ending} before all runs were written",
                    hint="submit the group again",
                )

    def _cancel(self, group: str) -> None:
        """Cancel the runs of an incomplete group. A supervisor gives up those that cannot be cancelled now."""
        self.report(f"submission of {group} was interrupted: cancelling its runs")
        event = Cancelled(who=current_user(), at=self.workspace.clock(), why="the group's submission was interrupted")
        try:
            for seat in self.groups.seats(group):
                self.workspace.story(seat.run).append(event, nonce=self.workspace.ids())
                self.workspace.wake(seat.run)
        except OutlastError:
            pass
