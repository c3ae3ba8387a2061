"""What earlier runs of the same command show about the work of a new one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from outlast.billing.ledger import kept_until
from outlast.errors import OutlastError
from outlast.runs.ended import EndedRuns
from outlast.runs.state import RunState
from outlast.spec.quantity import describe_s
from outlast.spec.spec import Spec

if TYPE_CHECKING:
    from outlast.workspace import Workspace

# This many ended runs are considered, and this many of them read.
_RECENT, _READ = 50, 3
# Runs of one command differ by about this much.
_TOLERANCE = 1.02


def with_measured_work(workspace: Workspace, spec: Spec, report: Callable[[str], None]) -> Spec:
    """Return the spec with at least the work that an earlier run of its command needed, if a deadline depends on it.

    `work` that is too low makes runs late; too much only makes them go on demand earlier.
    """
    limits = spec.limits
    if not (limits.deadline_s or limits.deadline_at) or limits.steps or not spec.machine.spot:
        return spec
    try:
        found = _longest(workspace, spec)
    except OutlastError:
        return spec  # only an estimate depends on it
    if found is None or found[1] <= limits.work_s * _TOLERANCE:
        return spec
    run, work_s = found
    given = f"`work` is {describe_s(limits.work_s)}" if limits.work_s else "`work` is not set"
    report(
        f"{run}, the same command, worked {describe_s(work_s)}, and {given}: the deadline is planned with the former"
    )
    return msgspec.structs.replace(spec, limits=msgspec.structs.replace(limits, work_s=work_s))


def _longest(workspace: Workspace, spec: Spec) -> tuple[str, float] | None:
    """Return the earlier run that worked longest, of the newest that finished."""
    ended = EndedRuns(workspace)
    if not ended.complete():
        return None
    records, _ = ended.newest(_RECENT)
    mine = [one for one in records if one.state.ending == "finished" and one.run.rpartition("-")[0] == spec.name]
    worked: dict[str, float] = {}
    for record in mine[:_READ]:
        if _is_same(workspace.request(record.run).spec, spec):
            worked[record.run] = _worked_s(record.state)
    return max(worked.items(), key=lambda item: item[1], default=None)


def _is_same(one: Spec, other: Spec) -> bool:
    """Return whether two runs do the same on the same hardware."""

    def work(spec: Spec) -> object:
        machine = spec.machine
        return spec.command, spec.params, machine.cloud, machine.type, machine.gpu_choices, machine.cpus, machine.nodes

    return work(one) == work(other)


def _worked_s(state: RunState) -> float:
    """Return the work of a finished run, without repeated work."""
    started = [attempt for attempt in state.attempts if attempt.started_at]
    return sum(kept_until(attempt, state, state.ended_at) - attempt.started_at for attempt in started)
