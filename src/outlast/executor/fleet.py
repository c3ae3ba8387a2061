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
from outlast.errors import UsageError
from outlast.executor.records import ACCESS, OWN_PATH, Claim
from outlast.store import access
from outlast.store.traits import traits_of_store
from outlast.submit.prepare import PreparedRun, prepare, store_code
from outlast.submit.validate import validate
from outlast.submit.write import write_run

if TYPE_CHECKING:
    from outlast.runs.story import Story
    from outlast.spec.spec import Spec
    from outlast.workspace import Workspace

# A worker saves nothing: machines that are lost again and again are no reason to stop.
_ATTEMPTS_MAX = 100_000
_DEFAULT_NAME = "executor"

Report = Callable[[str], None]


class Fleet:
    """The workers of one pool."""

    def __init__(self, workspace: Workspace, pool: str, options: Mapping[str, Any], *, report: Report) -> None:
        self.workspace = workspace
        self.failures: list[str] = []
        spec = _worker_spec(workspace, pool, options, report)
        environment = dict(os.environ)
        if found := _store_access(workspace.url, spec, environment):
            # A secret: the worker is a command, and has no access of the agent.
            spec = msgspec.structs.replace(spec, secrets={**spec.secrets, ACCESS: ACCESS})
            environment[ACCESS] = found
        spec = validate(workspace, clouds(workspace), spec, environment=environment, source="Executor")
        code = store_code(workspace, spec, report)
        self._prepared: PreparedRun = prepare(
            workspace, clouds(workspace), spec, code, environment=environment, report=report
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
        if claim.is_callers:
            return False
        story = self._stories.get(claim.run)
        # A worker whose submission succeeded although its answer was lost is unknown here.
        state = story.state if story is not None else self.workspace.story(claim.run).refresh()
        if state.ending:
            return True
        return claim.attempt <= len(state.attempts) and state.attempts[claim.attempt - 1].phase == "over"

    def waits_for(self) -> str:
        """Return why a live worker waits for a machine; empty if none does."""
        return next((text for run in self._live if (text := self._stories[run].state.waiting)), "")


def _worker_spec(workspace: Workspace, pool: str, options: Mapping[str, Any], report: Report) -> Spec:
    """Return the spec of a worker. Its command needs the agent's Python only."""
    argv = ["-P", "-m", "outlast.executor.worker", shlex.quote(workspace.url), shlex.quote(pool)]
    command = f'{OWN_PATH}="${{PYTHONPATH-}}" '
    command += 'PYTHONPATH="$OUTLAST_AGENT_PATH" exec "$OUTLAST_AGENT_PYTHON" ' + " ".join(argv)
    fields = {"name": _DEFAULT_NAME, **options}
    spec = spec_of_fields(command, fields, project=project_of(""), report=report)
    if spec.machine.nodes > 1:
        raise UsageError("nodes: a worker of an Executor is one machine", hint="`max_workers` sets their number")
    limits = msgspec.structs.replace(spec.limits, no_progress=_ATTEMPTS_MAX)
    # Workers come and go: the user's `[notify]` is for runs.
    return msgspec.structs.replace(spec, limits=limits, notify=None)


def _store_access(url: str, spec: Spec, environment: Mapping[str, str]) -> str:
    """Return what a worker needs to open the workspace; empty if its machine's own access is enough."""
    if not traits_of_store(url).network:
        return ""
    place = access.metadata(url, environment)
    key: dict[str, str] = {}
    for cloud in spec.machine.clouds:
        if access.needs_key(url, cloud, environment):
            key = access.key_given(url, cloud, environment)
    if not place and not key:
        return ""
    return msgspec.json.encode(access.store_access(lambda name: place.get(name, ""), key)).decode()
