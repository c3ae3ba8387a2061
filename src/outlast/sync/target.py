"""Which machine is meant, now: one by its name, or wherever a run is at the moment. Refuses to launch anything."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol, cast

from outlast.clouds.cloud import Cloud, InteractiveCloud
from outlast.errors import BadRequest, CloudError, CloudUnreachable, NoSuchRun, NotFound, OutlastError, StoreUnreachable
from outlast.machines.ssh import Link
from outlast.runs.state import Attempt, RunState
from outlast.workspace import Workspace

_ASK_S = 1.0
# Whoever revives a machine elsewhere deletes it here first: for so long nobody believes that it is gone for good.
_GONE_S = 30.0

Report = Callable[[str], None]


class Over(OutlastError):
    """There is nothing to follow any more: the run has ended. No error of ours."""

    exit_code = 0


class Target(Protocol):
    """What is followed."""

    name: str
    # What relative folders are relative to, below the home of whom we log in as.
    base: str

    def connect(self, *, report: Report, patient: bool) -> Link:
        """A link to the machine that it is on now. Waits for one, and says why, if `patient`; else raises."""

    def moved(self, link: Link) -> bool:
        """Whether it is on another machine by now."""


class MachineTarget:
    """A machine by its name: it may stop, and come back with another address."""

    base = ""

    def __init__(self, cloud: InteractiveCloud, name: str) -> None:
        self.cloud = cloud
        self.name = name

    def connect(self, *, report: Report, patient: bool) -> Link:
        told, gone_at = "", 0.0
        while True:
            try:
                link = Link(self.cloud, self.name)
                link.refresh()
                return link
            except NotFound as problem:
                gone_at = gone_at or time.monotonic()
                if not patient or time.monotonic() > gone_at + _GONE_S:
                    raise NotFound(
                        f"machine `{self.name}` does not exist any more",
                        hint="`outlast machine list` shows those that do",
                    ) from problem
                why = f"{self.name} is gone; waiting in case that it is made again elsewhere"
            except (BadRequest, CloudUnreachable) as problem:
                if not patient:
                    raise self._explained(problem) from problem
                gone_at, why = 0.0, f"{problem.message}; waiting for it to come back"
            if why != told:
                report(why)
                told = why
            time.sleep(_ASK_S)

    def _explained(self, problem: CloudError) -> CloudError:
        if isinstance(problem, BadRequest) and "is stopped" in problem.message:
            return BadRequest(f"machine `{self.name}` is stopped", hint=f"`outlast machine start {self.name}`")
        return problem

    def moved(self, link: Link) -> bool:
        return False


class RunTarget:
    """A run, wherever it is: each attempt has a machine of its own."""

    base = "work"

    def __init__(self, workspace: Workspace, clouds: Mapping[str, Cloud], run: str) -> None:
        self.workspace = workspace
        self.clouds = clouds
        self.name = run
        self.story = workspace.story(run)

    def connect(self, *, report: Report, patient: bool) -> Link:
        told = ""
        while True:
            state = self.story.refresh()
            attempt = machine_of(state)
            if attempt is not None:
                try:
                    link = Link(cast(InteractiveCloud, self.clouds[attempt.cloud]), attempt.machine, patience_s=10.0)
                    link.refresh()
                    return link
                except (NotFound, BadRequest, CloudUnreachable) as problem:
                    why = f"{self.name}: {problem.message}; waiting for its next machine"
            elif state.ending:
                raise Over(f"{self.name} has {state.ending}; it has no machine any more", hint=_results(self.name))
            else:
                why = f"{self.name} has no machine now: {state.held or _stage(state)}"
            if why != told:
                report(why)
                told = why
            time.sleep(_ASK_S)

    def moved(self, link: Link) -> bool:
        try:
            attempt = machine_of(self.story.refresh())
        except StoreUnreachable:
            return False
        return attempt is not None and attempt.machine != link.name


def machine_of(state: RunState) -> Attempt | None:
    """The attempt whose machine can be entered: the one that runs, or one that is kept for debugging."""
    if state.current is not None:
        return state.current
    kept = [attempt for attempt in state.attempts if attempt.keep_s and not attempt.released]
    return kept[-1] if kept else None


def _stage(state: RunState) -> str:
    last = state.last
    if last is None or last.phase == "over":
        return "it waits for one"
    return f"{last.machine} is getting ready"


def _results(run: str) -> str:
    return f"`outlast pull {run}` fetches its results"


def find_target(name: str, clouds: Mapping[str, Cloud], workspace: Callable[[], Workspace]) -> Target:
    """A machine of that name, else a run. Raises NotFound if it is neither."""
    for cloud in clouds.values():
        try:
            cloud.machine(name)
        except (NotFound, BadRequest):
            continue
        return MachineTarget(cast(InteractiveCloud, cloud), name)
    try:
        place = workspace()
        return RunTarget(place, clouds, place.find(name))
    except NoSuchRun as problem:
        if "more than one" in problem.message:
            raise
        raise NotFound(
            f"there is no machine and no run called `{name}`",
            hint="`outlast machine list` and `outlast ps --all` show what there is",
        ) from problem
