"""Actions on existing runs, shared by the command line and the dashboard."""

from __future__ import annotations

import os
import secrets
import time

from outlast.clouds.registry import clouds
from outlast.errors import OutlastError
from outlast.runs.events import Cancelled
from outlast.runs.state import Attempt
from outlast.workspace import RunRequest, Workspace


def cancel_run(workspace: Workspace, run: str) -> bool:
    """Append `Cancelled` and wake the supervisor; return False if the run had already ended."""
    from outlast.user import current_user

    event = Cancelled(who=current_user(), at=time.time())
    # Wake first: if this process dies in between, a supervisor reads the run and finds no change.
    workspace.wake(run)
    cancelled = workspace.story(run).append(event, nonce=secrets.token_hex(8))
    workspace.wake(run)
    return cancelled


def preempt_run(workspace: Workspace, run: str, *, notice: bool) -> Attempt:
    """Preempt the machine of a run, as a cloud would; return its attempt. Raises OutlastError."""
    state = workspace.story(run).refresh()
    attempt = state.current or next((a for a in reversed(state.attempts) if a.phase != "over"), None)
    if attempt is None or not state.alive:
        why = f"it is {state.ending}" if state.ending else state.waiting or "it waits for a machine"
        raise OutlastError(f"{run} has no machine to preempt: {why}", hint=f"see `outlast show {run}`")
    clouds()[attempt.cloud].preempt(attempt.machine, notice=notice)
    return attempt


def rerun_run(workspace: Workspace, run: str) -> RunRequest:
    """Submit a run again from its recorded spec and code. Raises OutlastError with all missing parts."""
    from outlast.submit.run import resubmit

    request = workspace.request(run)
    return resubmit(workspace, clouds(workspace), request.spec, request.code, what=run, environment=os.environ)
