"""The evidence that a run left in the workspace: steps, final numbers and curves."""

from __future__ import annotations

import codecs
import math

import msgspec

from outlast.drill.cpu_time import used_from, used_until
from outlast.drill.injections import Injection
from outlast.drill.lines import OutputLines
from outlast.drill.numbers import LAST, curve_in, last_numbers, numbers_of_file, series_in
from outlast.drill.steps import StepMark, left_out, marks, steps_of
from outlast.drill.trackers import tracker_run
from outlast.errors import WorkspaceError
from outlast.runs import metrics
from outlast.runs.logs import attempts_with_logs
from outlast.runs.outputs import OF_ATTEMPT
from outlast.runs.state import Attempt, Checkpoint, RunState
from outlast.workspace import Workspace

_OUTPUT_BYTES_MAX = 1 << 20

Curves = dict[str, dict[int, float]]
Series = dict[str, list[tuple[float, float]]]


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
    # The files that the command wrote there, with the time of each write, by attempt.
    writes: dict[int, list[tuple[float, str]]] = {}
    # The first step or checkpoint, by attempt: the command starts before it, and works from then on.
    signs: dict[int, float] = {}
    # Runs in an experiment tracker whose files the attempt wrote.
    trackers: dict[int, str] = {}
    # The checkpoint folder held more than logs and settings.
    has_state: bool = True
    # Commits of an attempt before its folder held more than logs and settings, by attempt.
    stateless: dict[int, int] = {}
    # The restored file that the command opened, and the one that it had not opened when it worked, by attempt.
    read: dict[int, str] = {}
    unread: dict[int, str] = {}
    # The processor time of the command, by attempt: time of day and seconds used until then.
    cpu: dict[int, list[tuple[float, float]]] = {}


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """All facts about one run that the verdicts depend on."""

    run: str
    state: RunState
    observed: Observations = Observations()
    # Attempt → the steps that it reported, in order.
    steps: dict[int, list[StepMark]] = {}
    results: dict[str, float] = {}
    curves: Curves = {}
    # Attempt → the results that it printed, by name: the time of printing and the value.
    series: dict[int, Series] = {}
    # The paths of its outputs, and the runs that it began in an experiment tracker, by attempt.
    # Attempt → the curves that it printed or logged.
    own_curves: dict[int, Curves] = {}
    files: frozenset[str] = frozenset()
    trackers: dict[int, str] = {}

    @property
    def work_s(self) -> float:
        """The time from the first sign of work to the end of an undisturbed run."""
        last = self.state.attempts[-1] if self.state.attempts else None
        return self.worked_s(last) if last and last.started_at else 0.0

    def worked_s(self, attempt: Attempt) -> float:
        """The time that an attempt worked; its start-up is not work, and an attempt that never worked has none."""
        signs = self.observed.signs
        began = signs.get(attempt.number, attempt.over_at if signs else attempt.started_at)
        return max(0.0, attempt.over_at - began)

    def used_s(self, attempt: Attempt, until: float = math.inf) -> float:
        """The processor time that an attempt used for its work until then; its start-up is not work."""
        samples = self.observed.cpu.get(attempt.number, [])
        began = self.observed.signs.get(attempt.number, attempt.over_at)
        return max(0.0, used_until(samples, until) - used_from(samples, began))

    @property
    def saves(self) -> int:
        return len(self.checkpoints)

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The committed checkpoints that may hold the state of the training."""
        left = dict(self.observed.stateless)
        found = []
        for checkpoint in self.state.checkpoints:
            left[checkpoint.attempt] = left.get(checkpoint.attempt, 0) - 1
            if left[checkpoint.attempt] < 0:
                found.append(checkpoint)
        return found

    @property
    def last_span(self) -> int:
        """The number of steps that the last attempt went through; 0 if it reported none."""
        marks = self.steps[max(self.steps)] if self.steps else []
        return marks[-1].step - marks[0].step + 1 if marks else 0

    @property
    def last_mark(self) -> StepMark | None:
        reported = [mark for marks in self.steps.values() for mark in marks]
        return max(reported, key=lambda mark: mark.step, default=None)


def gather(workspace: Workspace, run: str, observed: Observations) -> Evidence:
    """Collect the evidence of a run that is over."""
    state = workspace.story(run).refresh()
    texts = read_logs(workspace, run)
    lines = {n: _normalised(pieces) for n, pieces in texts.items()}
    logged = {n: metrics.read(workspace.bucket, run, n) for n in metrics.attempts_with_metrics(workspace.bucket, run)}
    reported = {n: [m for at, found in pieces for m in marks(found, at=at)] for n, pieces in lines.items()}
    if logged:
        reported = {n: [StepMark(word="step", step=row.step, at=row.at) for row in rows] for n, rows in logged.items()}
    attempts = sorted(reported)
    steps = dict(zip(attempts, steps_of([reported[n] for n in attempts]), strict=True))
    outputs = {n: [line for _, found in pieces for line in found] for n, pieces in lines.items()}
    stitched = _curves(workspace, run, state)
    own = {n: _by_name(rows) for n, rows in logged.items()} or _curves_of_logs(outputs, steps, reported)
    curves = stitched or _merged(own)
    results = last_numbers(outputs[max(outputs)]) if outputs else {}
    results |= {f"{name}{LAST}": rows[max(rows)] for name, rows in stitched.items()}
    results |= _outputs(workspace, run, state)
    return Evidence(
        run=run,
        state=state,
        observed=observed,
        steps=steps,
        results=results,
        curves=curves,
        series={n: _series(pieces) for n, pieces in lines.items()},
        own_curves=own,
        files=frozenset(_output_keys(workspace, run, state)),
        trackers=observed.trackers
        | {n: found for n, pieces in texts.items() if (found := tracker_run("".join(t for _, t in pieces)))},
    )


def read_logs(workspace: Workspace, run: str) -> dict[int, list[tuple[float, str]]]:
    """Return the output of each attempt in pieces, each with the store's time of writing."""
    found: dict[int, list[tuple[float, str]]] = {}
    for attempt in attempts_with_logs(workspace.bucket, run):
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for entry in workspace.bucket.list(f"runs/{run}/logs/{attempt}/"):
            text = decoder.decode(workspace.bucket.get(entry.key))
            found.setdefault(attempt, []).append((entry.modified_at, text))
    return found


