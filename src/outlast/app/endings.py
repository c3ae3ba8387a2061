"""The end of a run: its exit code, and the error that describes an end other than success."""

from __future__ import annotations

from outlast.errors import OutlastError, OverLimit, RunCancelled, RunFailed
from outlast.runs.state import RunState


def exit_code_of(state: RunState) -> int:
    """Return the exit code of the command if it ended the run, else the code of the reason."""
    if state.ending == "finished" or state.released:
        return 0
    if state.ending == "cancelled":
        return RunCancelled.exit_code
    if state.limit is not None:
        return OverLimit.exit_code
    return state.exit_code or RunFailed.exit_code


def problem_of(run: str, state: RunState) -> OutlastError | None:
    """Return the error that describes the end; None for a run that is live, finished or released by its group."""
    if not state.ending or state.ending == "finished" or state.released:
        return None
    if state.ending == "cancelled":
        return RunCancelled(f"{run} was cancelled", hint="`outlast rerun` repeats it")
    why = f": {state.why}" if state.why else ""
    if state.limit is not None:
        return OverLimit(f"{run} has stopped at a limit{why}", hint=state.hint or state.limit.hint)
    return RunFailed(f"{run} failed{why}", hint=state.hint or f"see `outlast logs {run}`")
