"""The machines of a workspace on one cloud, also while some zones do not answer or listings lag."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from contextlib import suppress

from outlast.clouds.cloud import LABEL_WORKSPACE, Cloud, Machine, ZonesUnreachable
from outlast.errors import NotFound
from outlast.runs.members import kept, survivors
from outlast.runs.state import Attempt, RunState
from outlast.supervisor.world import zone_key


def list_machines(name: str, cloud: Cloud, workspace_id: str) -> tuple[dict[str, Machine], dict[str, str]]:
    """Return the listed machines by name, and the zones that did not answer with the reason. Raises CloudError."""
    silent: dict[str, str] = {}
    try:
        found = cloud.machines({LABEL_WORKSPACE: workspace_id})
    except ZonesUnreachable as problem:
        found = problem.machines
        silent = {zone_key(name, zone): problem.message for zone in problem.zones}
    return {machine.name: machine for machine in found}, silent


def query_missing(
    name: str,
    cloud: Cloud,
    states: Iterable[RunState],
    machines: Mapping[str, Machine],
    silent: Mapping[str, str],
    *,
    seen: Container[str] = (),
) -> dict[str, Machine]:
    """Query machines by name that should exist and are not listed. Skips zones that are silent. Raises CloudError."""
    found: dict[str, Machine] = {}
    for state in states:
        for attempt in state.attempts:
            if attempt.cloud != name or zone_key(name, attempt.zone) in silent:
                continue
            for member in _expected(state, attempt, seen):
                if member in machines or member in found:
                    continue
                with suppress(NotFound):
                    found[member] = cloud.machine(member)
    return found


def _expected(state: RunState, attempt: Attempt, seen: Container[str]) -> Iterable[str]:
    """Return the machines of an attempt that should exist."""
    if attempt.phase == "placed":
        before = kept(state, attempt)  # it launches the others
        return [name for name in attempt.machines if name in before or name in seen]
    if attempt.phase == "over":
        return survivors(state).values() if attempt is state.last else ()
    return attempt.machines
