"""Everything about one run: its request, state, events and newest metrics."""

from __future__ import annotations

import msgspec

from outlast.billing.egress import egress_usd
from outlast.clouds.geography import DATE
from outlast.runs.events import Event
from outlast.runs.metrics import Point, stitched
from outlast.runs.notes import NO_NOTE, RunNote, read_note
from outlast.runs.state import RunState
from outlast.runs.usage import Sample
from outlast.workspace import RunRequest, Workspace

# Only the newest pieces of the metrics are read: it is fast however much was logged.
_PIECES = 16


class RunDetails(msgspec.Struct, frozen=True, kw_only=True):
    """One run, as `outlast show` prints it."""

    request: RunRequest
    state: RunState
    events: tuple[Event, ...]
    # The last point of each metric.
    metrics: dict[str, Point]
    # Why no checkpoint was committed for minutes although the folder changes; empty otherwise.
    unsaved: str = ""
    note: RunNote = NO_NOTE
    # The newest sample of what the live attempt uses.
    usage: Sample | None = None

    @property
    def traffic(self) -> tuple[float, str]:
        """The price of data between machines and the workspace in dollars, and the origin of prices; empty if free."""
        if not any(attempt.sent_usd_per_gb or attempt.received_usd_per_gb for attempt in self.state.attempts):
            return 0.0, ""
        return egress_usd(self.state), f"list prices of {DATE}"


def run_details(workspace: Workspace, run: str) -> RunDetails:
    """Return the details of a run. Raises NoSuchRun, and Damaged."""
    request = workspace.request(run)
    story = workspace.story(run)
    state = story.refresh()
    curves = stitched(workspace.bucket, run, state, newest=_PIECES)
    heartbeat = workspace.heartbeat(run) if state.alive else None
    return RunDetails(
        request=request,
        state=state,
        events=tuple(story.events),
        metrics={name: points[-1] for name, points in curves.series.items()},
        unsaved=heartbeat.unsaved if heartbeat else "",
        note=read_note(workspace.bucket, run),
        usage=heartbeat.usage if heartbeat else None,
    )
