"""Actions on existing runs, shared by the command line and the dashboard."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping

import msgspec

from outlast.app.clouds import clouds
from outlast.errors import NoSuchRun, NotFound, OutlastError, UsageError
from outlast.runs.events import Cancelled, OwnerChanged
from outlast.runs.state import Attempt
from outlast.spec.spec import ParamValue
from outlast.workspace import RunRequest, Workspace

# The time within which a machine boots, on every cloud.
_WAIT_S = 90.0
_POLL_S = 0.2

Report = Callable[[str], None]


def cancel_run(workspace: Workspace, run: str) -> bool:
    """Append `Cancelled` and wake the supervisor; return False if the run had already ended."""
    from outlast.user import current_user

    event = Cancelled(who=current_user(), at=time.time())
    # Wake first: if this process dies in between, a supervisor reads the run and finds no change.
    workspace.wake(run)
    cancelled = workspace.story(run).append(event, nonce=secrets.token_hex(8))
    workspace.wake(run)
    return cancelled


def preempt_run(workspace: Workspace, run: str, *, notice: bool, node: int = 0) -> Attempt:
    """Preempt a machine of a run, as a cloud would; return its attempt. Raises OutlastError."""
    state = workspace.story(run).refresh()
    attempt = state.current or next((a for a in reversed(state.attempts) if a.phase != "over"), None)
    if attempt is None or not state.alive:
        why = f"it is {state.ending}" if state.ending else state.waiting or "it waits for a machine"
        raise OutlastError(f"{run} has no machine to preempt: {why}", hint=f"see `outlast show {run}`")
    if not 0 <= node < attempt.nodes:
        raise UsageError(f"node: {run} has no node {node}", hint=f"its nodes are 0 to {attempt.nodes - 1}")
    clouds()[attempt.cloud].preempt(attempt.machines[node], notice=notice)
    return attempt


def preempt_when_placed(
    workspace: Workspace,
    run: str,
    *,
    notice: bool,
    after_checkpoint: bool = False,
    node: int = 0,
    report: Report = lambda _: None,
) -> Attempt:
    """Preempt the machine that the run has or gets next: one that is going away cannot be preempted again.

    `after_checkpoint` waits until the live attempt has committed a checkpoint.
    """
    if after_checkpoint:
        _await_checkpoint(workspace, run, report)
    until = time.monotonic() + _WAIT_S
    while True:
        _await_machine(workspace, run, until, report)
        try:
            return preempt_run(workspace, run, notice=notice, node=node)
        except UsageError:
            raise
        except OutlastError:
            if time.monotonic() > until or not _is_going(workspace, run):
                raise
            time.sleep(_POLL_S)


class Preempted(msgspec.Struct, frozen=True, kw_only=True):
    """A preempted machine: of a run, or one that no run owns."""

    name: str
    zone: str
    attempt: Attempt | None = None
    node: int = 0

    @property
    def text(self) -> str:
        """`attempt 2 of train-7 in local-a`, or `box in local-a`."""
        if self.attempt is None:
            return f"{self.name} in {self.zone}"
        what = f"node {self.node} of attempt" if self.attempt.nodes > 1 else "attempt"
        return f"{what} {self.attempt.number} of {self.name} in {self.zone}"


def preempt_named(
    workspace: Workspace,
    name: str,
    *,
    notice: bool,
    after_checkpoint: bool = False,
    node: int = 0,
    report: Report = lambda _: None,
) -> Preempted:
    """Preempt the machine of a run, or a machine by its own name. Raises NoSuchRun if there is neither."""
    from outlast.app.machines import machine_records

    unknown: NoSuchRun | None = None
    # The name of a machine comes before the prefix of a run's name.
    if name not in machine_records(workspace).names() or workspace.story(name).refresh().exists:
        try:
            run = workspace.find(name)
        except NoSuchRun as problem:
            unknown = problem
        else:
            attempt = preempt_when_placed(
                workspace, run, notice=notice, after_checkpoint=after_checkpoint, node=node, report=report
            )
            return Preempted(name=run, zone=attempt.zone, attempt=attempt, node=node)
    elif after_checkpoint:
        raise UsageError(f"after_checkpoint: `{name}` is a machine; only runs commit checkpoints")
    return Preempted(name=name, zone=_preempt_machine(workspace, name, notice=notice, otherwise=unknown))


def _preempt_machine(workspace: Workspace, name: str, *, notice: bool, otherwise: NoSuchRun | None) -> str:
    """Preempt a machine that no run owns; return its zone. Raises NoSuchRun if it does not exist either."""
    from outlast.app.machines import find_machine, machine_records

    try:
        cloud, machine = find_machine(machine_records(workspace), name)
    except (NotFound, UsageError) as problem:
        if otherwise is None:
            raise
        hint = f"{otherwise.hint}; machines: `outlast machine list`"
        raise NoSuchRun(f"no run and no machine `{name}` in {workspace.url}", hint=hint) from problem
    cloud.preempt(name, notice=notice)
    return machine.zone


def _is_going(workspace: Workspace, run: str) -> bool:
    """Return whether the run is between two machines."""
    state = workspace.story(run).refresh()
    if state.current is None:
        return state.alive and not state.waiting
    try:
        return clouds()[state.current.cloud].machine(state.current.machine).status != "running"
    except NotFound:
        return True


def _await_machine(workspace: Workspace, run: str, until: float, report: Report) -> None:
    """Wait for the first machine, right after `submit`; return at once if the run is held or over."""
    story, reported = workspace.story(run), False
    while time.monotonic() < until:
        state = story.refresh()
        if not state.alive or state.waiting or state.current is not None:
            return
        if not reported:
            report(f"{run} has no running machine yet: waiting for one; Ctrl-C changes nothing")
            reported = True
        time.sleep(_POLL_S)


def _await_checkpoint(workspace: Workspace, run: str, report: Report) -> None:
    """Wait until the live attempt has committed a checkpoint. Raises UsageError if the run ends before."""
    story, reported = workspace.story(run), False
    while True:
        state = story.refresh()
        if not state.alive:
            why = f"after_checkpoint: {run} is {state.ending}, and no machine is left to preempt"
            raise UsageError(why, hint="let it train longer; if it saved nothing, name its checkpoint folder")
        attempt = state.current
        if attempt is not None and any(saved.attempt == attempt.number for saved in state.checkpoints):
            return
        if not reported:
            report(f"waiting for a checkpoint of the present attempt of {run}; Ctrl-C changes nothing")
            reported = True
        time.sleep(_POLL_S)


def hand_over(workspace: Workspace, run: str, user: str) -> bool:
    """Give a live run to another user; return False if it is that user's already. Raises UsageError."""
    from outlast.user import current_user

    if not user.strip() or not user.isprintable() or len(user) > 100:
        raise UsageError(f"USER: invalid user name {user!r}: expected letters, digits and . _ @ + -")
    story = workspace.story(run)
    if story.refresh().who == user:
        return False
    event = OwnerChanged(who=user, at=time.time(), by=current_user())
    if not story.append(event, nonce=secrets.token_hex(8)):
        raise UsageError(f"{run} has ended ({story.state.ending}); its owner cannot change")
    # The supervisor must count it for the new user.
    workspace.wake(run)
    return True


def rerun_run(workspace: Workspace, run: str, *, params: Mapping[str, ParamValue] = {}) -> RunRequest:
    """Submit a run again from its recorded spec and code, with new values of parameters.

    Raises UsageError for an unknown parameter, OutlastError with all missing parts.
    """
    from outlast.submit.run import resubmit

    request = workspace.request(run)
    known = request.spec.params
    for name in params:
        if name not in known:
            hint = f"it has: {', '.join(known)}" if known else "it has none"
            raise UsageError(f"params: the run has no parameter `{name}`; {hint}")
    spec = msgspec.structs.replace(request.spec, params={**known, **params})
    return resubmit(workspace, clouds(workspace), spec, request.code, what=run, environment=os.environ)
