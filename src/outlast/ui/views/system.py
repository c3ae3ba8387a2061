"""Utilisation as charts: one per resource, over time, with a gap between attempts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from outlast.runs.usage import Sample

_POINTS_MAX = 800
_MB, _GB = 1e6, 1e9


class SystemLine(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds since 1970 and values; None between two attempts."""

    name: str
    points: tuple[tuple[float, float | None], ...]


class SystemPlot(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    lines: tuple[SystemLine, ...]
    # The end of the axis; 0: as the values require.
    top: float = 0.0


def system_plots(samples: Mapping[int, Sequence[Sample]]) -> list[SystemPlot]:
    """Return the charts for which some sample has a value."""
    every = [sample for number in samples for sample in samples[number]]
    if not every:
        return []
    gpus = max(len(sample.gpu) for sample in every)
    found = [
        SystemPlot(title="CPU (%)", top=100.0, lines=(_line("CPU", samples, lambda one: 100 * one.cpu),)),
        SystemPlot(title="Memory (GB)", lines=(_line("memory", samples, lambda one: one.memory_bytes / _GB),)),
    ]
    if gpus:
        busy = [_line(f"GPU {n}", samples, _busy(n)) for n in range(gpus)]
        held = [_line(f"GPU {n}", samples, _held(n)) for n in range(gpus)]
        found.append(SystemPlot(title="GPU (%)", top=100.0, lines=tuple(busy)))
        found.append(SystemPlot(title="GPU memory (GB)", lines=tuple(held)))
    if any(one.read or one.written for one in every):
        disk = (
            _line("read", samples, lambda one: one.read / _MB),
            _line("written", samples, lambda one: one.written / _MB),
        )
        found.append(SystemPlot(title="Disk (MB/s)", lines=disk))
    if any(one.received or one.sent for one in every):
        network = (
            _line("received", samples, lambda one: one.received / _MB),
            _line("sent", samples, lambda one: one.sent / _MB),
        )
        found.append(SystemPlot(title="Network (MB/s)", lines=network))
    return found


def _busy(number: int) -> Callable[[Sample], float]:
    return lambda one: 100 * _at(one.gpu, number)


def _held(number: int) -> Callable[[Sample], float]:
    return lambda one: _at(one.gpu_memory, number) / _GB


def _at(values: Sequence[float], number: int) -> float:
    return values[number] if number < len(values) else 0.0


def _line(name: str, samples: Mapping[int, Sequence[Sample]], value: Callable[[Sample], float]) -> SystemLine:
    points: list[tuple[float, float | None]] = []
    count = sum(map(len, samples.values()))
    every = 1 + count // _POINTS_MAX
    for ones in samples.values():
        if points:
            points.append((points[-1][0], None))
        points += [(round(one.at * 1000), round(value(one), 4)) for one in ones[::every]]
    return SystemLine(name=name, points=tuple(points))
