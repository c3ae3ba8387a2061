"""The worker machines of a pool: their spec, their number, and which of their attempts are over."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from outlast.app.background import start_supervisor
from outlast.app.clouds import clouds
from outlast.app.submission import project_of, spec_of_fields
from outlast.clouds.traits import traits_of
from outlast.executor.records import Claim
from outlast.submit.prepare import PreparedRun, prepare, store_code
from outlast.submit.validate import validate
from outlast.submit.write import write_run

if TYPE_CHECKING:
    from outlast.runs.story import Story
    from outlast.spec.spec import Spec
    from outlast.workspace import Workspace

# A worker saves nothing: machines that are lost again and again are no reason to stop. The pool stops instead when
# workers fail and no call is completed.
_ATTEMPTS_MAX = 100_000
_DEFAULT_NAME = "executor"

Report = Callable[[str], None]


class Fleet:
    """The workers of one pool."""

    def __init__(self, workspace: Workspace, pool: str, options: Mapping[str, Any], *, report: Report) -> None:
        self.workspace = workspace
        self.failures: list[str] = []
        spec = _worker_spec(workspace, pool, options, report)
        spec = validate(workspace, clouds(workspace), spec, environment=os.environ, source="Executor")
        code = store_code(workspace, spec, report)
        self._prepared: PreparedRun = prepare(
            workspace, clouds(workspace), spec, code, environment=os.environ, report=report
        )
        on_host = code.environment is None and all(traits_of(name).shares_host_files for name in spec.machine.clouds)
        # On the caller's own computer its interpreter has the packages that the functions need.
        self.interpreter = sys.executable if on_host and not spec.machine.container else ""
        self._stories: dict[str, Story] = {}
        self._live: dict[str, int] = {}

    @property
    def live(self) -> tuple[str, ...]:
        """The workers that have not ended, oldest first."""
        return tuple(self._live)

    def grow(self, count: int) -> None:
        """Submit workers until `count` are live."""
        added = False
        while len(self._live) < count:
            request = write_run(self.workspace, clouds(self.workspace), self._prepared)
            self._stories[request.run] = self.workspace.story(request.run)
            self._live[request.run] = 0
            added = True
        if added:
            start_supervisor(self.workspace)

    def refresh(self) -> None:
        """Read the stories of live workers."""
        for run in list(self._live):
            state = self._stories[run].refresh()
            if state.ending:
                del self._live[run]
                if state.ending != "finished":
                    self.failures.append(f"{run} {state.ending}: {state.why or 'no reason was recorded'}")

    def is_lost(self, claim: Claim) -> bool:
        """Return whether the attempt of a claim is over, so that its calls run again elsewhere."""
        story = self._stories.get(claim.run)
        if story is None:
            return False
        state = story.state
        if state.ending:
            return True
        return claim.attempt <= len(state.attempts) and state.attempts[claim.attempt - 1].phase == "over"

    def waits_for(self) -> str:
        """Return why a live worker waits for a machine; empty if none does."""
        return next((text for run in self._live if (text := self._stories[run].state.waiting)), "")


def _worker_spec(workspace: Workspace, pool: str, options: Mapping[str, Any], report: Report) -> Spec:
    """Return the spec of a worker. Its command needs the agent's Python only."""
    argv = ["-P", "-m", "outlast.executor.worker", shlex.quote(workspace.url), shlex.quote(pool)]
    command = 'PYTHONPATH="$OUTLAST_AGENT_PATH" exec "$OUTLAST_AGENT_PYTHON" ' + " ".join(argv)
    fields = {"name": _DEFAULT_NAME, **options}
    spec = spec_of_fields(command, fields, project=project_of(""), report=report)
    limits = msgspec.structs.replace(spec.limits, crashes=_ATTEMPTS_MAX, no_progress=_ATTEMPTS_MAX)
    return msgspec.structs.replace(spec, limits=limits)
