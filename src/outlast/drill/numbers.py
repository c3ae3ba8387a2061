"""Numbers in a program's output and files: named results, and curves over steps. Pure."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterable, Mapping

from outlast.drill.steps import steps_in_line, without_steps

_NUMBER = (
    r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d*\.?\d+(?:[eE][-+]?\d+)?|\d+\.|nan|inf)(?![\w.]*[\w%])(?!/s|/\d+\s*[\])])"
    # `in 1.2 sec`, `1000 steps/s`: times and rates.
    r"(?!\s+(?:sec(?:ond)?s?|ms|min(?:ute)?s?|hours?|[A-Za-z]+/s(?:ec(?:ond)?)?)\b)"
)
# `train loss 2.83, val loss 2.84` are two results.
_BEFORE = (
    r"(?:(?:train(?:ing)?|val(?:id(?:ation)?)?|test|eval|dev|lm|avg|average|mean|best|total|learning|grad(?:ient)?|loss|batch|"
    r"time|data|consumed|log)\s+)?"
)
_PAIR = re.compile(
    rf"(?<![\w.])({_BEFORE}[A-Za-z_][\w./@-]*)(?:[\"']?\s*[:=]\s*|\s+)[\"'\[(]?(?<![\w.])({_NUMBER})", re.IGNORECASE
)
_PLAIN = re.compile(r"(?<![\w.])[-+]?\d+\.?\d*(?:[eE][-+]?\d+)?(?![\w.]*\w)")
# Names of values that always differ between two runs of the same program: times, rates, memory, machines.
_VOLATILE = re.compile(
    r"time|sec|elapsed|\beta\b|speed|throughput|per_s|/s(?:ec)?/|[cg]pu_?mem|attempt|resum|preempt|restor|duration|took|pid|date|^at$|_s$|"
    r"(^|[_./-])(mfu|t?flops?|tps|wps|ups|sps|fps|qps|ips|wall|data|remaining|mem|memory|vram|gpu_mem|max_mem|"
    r"bsz|wpb|gb_\w+|(?:reader|batch)_cost|samples_per_second|steps_per_second|ms|ms/batch|ms/step|s/it|it/s|it|tok/s|tokens/s|samples/s|img/s|latency|runtime|port|host|rank|v_num|gb|mb|"
    r"cpu|gpu|version|worker|uptime|dur|maintenance|reserved|seconds|minutes|hours)$",
    re.IGNORECASE,
)
# Settings and counters: equal in two runs whatever the training did.
_SETTING = re.compile(
    r"(^|[_./ -])(lr|learning_rate|momentum|dropout|decay|weight_decay|seed|size|batch_size|steps?|epochs?|iter|"
    r"iterations?|rounds?|batch|count|counted|total_timesteps|n_updates|num_\w+|n_\w+|params?|clip_range|gamma|trials?|ep|it|"
    r"itr|episodes?|generations?|frames?|ticks?|kimg|trees?|rate|scale|samples|instances|images|chunk|fold|cv)$",
    re.IGNORECASE,
)
_METRIC = re.compile(r"loss|acc|err|reward|return|score|auc|f1|mae|mse|perplexity|ppl|bleu|dice|iou|map", re.IGNORECASE)
# The last lines of the output that may hold results.
_LAST_JSON_LINES, _LAST_LINES = 50, 5
_NUMBERS_OF_FILE_MAX = 1000


# The name of the last value of a logged curve ends with this.
LAST = " (last)"


def is_result(name: str) -> bool:
    """Return whether a number of this name depends on the training: neither a time or rate nor a setting."""
    return not _VOLATILE.search(name) and not _SETTING.search(name.removesuffix(LAST))


def is_metric(name: str) -> bool:
    """Return whether a result of the training has this name, such as a loss."""
    return is_result(name) and bool(_METRIC.search(name))


def depends_on_training(name: str, value: float) -> bool:
    """Return whether a final number without a curve is a result: by its name, or because it is a fraction."""
    return is_metric(name) or (is_result(name) and not (math.isfinite(value) and value.is_integer()))


def numbers(value: object, name: str = "") -> dict[str, float]:
    """Return the numbers in a JSON value by their path; text such as '3.2' counts."""
    if isinstance(value, bool) or value is None:
        return {}
    if isinstance(value, str):
        value = _float(value)
    if isinstance(value, int | float):
        return {} if _VOLATILE.search(name) else {name or "value": float(value)}
    found: dict[str, float] = {}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in items:
        found.update(numbers(below, f"{name}.{key}" if name else str(key)))
    return found


def _float(text: str) -> float | None:
    return float(text.replace(",", "")) if re.fullmatch(_NUMBER, text) else None


def numbers_in(line: str) -> dict[str, float]:
    """Return the named numbers in a line of output: JSON, `loss=0.25`, `loss: 0.25`, `loss 0.25`, `'loss': '0.25'`."""
    text = line.strip()
    if text.startswith("{"):
        for parse in (json.loads, ast.literal_eval):
            try:
                return numbers(parse(text))
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                continue
    found: dict[str, float] = {}
    for name, value in _PAIR.findall(without_steps(text)):
        # The first counts: `Best is trial 3 with value: 0.1` follows the value of this trial.
        found.setdefault(" ".join(name.split()), float(value.replace(",", "")))
    return {name: value for name, value in found.items() if not _VOLATILE.search(name)}


def last_numbers(lines: Iterable[str]) -> dict[str, float]:
    """Return the final numbers of a program: from its last line of JSON, else from its last lines."""
    lines = [line for line in lines if line.strip() and not line.startswith("outlast:")]
    for line in reversed(lines[-_LAST_JSON_LINES:]):
        if line.lstrip().startswith("{") and (found := numbers_in(line)):
            return found
    found = {}
    for line in lines[-_LAST_LINES:]:
        found.update(numbers_in(line))
    return found


def numbers_of_file(text: str) -> dict[str, float]:
    """Return the numbers in a text file, by path in JSON or by position."""
    try:
        return numbers(json.loads(text))
    except ValueError:
        found = _PLAIN.findall(text)[:_NUMBERS_OF_FILE_MAX]
        return {f"number {n}": float(v) for n, v in enumerate(found, 1)}


def curve_in(lines: Iterable[str], word: str, *, shift: int = 0) -> dict[str, dict[int, float]]:
    """Return name → step → number, from lines with a step and numbers. `shift` is added to each step."""
    curves: dict[str, dict[int, float]] = {}
    for line in lines:
        step = next((n for w, n, _ in steps_in_line(line) if w == word), None)
        if step is None:
            continue
        for name, value in numbers_in(line).items():
            if not steps_in_line(f"{name} 1") and math.isfinite(value):
                curves.setdefault(name, {})[step + shift] = value
    return curves


def series_in(lines: Iterable[str]) -> dict[str, list[float]]:
    """Return the results in the order in which they were printed, by name."""
    found: dict[str, list[float]] = {}
    for line in lines:
        for name, value in numbers_in(line).items():
            if is_result(name) and math.isfinite(value):
                found.setdefault(name, []).append(value)
    return found


def varying(curves: Mapping[str, Mapping[int, float]]) -> list[str]:
    """Return the names of results that change over the training, the longest curve first."""
    names = [name for name, points in curves.items() if is_result(name) and len(set(points.values())) > 1]
    return sorted(names, key=lambda name: (-len(curves[name]), "loss" not in name, name))
