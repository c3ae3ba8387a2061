"""The machine to connect to: a machine by name, or the current machine of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol, cast

from outlast.clouds.cloud import Cloud, InteractiveCloud
from outlast.errors import BadRequest, CloudError, CloudUnreachable, NoSuchRun, NotFound, OutlastError, StoreUnreachable
from outlast.machines.ssh import Link
from outlast.runs.state import Attempt, RunState
from outlast.workspace import Workspace

_POLL_S = 1.0
# A machine is deleted before it is recreated elsewhere, so wait this long before treating it as gone.
_GONE_S = 30.0
_MOVED_S = 5.0

Report = Callable[[str], None]


class TargetEnded(OutlastError):
    """The run has ended, so it gets no further machine."""

    exit_code = 0


class Target(Protocol):
    """A machine or run whose current machine can be connected to."""

    name: str
    # Relative folders start here, below the home of the ssh user.
    base: str

    def connect(self, *, report: Report, wait: bool) -> Link:
        """Return a link to the current machine. With `wait`, wait for one and report why; else raise."""

    def moved(self, link: Link) -> bool:
        """Return whether the target has moved to another machine."""


class MoveCheck:
    """Checks every few seconds whether a target has left the machine of a link."""

    def __init__(self, target: Target, link: Link) -> None:
        self.target = target
        self.link = link
        self._checked_at = time.monotonic()

    def due(self) -> bool:
        """Return whether the interval has passed, and start the next one."""
        if time.monotonic() <= self._checked_at + _MOVED_S:
            return False
        self._checked_at = time.monotonic()
        return True

    def moved(self) -> str:
        """Return a message if the target has moved; check the target only when due."""
        return self.message() if self.due() else ""

    def message(self) -> str:
        return f"{self.target.name} has moved to another machine" if self.target.moved(self.link) else ""


class MachineTarget:
    """A machine by its name. It may stop, and return with another address."""

    base = ""

    def __init__(self, cloud: InteractiveCloud, name: str) -> None:
        self.cloud = cloud
        self.name = name

    def connect(self, *, report: Report, wait: bool) -> Link:
        reported, gone_at = "", 0.0
        while True:
            try:
                link = Link(self.cloud, self.name)
                link.refresh()
                return link
            except NotFound as problem:
                gone_at = gone_at or time.monotonic()
                if not wait or time.monotonic() > gone_at + _GONE_S:
                    raise NotFound(
                        f"machine `{self.name}` no longer exists",
                        hint="`outlast machine list` lists your machines",
                    ) from problem
                why = f"{self.name} is gone; waiting in case it is recreated elsewhere"
            except (BadRequest, CloudUnreachable) as problem:
                if not wait:
                    raise self._explained(problem) from problem
                gone_at, why = 0.0, f"{problem.message}; waiting for it to come back"
            if why != reported:
                report(why)
                reported = why
            time.sleep(_POLL_S)

    def _explained(self, problem: CloudError) -> CloudError:
        if isinstance(problem, BadRequest) and "is stopped" in problem.message:
            return BadRequest(f"machine `{self.name}` is stopped", hint=f"`outlast machine start {self.name}`")
        return problem

    def moved(self, link: Link) -> bool:
        return False


class RunTarget:
    """A run. Each attempt has another machine."""

    base = "work"

    def __init__(self, workspace: Workspace, clouds: Mapping[str, Cloud], run: str) -> None:
        self.workspace = workspace
        self.clouds = clouds
        self.name = run
        self.story = workspace.story(run)

    def connect(self, *, report: Report, wait: bool) -> Link:
        reported = ""
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
                raise TargetEnded(
                    f"{self.name} has {state.ending}; it no longer has a machine", hint=_results(self.name)
                )
            else:
                why = f"{self.name} has no machine now: {state.waiting or _stage(state)}"
            if why != reported:
                report(why)
                reported = why
            time.sleep(_POLL_S)

    def moved(self, link: Link) -> bool:
        try:
            attempt = machine_of(self.story.refresh())
        except StoreUnreachable:
            return False
        return attempt is not None and attempt.machine != link.name


def machine_of(state: RunState) -> Attempt | None:
    """Return the attempt whose machine can be entered: the current one, or one that is kept for debugging."""
    if state.current is not None:
        return state.current
    kept = [attempt for attempt in state.attempts if attempt.keep_s and not attempt.released]
    return kept[-1] if kept else None


def _stage(state: RunState) -> str:
    last = state.last
    if last is None or last.phase == "over":
        return "waiting for one"
    return f"{last.machine} is starting"


def _results(run: str) -> str:
    return f"`outlast pull {run}` fetches its results"


def find_target(name: str, clouds: Mapping[str, Cloud], workspace: Callable[[], Workspace]) -> Target:
    """Return the machine of that name, else the run. Raises NotFound."""
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
            f"no machine or run named `{name}`",
            hint="`outlast machine list` and `outlast ps --all` list machines and runs",
        ) from problem
