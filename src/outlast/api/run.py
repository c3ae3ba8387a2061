"""`outlast.Run`: one run of a workspace, new or old, live or ended."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from outlast.api.outputs import RunOutputs
from outlast.app import actions, following
from outlast.app.background import start_supervisor
from outlast.app.endings import problem_of
from outlast.errors import Interrupted
from outlast.formatting.run_row import newest_step, spent_usd, status_text, why
from outlast.runs.state import Attempt, RunState
from outlast.workspace import RunRequest, Workspace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from outlast.api.fields import ParamValue, Path
    from outlast.app.details import RunDetails
    from outlast.app.waiting import WaitingReport
    from outlast.runs.notes import RunNote


class Run:
    """One run. Each property is read from the workspace when it is used; any process may hold the same run."""

    def __init__(self, workspace: Workspace, name: str) -> None:
        self._workspace = workspace
        self._story = workspace.story(name)
        self._request: RunRequest | None = None
        self.name = name

    def __repr__(self) -> str:
        return f"<outlast.Run {self.name} in {self._workspace.url}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and (other.name, other.workspace_url) == (self.name, self.workspace_url)

    def __hash__(self) -> int:
        return hash((self.name, self.workspace_url))

    def __reduce__(self) -> tuple[Any, ...]:
        from outlast.api.space import open_run

        return open_run, (self.workspace_url, self.name)

    # State

    @property
    def workspace_url(self) -> str:
        return self._workspace.url

    @property
    def state(self) -> RunState:
        """The state after all events of the story."""
        return self._story.refresh()

    @property
    def status(self) -> str:
        """`waiting`, `booting`, `running`, `leaving`, `handing over`, `stopping`, and at the end `finished`,
        `failed`, `stopped`, `cancelled` or `released`."""
        return status_text(self.state)

    @property
    def ended(self) -> bool:
        return bool(self.state.ending)

    @property
    def why(self) -> str:
        """Why it failed, stopped or waits; empty otherwise."""
        return why(self.state)

    @property
    def exit_code(self) -> int | None:
        return self.state.exit_code

    @property
    def cost_usd(self) -> float:
        """The cost so far; running machines are estimated from their price."""
        return spent_usd(self.state, time.time())

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return self.state.attempts

    @property
    def step(self) -> int | None:
        """The newest step that the program reported or saved."""
        state = self.state
        return newest_step(state, self._workspace.heartbeat(self.name) if state.alive else None)

    @property
    def request(self) -> RunRequest:
        """The recorded spec and code."""
        if self._request is None:
            self._request = self._workspace.request(self.name)
        return self._request

    @property
    def params(self) -> Mapping[str, ParamValue]:
        return self.request.spec.params

    def details(self) -> RunDetails:
        """Return request, state, events and newest metrics, as `outlast show` prints them."""
        from outlast.app.details import run_details

        return run_details(self._workspace, self.name)

    @property
    def note(self) -> RunNote:
        """The note and the tags; `annotate` changes them."""
        from outlast.runs.notes import read_note

        return read_note(self._workspace.bucket, self.name)

    def annotate(self, text: str | None = None, *, tags: Sequence[str] = (), untag: Sequence[str] = ()) -> RunNote:
        """Replace the note, add and remove tags, and return both. Possible at any time, also after the end."""
        from outlast.app.notes import annotate

        return annotate(self._workspace, self.name, text=text, tags=tags, untag=untag)

    def waiting(self) -> WaitingReport:
        """Return why a run without a machine waits: prices and refusals by zone, the next request, what would help."""
        from outlast.app.waiting import waiting_of

        return waiting_of(self._workspace, self.name)

    # Following

    def wait(self, timeout: float | None = None) -> str:
        """Wait for the end and return the final status. May be interrupted, and repeated from any process.

        Raises RunFailed with the reason, RunCancelled, OverLimit, and WaitTimeout after `timeout` seconds.
        """
        with self._detaching():
            state = following.wait_for_end(self._workspace, self.name, timeout_s=timeout)
        problem = problem_of(self.name, state)
        if problem is not None:
            raise problem
        return status_text(state)

    def logs(self, *, follow: bool = False, attempt: int = 0) -> Iterator[str]:
        """Yield the lines of the output of all attempts, or of one; with `follow` until the run is over."""
        lines = following.log_lines(self._workspace, self.name, follow=follow, attempt=attempt)
        return self._until_interrupted(lines)

    def _until_interrupted(self, lines: Iterator[str]) -> Iterator[str]:
        with self._detaching():
            yield from lines

    @contextmanager
    def _detaching(self) -> Iterator[None]:
        """Report that the run continues when Ctrl-C ends the block."""
        try:
            yield
        except KeyboardInterrupt:
            message = f'detached; `{self.name}` continues: `outlast.workspace().run("{self.name}").wait()` waits again'
            if not hasattr(sys, "ps1") and "ipykernel" not in sys.modules:
                print(message, file=sys.stderr)
            raise Interrupted(message) from None

    # Results

    def metrics(self, *names: str, all_attempts: bool = False) -> dict[str, list[float]]:
        """Return columns of equal length: `step`, `at`, `attempt`, and one per metric; NaN where none was logged.

        `pandas.DataFrame(run.metrics())` and `polars.DataFrame(run.metrics())` accept them. `all_attempts` includes
        work that was lost and repeated.
        """
        from outlast.app.metrics import columns, curves_of

        return columns(curves_of(self._workspace, self.name, names, apart=all_attempts))

    def plot(self, *names: str, log: bool = False) -> Figure:
        """Draw the metrics over all attempts with matplotlib (the extra `plot`), and return the figure."""
        from outlast.app.metrics import curves_of, figure_of

        curves = curves_of(self._workspace, self.name, names)
        return figure_of(curves, title=self.name, logarithmic=log)

    def outputs(self) -> RunOutputs:
        """Return the output files by path, those of a running attempt included as far as they are stored."""
        return RunOutputs(self._workspace, self.name)

    def pull(self, destination: Path = "") -> int:
        """Copy all outputs to a folder (`outputs/NAME`), and return their number."""
        from outlast.app.outputs import fetch_outputs

        return fetch_outputs(self._workspace, self.name, os.fspath(destination) or os.path.join("outputs", self.name))

    def archive(self, path: Path = "") -> str:
        """Write the ended run with everything that it needs to one file (`NAME.outlast.tar`), and return its path.

        `outlast.workspace(…).restore(path)` stores it in a workspace.
        """
        from outlast.app.retention import archive_run

        return archive_run(self._workspace, self.name, os.fspath(path) or f"{self.name}.outlast.tar").path

    # Control

    def cancel(self) -> bool:
        """End the run and delete its machines; return False if it had already ended."""
        cancelled = actions.cancel_run(self._workspace, self.name)
        start_supervisor(self._workspace)
        return cancelled

    def preempt(self, *, notice: bool = True, after_checkpoint: bool = False) -> Attempt:
        """Preempt the machine of the run, as a cloud would; return its attempt.

        Waits for a machine that boots; with `after_checkpoint` also for a checkpoint of the live attempt.
        """
        return actions.preempt_when_placed(self._workspace, self.name, notice=notice, after_checkpoint=after_checkpoint)

    def rerun(self, *, params: Mapping[str, ParamValue] | None = None) -> Run:
        """Submit the recorded spec and code again, with new values of parameters; return the new run."""
        request = actions.rerun_run(self._workspace, self.name, params=params or {})
        start_supervisor(self._workspace)
        return Run(self._workspace, request.run)

    # Notebooks

    def _repr_mimebundle_(self, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> dict[str, str]:
        from outlast.api.display import run_bundle

        return run_bundle(self._workspace, self.name)

    def show(self, *, every_s: float = 1.0) -> None:
        """Show the run in a notebook and update it until it ends; Ctrl-C (Interrupt) detaches."""
        from outlast.api.display import show_live

        with self._detaching():
            show_live(self._workspace, self.name, every_s=every_s)
