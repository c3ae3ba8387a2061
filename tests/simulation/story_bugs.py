"""Planted bugs in stories, snapshots and the index of ended runs."""

from __future__ import annotations

import msgspec

from outlast.agent.attempt import AttemptWriter
from outlast.runs import events as ev
from outlast.runs.events import Event
from outlast.runs.state import why_illegal
from outlast.runs.story import Story, event_key
from outlast.supervisor.apply import Applier
from outlast.supervisor.observe import Watched
from outlast.supervisor.world import Finalize
from outlast.testing.simagent import SimAgent
from outlast.workspace import Workspace


class OverwritingStory(Story):
    """Puts the next event where the plain protocol would create it."""

    def append(self, event: Event, *, nonce: str, new: bool = False) -> bool:
        self.refresh()
        if why_illegal(self.state, event):
            return False
        event = msgspec.structs.replace(event, nonce=nonce)
        self.bucket.put(event_key(self.run, self.length + 1), ev.encode(event), durable=True)
        return True


class Overwriting(Workspace):
    def story(self, run: str) -> Story:
        return OverwritingStory(self.bucket, run)


class TrustingStory(Story):
    """Takes the state from the snapshot, and only counts the events after it."""

    def _fold(self, body: bytes) -> None:
        if not self._skipped:
            super()._fold(body)
            return
        self._add(ev.decode(body), self.state, body)


class TrustsSnapshots(Workspace):
    def story(self, run: str) -> Story:
        return TrustingStory(self.bucket, run, gap=self.snapshot_gap)


class TrustingAttempt(AttemptWriter):
    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.story = TrustingStory(self.workspace.bucket, self.run, gap=self.workspace.snapshot_gap)


class TrustingAgent(SimAgent):
    attempt_type = TrustingAttempt


class IndexesLast(Applier):
    """Removes the heartbeat of a run that is over, and stores its record afterwards."""

    def _finalize(self, step: Finalize, watched: Watched) -> None:
        self.workspace.bucket.delete(f"heartbeats/{step.run}")
        super()._finalize(step, watched)
