"""Asking for a group: all of its tasks are checked before any is written, and none starts before all are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import msgspec

from outlast.clouds.cloud import Cloud
from outlast.errors import Exists, NoSuchRun, OutlastError, SpecError, UsageError
from outlast.spec.spec import CodeSpec, Spec
from outlast.spec.tasks import Task
from outlast.supervisor.submit import announce, check_all, enlist, store_code, who_am_i
from outlast.workspace.each import in_parallel
from outlast.workspace.events import Cancelled
from outlast.workspace.group import Groups, Seat
from outlast.workspace.record import CodeRecord
from outlast.workspace.workspace import Request, Workspace


class Asker:
    """One person's asking, with all that every run of the group needs."""

    def __init__(
        self,
        workspace: Workspace,
        clouds: Mapping[str, Cloud],
        *,
        environment: Mapping[str, str],
        source: str = "outlast.toml",
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.workspace = workspace
        self.clouds = clouds
        self.environment = environment
        self.source = source
        self.say = say
        self.groups = Groups(workspace)
        self._codes: dict[CodeSpec, CodeRecord] = {}

    def ask(self, name: str, tasks: Sequence[Task]) -> tuple[str, list[Request]]:
        """The group and its runs. They wait until the last of them is written; if we die before, they never start."""
        tasks = self._checked(tasks)
        for task in tasks:
            self._code(task.spec)  # may take long, and runs that are written wait for the last of them only for a while
        group = self.groups.reserve(name, who=who_am_i(), tasks=tuple(task.name for task in tasks))
        with ExitStack() as undo:
            undo.callback(self._take_back, group)
            requests = [
                self._enlist(group, task, number if not task.single else 0, spare=number > task.least)
                for task in tasks
                for number in range(1, task.most + 1)
            ]
            self._refuse_broken(group, requests)
            self.groups.seal(group)
            undo.pop_all()
        for request in requests:
            self.workspace.ring(request.run)
        return group, requests

    def _refuse_broken(self, group: str, requests: Sequence[Request]) -> None:
        """Raises UsageError when some were given up or cancelled while we wrote the others, as happens to whoever slept
        in between: the rest would run, and cost, without them."""
        stories = [self.workspace.story(request.run) for request in requests]
        in_parallel(lambda story: story.refresh(), stories)
        for story in stories:
            if story.state.ending:
                why = f"{story.run} is {story.state.ending}, and the others were still being asked for"
                raise UsageError(f"{group} does not start: {why}", hint="ask for it again")

    def _take_back(self, group: str) -> None:
        """End what there is of a group that will never be whole; what cannot be reached is given up by a supervisor."""
        self.say(f"{group} was not asked for to the end: what there is of it is cancelled")
        event = Cancelled(who=who_am_i(), at=self.workspace.clock(), why="the group was not asked for to the end")
        try:
            for seat in self.groups.seats(group):
                self.workspace.story(seat.run).append(event, nonce=self.workspace.ids())
                self.workspace.ring(seat.run)
        except OutlastError:
            pass

    def add(self, group: str, task: Task, count: int) -> list[Request]:
        """More runs of one task, to a group that is under way; whoever asks, from wherever."""
        if task.single:
            raise UsageError(
                f"there is one `{task.name}` in {group}, and it has no `count`",
                hint=f'write `count = "1..8"` into [tasks.{task.name}] if several make sense',
            )
        if not self.groups.sealed(group):
            raise UsageError(f"the group {group} is still being asked for, or never was whole", hint="try again")
        (task,) = self._checked([task])
        taken = {seat.run for seat in self.groups.seats(group)}
        requests: list[Request] = []
        number = 1
        while len(requests) < count:
            if f"{group}-{task.name}-{number}" not in taken:
                try:
                    requests.append(self._enlist(group, task, number, spare=False))
                except Exists:
                    pass  # a teammate added one at the same time
            number += 1
        return requests

    def live(self, name: str) -> str:
        """The newest group of that name that has a live run. Raises NoSuchRun."""
        live = {*self.workspace.pulses(), *self.workspace.bells()}
        found = [
            group
            for group in self.groups.all()
            if group.rpartition("-")[0] == name and any(seat.run in live for seat in self.groups.seats(group))
        ]
        if not found:
            raise NoSuchRun(
                f"no group `{name}` is under way in {self.workspace.url}",
                hint="start it with `outlast run`, or name one with `--group`",
            )
        return max(found, key=lambda group: int(group.rpartition("-")[2]))

    def _checked(self, tasks: Sequence[Task]) -> list[Task]:
        """The tasks as they are to be asked for. Raises SpecError with what is wrong with any of them."""
        problems: list[str] = []
        checked: list[Task] = []
        for task in tasks:
            try:
                spec = check_all(self.workspace, task.spec, self.clouds, self.environment, source=self.source)
                checked.append(msgspec.structs.replace(task, spec=spec))
            except SpecError as problem:
                problems += [f"[tasks.{task.name}] {text}" for text in problem.problems]
        if problems:
            raise SpecError(problems, source=self.source)
        return checked

    def _enlist(self, group: str, task: Task, number: int, *, spare: bool) -> Request:
        run = f"{group}-{task.name}" + (f"-{number}" if number else "")
        member = task.spec.member
        assert member is not None
        member = msgspec.structs.replace(member, group=group, spare=spare)
        spec = msgspec.structs.replace(task.spec, member=member)
        # The seat goes first: a member that nobody knows of would never be released.
        self.groups.claim(group, Seat(run=run, task=task.name))
        request = enlist(self.workspace, run, spec, self._code(spec), environment=self.environment)
        return announce(self.workspace, self.clouds, request, environment=self.environment)

    def _code(self, spec: Spec) -> CodeRecord:
        """Tasks of one folder share one bundle."""
        if spec.code not in self._codes:
            self._codes[spec.code] = store_code(self.workspace, spec, self.say)
        return self._codes[spec.code]
