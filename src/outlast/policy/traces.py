"""Traces of recorded capacity, read from files and folders; `spec.trace` checks their content."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from outlast.errors import UsageError
from outlast.spec.trace import HINT, NoTrace, is_cut, parse_trace


@dataclass(frozen=True, slots=True)
class Trace:
    """One zone over time, in one or more windows."""

    name: str
    tick_s: float
    windows: dict[str, str]

    def ids(self) -> list[str]:
        """Return the windows in the order of their file names, as the benchmark does."""
        return sorted(self.windows, key=lambda window: f"{window}.json")


def read_traces(path: str, *, ones: str = "") -> list[Trace]:
    """Return the trace in a file, or all traces in a folder. Raises UsageError for missing or invalid files.

    A folder may instead contain the windows of one zone, one file each.
    """
    if not os.path.isdir(path):
        return [_trace(path, _read(path), ones)]
    names = sorted(name for name in os.listdir(path) if name.endswith(".json"))
    if not names:
        raise UsageError(f"folder `{path}` contains no trace: no file name ends in `.json`", hint=HINT)
    found = {file: _read(file) for file in (os.path.join(path, name) for name in names)}
    traces = [_trace(file, body, ones) for file, body in found.items()]
    return [_joined(path, traces)] if all(map(is_cut, found.values())) else traces


def _joined(folder: str, traces: list[Trace]) -> Trace:
    lengths = {trace.tick_s for trace in traces}
    if len(lengths) > 1:
        raise UsageError(f"the windows in `{folder}` have ticks of different lengths: {sorted(lengths)}", hint=HINT)
    name = os.path.basename(os.path.abspath(folder))
    return Trace(name, lengths.pop(), {trace.name: trace.windows["0"] for trace in traces})


def _read(path: str) -> object:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as problem:
        raise UsageError(f"could not read trace `{path}`: {problem.strerror}", hint=HINT) from problem
    except (ValueError, RecursionError) as problem:
        raise UsageError(f"trace `{path}` is not valid JSON: {problem}", hint=HINT) from problem


def _trace(path: str, found: object, ones: str) -> Trace:
    try:
        tick_s, windows = parse_trace(found, ones=ones)
    except NoTrace as problem:
        raise UsageError(f"trace `{path}`: {problem}", hint=problem.hint) from problem
    return Trace(os.path.splitext(os.path.basename(path))[0], tick_s, windows)