def _normalised(pieces: list[tuple[float, str]]) -> list[tuple[float, list[str]]]:
    """Return the lines of each piece; a line that spans two pieces belongs to the later one."""
    lines = OutputLines()
    found = [(at, list(lines.feed(text))) for at, text in pieces]
    return [*found, (pieces[-1][0], list(lines.close()))] if pieces else []


def _curves(workspace: Workspace, run: str, state: RunState) -> Curves:
    """Return the logged metrics over all attempts; repeated steps count once."""
    series = metrics.stitched(workspace.bucket, run, state).series
    return {name: {point.step: point.value for point in points} for name, points in series.items()}


def _by_name(rows: list[metrics.Row]) -> Curves:
    curves: Curves = {}
    for row in rows:
        for name, value in row.values.items():
            curves.setdefault(name, {})[row.step] = value
    return curves


def _curves_of_logs(
    outputs: dict[int, list[str]], steps: dict[int, list[StepMark]], reported: dict[int, list[StepMark]]
) -> dict[int, Curves]:
    word = next((marks[0].word for marks in steps.values() if marks), "")
    if not word:
        return {}
    attempts = sorted(outputs)
    shifts = left_out([[mark for mark in reported[n] if mark.word == word] for n in attempts])
    found = {n: curve_in(outputs[n], word, shift=shift) for n, shift in zip(attempts, shifts, strict=True)}
    if word.startswith("|"):
        # A bar is drawn several times at each step: an attempt that was cut may lack the last one.
        for n in attempts[:-1]:
            _drop_last_step(found[n])
    return found


def _drop_last_step(curves: Curves) -> None:
    last = max((step for points in curves.values() for step in points), default=0)
    for points in curves.values():
        points.pop(last, None)


def _merged(own: dict[int, Curves]) -> Curves:
    """Return the curves over all attempts; later attempts replace what they repeat."""
    curves: Curves = {}
    for _, found in sorted(own.items()):
        for name, points in found.items():
            curves.setdefault(name, {}).update(points)
    return curves


def _series(pieces: list[tuple[float, list[str]]]) -> Series:
    found: Series = {}
    for at, lines in pieces:
        for name, values in series_in(lines).items():
            found.setdefault(name, []).extend((at, value) for value in values)
    return found


def _output_keys(workspace: Workspace, run: str, state: RunState) -> dict[str, tuple[str, int]]:
    """Return path → key and size of the outputs; later attempts replace earlier ones."""
    files: dict[str, tuple[str, int]] = {}
    for attempt in state.attempts:
        prefix = OF_ATTEMPT.format(run=run, attempt=attempt.number)
        for entry in workspace.bucket.list(prefix):
            files[entry.key.removeprefix(prefix)] = (entry.key, entry.bytes)
    return files


def _outputs(workspace: Workspace, run: str, state: RunState) -> dict[str, float]:
    """Return the numbers in text files among the outputs."""
    found: dict[str, float] = {}
    for path, (key, size) in sorted(_output_keys(workspace, run, state).items()):
        if size > _OUTPUT_BYTES_MAX:
            continue
        try:
            text = workspace.bucket.get(key).decode()
        except (UnicodeDecodeError, WorkspaceError):
            continue  # a model or an image has no numbers to compare
        found.update({f"{path}: {name}": value for name, value in numbers_of_file(text).items()})
    return found
