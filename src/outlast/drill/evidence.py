"""The evidence that a run left in the workspace: steps, final numbers and curves."""

from __future__ import annotations

import json
import re

import msgspec

from outlast.drill.injections import Injection
from outlast.drill.steps import StepMark, curve_in, last_numbers, marks, numbers, steps_of
from outlast.errors import WorkspaceError
from outlast.runs import metrics
from outlast.runs.logs import attempts_with_logs
from outlast.runs.outputs import OF_ATTEMPT
from outlast.runs.state import RunState
from outlast.workspace import Workspace

_OUTPUT_BYTES_MAX = 1 << 20
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+\.?\d*(?:[eE][-+]?\d+)?(?![\w.]*\w)")

Curves = dict[str, dict[int, float]]


class Injected(msgspec.Struct, frozen=True, kw_only=True):
    """A preemption that took place. `forced`: it was injected although its moment did not come in time."""

    injection: Injection
    attempt: int
    at: float
    forced: bool = False


class Observations(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a running drill that are not in its story."""

    injected: tuple[Injected, ...] = ()
    # Preemptions that were not injected, and why.
    missed: tuple[tuple[Injection, str], ...] = ()
    # When files of the checkpoint folder changed, by attempt.
    changes: dict[int, list[float]] = {}
    written: bool = False


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """All facts about one run that the verdicts depend on."""

    run: str
    state: RunState
    observed: Observations = Observations()
    # Attempt → the steps that it reported, in order.
    steps: dict[int, list[StepMark]] = {}
    results: dict[str, float] = {}
    curves: Curves = {}

    @property
    def work_s(self) -> float:
        """The time from the start to the end of an undisturbed run."""
        last = self.state.attempts[-1] if self.state.attempts else None
        return last.over_at - last.started_at if last and last.started_at else 0.0

    @property
    def saves(self) -> int:
        return sum(attempt.saves for attempt in self.state.attempts)

    @property
    def last_mark(self) -> StepMark | None:
        reported = [mark for marks in self.steps.values() for mark in marks]
        return max(reported, key=lambda mark: mark.step, default=None)


def gather(workspace: Workspace, run: str, observed: Observations) -> Evidence:
    """Collect the evidence of a run that is over."""
    state = workspace.story(run).refresh()
    texts = read_logs(workspace, run)
    logged = {n: metrics.read(workspace.bucket, run, n) for n in metrics.attempts_with_metrics(workspace.bucket, run)}
    reported = {n: [m for at, text in pieces for m in marks(text, at=at)] for n, pieces in texts.items()}
    if logged:
        reported = {n: [StepMark(word="step", step=row.step, at=row.at) for row in rows] for n, rows in logged.items()}
    attempts = sorted(reported)
    steps = dict(zip(attempts, steps_of([reported[n] for n in attempts]), strict=True))
    outputs = {n: "".join(text for _, text in pieces) for n, pieces in texts.items()}
    stitched = _curves(workspace, run, state)
    curves = stitched or _curves_of_logs(outputs, steps)
    results = last_numbers(outputs[max(outputs)]) if outputs else {}
    results |= {f"{name} (last)": rows[max(rows)] for name, rows in stitched.items()}
    results |= _outputs(workspace, run, state)
    return Evidence(run=run, state=state, observed=observed, steps=steps, results=results, curves=curves)


def read_logs(workspace: Workspace, run: str) -> dict[int, list[tuple[float, str]]]:
    """Return the output of each attempt in pieces, each with the store's time of writing."""
    found: dict[int, list[tuple[float, str]]] = {}
    for attempt in attempts_with_logs(workspace.bucket, run):
        rest = ""
        for entry in workspace.bucket.list(f"runs/{run}/logs/{attempt}/"):
            # A line that spans two pieces belongs to the later one.
            text = rest + workspace.bucket.get(entry.key).decode(errors="replace").replace("\r", "\n")
            head, newline, rest = text.rpartition("\n")
            found.setdefault(attempt, []).append((entry.modified_at, head + newline))
        if rest:
            at, text = found[attempt][-1]
            found[attempt][-1] = (at, text + rest)
    return found


def _curves(workspace: Workspace, run: str, state: RunState) -> Curves:
    """Return the logged metrics over all attempts; repeated steps count once."""
    series = metrics.stitched(workspace.bucket, run, state).series
    return {name: {point.step: point.value for point in points} for name, points in series.items()}


def _curves_of_logs(outputs: dict[int, str], steps: dict[int, list[StepMark]]) -> Curves:
    word = next((marks[0].word for marks in steps.values() if marks), "")
    curves: Curves = {}
    for attempt in sorted(outputs) if word else ():
        for name, points in curve_in(outputs[attempt], word).items():
            curves.setdefault(name, {}).update(points)
    return curves


def _outputs(workspace: Workspace, run: str, state: RunState) -> dict[str, float]:
    """Return the numbers in text files among the outputs; later attempts replace earlier ones."""
    files: dict[str, str] = {}
    for attempt in state.attempts:
        prefix = OF_ATTEMPT.format(run=run, attempt=attempt.number)
        for entry in workspace.bucket.list(prefix):
            if entry.bytes <= _OUTPUT_BYTES_MAX:
                files[entry.key.removeprefix(prefix)] = entry.key
    found: dict[str, float] = {}
    for path, key in sorted(files.items()):
        try:
            text = workspace.bucket.get(key).decode()
        except (UnicodeDecodeError, WorkspaceError):
            continue  # a model or an image has no numbers to compare
        found.update({f"{path}: {name}": value for name, value in _numbers_of_file(text).items()})
    return found


def _numbers_of_file(text: str) -> dict[str, float]:
    try:
        return numbers(json.loads(text))
    except ValueError:
        return {f"number {n}": float(v) for n, v in enumerate(_NUMBER.findall(text)[:1000], 1)}
