"""Parsers for steps and numbers in a program's output: `step 12`, `epoch 3/60`, `loss=0.25`, a line of JSON. Pure."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Sequence

import msgspec

_STEP = re.compile(
    r"\b(steps?|global[_-]step|epochs?|iter(?:ation)?s?|counts?|counted|rounds?|batch|trials?|candidates?)"
    r"\b[\"']?\s*[:=#\[(]?\s*(\d+)(?:\s*(?:/|of)\s*(\d+))?",
    re.IGNORECASE,
)
# `[12] loss: 0.5` and `[12,  2000] loss: 0.5` (tutorials), `[12]\ttrain-logloss:0.5` (boosters).
_BRACKET = re.compile(r"^\s*\[\s*(\d+)(?:\s*,\s*\d+)?\s*\]\s*(?=\S+.*\d)")
# ` 40%|████      | 12/30 [00:01<00:02]`: a progress bar.
_BAR = re.compile(r"^(.*?)\s*\d+%\|[^|]*\|\s*(\d+)/(\d+)\s*\[")
_PAIR = re.compile(
    r"([A-Za-z_][\w./-]*)[\"']?\s*[:=]?\s*(?<![\w.])([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf)(?![\w.]*\w))"
)
# Names of values that always differ between two runs of the same program.
_VOLATILE = re.compile(
    r"time|sec|elapsed|\beta\b|speed|throughput|per_s|attempt|resum|preempt|restor|duration|took|pid|date|^at$|_s$",
    re.I,
)


class StepMark(msgspec.Struct, frozen=True, kw_only=True):
    """A step that the program reported, no later than `at`."""

    word: str
    step: int
    at: float
    total: int | None = None


def marks(text: str, *, at: float) -> list[StepMark]:
    """Return the steps in some lines of output, at most one for each word in a line."""
    found: list[StepMark] = []
    for line in text.splitlines():
        seen: set[str] = set()
        for name, step, total in _steps_in_line(line):
            if name not in seen:
                seen.add(name)
                found.append(StepMark(word=name, step=int(step), at=at, total=int(total) if total else None))
    return found


def _steps_in_line(line: str) -> list[tuple[str, str, str]]:
    """Return the word, the step and the total, if any, of each step in a line."""
    found = [(_word(word), step, total) for word, step, total in _STEP.findall(line)]
    if (bracket := _BRACKET.match(line)) is not None:
        found.append(("[", bracket.group(1), ""))
    if (bar := _BAR.match(line)) is not None:
        # By label: `Writing model shards: 100%|…| 1/1` counts something else.
        found.append(("|" + bar.group(1).strip(), bar.group(2), bar.group(3)))
    return found


def _word(word: str) -> str:
    return re.sub(r"[_-]|s$", "", word.lower()).removeprefix("global")


def steps_of(attempts: Sequence[Sequence[StepMark]]) -> list[list[StepMark]]:
    """Return the marks of one word: the most detailed of those that only increase within an attempt.

    Batch numbers restart in each epoch, and a total is printed once: neither counts.
    """
    words = {mark.word for marks in attempts for mark in marks}
    best: tuple[int, str] = (0, "")
    for word in sorted(words):
        series = [_without_lead([m for m in marks if m.word == word]) for marks in attempts]
        pairs = [(a.step, b.step) for marks in series for a, b in itertools.pairwise(marks)]
        if sum(a > b for a, b in pairs) <= len(pairs) // 50:
            best = max(best, (len({m.step for marks in series for m in marks}), word))
    return [_without_lead([m for m in marks if m.word == best[1]]) for marks in attempts]


def _without_lead(marks: list[StepMark]) -> list[StepMark]:
    """Remove a leading `steps: 1000`, which is a setting and not a step."""
    while len(marks) > 1 and marks[0].step > marks[1].step:
        marks = marks[1:]
    return marks


def progress_of(marks: Iterable[StepMark], *, last: StepMark | None = None) -> float | None:
    """Return the finished share: by the last step of an undisturbed run with the same word, else from `12/60`."""
    for mark in reversed(list(marks)):
        total = last.step if last is not None and last.word == mark.word else mark.total
        if total:
            return min(1.0, mark.step / total)
    return None


def numbers(value: object, name: str = "") -> dict[str, float]:
    """Return the numbers in a JSON value by their path."""
    if isinstance(value, bool) or value is None:
        return {}
    if isinstance(value, int | float):
        return {} if _VOLATILE.search(name) else {name or "value": float(value)}
    found: dict[str, float] = {}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in items:
        found.update(numbers(below, f"{name}.{key}" if name else str(key)))
    return found


def numbers_in(line: str) -> dict[str, float]:
    """Return the named numbers in a line of output: JSON, `loss=0.25`, `loss: 0.25`, `loss 0.25`."""
    text = line.strip()
    if text.startswith("{"):
        try:
            return numbers(json.loads(text))
        except ValueError:
            pass
    found = {name: float(value) for name, value in _PAIR.findall(text)}
    return {name: value for name, value in found.items() if not _VOLATILE.search(name)}


def last_numbers(text: str, *, lines_max: int = 5) -> dict[str, float]:
    """Return the final numbers of a program: from its last line of JSON, else from its last lines."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("outlast:")]
    for line in reversed(lines[-50:]):
        if line.lstrip().startswith("{") and (found := numbers_in(line)):
            return found
    found = {}
    for line in lines[-lines_max:]:
        found.update(numbers_in(line))
    return found


def curve_in(text: str, word: str) -> dict[str, dict[int, float]]:
    """Return name → step → number, from lines with a step and numbers."""
    curves: dict[str, dict[int, float]] = {}
    for line in text.splitlines():
        step = next((int(n) for w, n, _ in _steps_in_line(line) if w == word), None)
        if step is None:
            continue
        for name, value in numbers_in(line).items():
            if not _STEP.match(f"{name} 1") and math.isfinite(value):
                curves.setdefault(name, {})[step] = value
    return curves
