"""What a run left in the workspace that tells how it fared: steps, final numbers, curves. Reads; judges nothing."""

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
    """A blow that was struck. `forced`: its moment did not come in time, and it was struck all the same."""

    blow: Injection
    attempt: int
    at: float
    forced: bool = False


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen while it ran, and is in no story: when files of the checkpoint folder changed, by attempt."""

    struck: tuple[Injected, ...] = ()
    # Blows that were not struck, and why.
    missed: tuple[tuple[Injection, str], ...] = ()
    changes: dict[int, list[float]] = {}
    written: bool = False


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One run, as it is judged."""

    run: str
    state: RunState
    seen: Seen = Seen()
    # Attempt → the steps that it told of, in order.
    steps: dict[int, list[StepMark]] = {}
    results: dict[str, float] = {}
    curves: Curves = {}

    @property
    def work_s(self) -> float:
        """From the first start to the end of an undisturbed run."""
        last = self.state.attempts[-1] if self.state.attempts else None
        return last.over_at - last.started_at if last and last.started_at else 0.0

    @property
    def saves(self) -> int:
        return sum(attempt.saves for attempt in self.state.attempts)

    @property
    def last_mark(self) -> StepMark | None:
        told = [mark for marks in self.steps.values() for mark in marks]
        return max(told, key=lambda mark: mark.step, default=None)


def gather(workspace: Workspace, run: str, seen: Seen) -> Evidence:
    """Everything about a run that is over."""
    state = workspace.story(run).refresh()
    texts = read_logs(workspace, run)
    logged = {n: metrics.read(workspace.bucket, run, n) for n in metrics.attempts_with_metrics(workspace.bucket, run)}
    told = {n: [m for at, text in pieces for m in marks(text, at=at)] for n, pieces in texts.items()}
    if logged:
        told = {n: [StepMark(word="step", step=row.step, at=row.at) for row in rows] for n, rows in logged.items()}
    numbers_of = sorted(told)
    steps = dict(zip(numbers_of, steps_of([told[n] for n in numbers_of]), strict=True))
    whole = {n: "".join(text for _, text in pieces) for n, pieces in texts.items()}
    stitched = _curves(workspace, run, state)
    curves = stitched or _curves_of_logs(whole, steps)
    results = last_numbers(whole[max(whole)]) if whole else {}
    results |= {f"{name} (last)": rows[max(rows)] for name, rows in stitched.items()}
    results |= _outputs(workspace, run, state)
    return Evidence(run=run, state=state, seen=seen, steps=steps, results=results, curves=curves)


def read_logs(workspace: Workspace, run: str) -> dict[int, list[tuple[float, str]]]:
    """Attempt → its output in pieces, each with the store's time of it: its lines were printed before."""
    found: dict[int, list[tuple[float, str]]] = {}
    for attempt in attempts_with_logs(workspace.bucket, run):
        rest = ""
        for entry in workspace.bucket.list(f"runs/{run}/logs/{attempt}/"):
            # A line that two pieces share is told by the later one.
            text = rest + workspace.bucket.get(entry.key).decode(errors="replace").replace("\r", "\n")
            head, newline, rest = text.rpartition("\n")
            found.setdefault(attempt, []).append((entry.modified_at, head + newline))
        if rest:
            at, text = found[attempt][-1]
            found[attempt][-1] = (at, text + rest)
    return found


def _curves(workspace: Workspace, run: str, state: RunState) -> Curves:
    """What the trainer logged, stitched over the attempts: what was done again counts once."""
    series = metrics.stitched(workspace.bucket, run, state).series
    return {name: {point.step: point.value for point in points} for name, points in series.items()}


def _curves_of_logs(whole: dict[int, str], steps: dict[int, list[StepMark]]) -> Curves:
    word = next((marks[0].word for marks in steps.values() if marks), "")
    curves: Curves = {}
    for attempt in sorted(whole) if word else ():
        for name, points in curve_in(whole[attempt], word).items():
            curves.setdefault(name, {}).update(points)
    return curves


def _outputs(workspace: Workspace, run: str, state: RunState) -> dict[str, float]:
    """The numbers in result files of text; later attempts' over earlier ones'."""
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
            continue  # a model or a picture: nothing to compare number by number
        found.update({f"{path}: {name}": value for name, value in _numbers_of_file(text).items()})
    return found


def _numbers_of_file(text: str) -> dict[str, float]:
    try:
        return numbers(json.loads(text))
    except ValueError:
        return {f"number {n}": float(v) for n, v in enumerate(_NUMBER.findall(text)[:1000], 1)}
