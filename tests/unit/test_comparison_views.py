"""Smoothed curves, utilisation as charts, and runs side by side, as values."""

from __future__ import annotations

from outlast.app.comparison import Compared
from outlast.runs.metrics import CurveMark, Curves, Point
from outlast.runs.usage import Sample
from outlast.ui.views.comparison import comparison_rows
from outlast.ui.views.curves import plots, smoothed
from outlast.ui.views.system import system_plots

POINTS = tuple(Point(step, value, 100.0 + 10 * step, 1) for step, value in ((1, 4.0), (2, 0.0), (3, 2.0)))


def test_smoothing_weighs_the_values_before_and_is_right_at_the_start() -> None:
    found = smoothed(POINTS, 0.5)
    assert [round(point.value, 3) for point in found] == [4.0, 1.333, 1.714]
    assert smoothed(POINTS, 0.0) is POINTS


def test_a_curve_over_time_starts_at_zero_and_keeps_the_raw_summary() -> None:
    (plot,) = plots({"a": Curves({"loss": POINTS}, ())}, marks=(), smoothing=0.5, by_time=True)
    (line,) = plot.lines
    assert [at for at, _ in line.points] == [0.0, 10.0, 20.0]
    assert (line.last, line.low, line.high) == (2.0, 0.0, 4.0)


def test_utilisation_has_a_chart_per_resource_that_was_used_and_gaps_between_attempts() -> None:
    one = Sample(at=1.0, cpu=0.5, memory_bytes=2 * 10**9, gpu=(0.25,), gpu_memory=(10**9,))
    other = Sample(at=9.0, cpu=1.0, memory_bytes=10**9, read=3e6, gpu=(0.5,), gpu_memory=(10**9,))
    found = {plot.title: plot for plot in system_plots({1: (one,), 2: (other,)})}
    assert list(found) == ["CPU (%)", "Memory (GB)", "GPU (%)", "GPU memory (GB)", "Disk (MB/s)"]
    assert found["CPU (%)"].lines[0].points == ((1000, 50.0), (1000, None), (9000, 100.0))
    assert found["GPU (%)"].lines[0].points[-1] == (9000, 50.0)
    assert system_plots({}) == []


def compared(run: str, lr: float, loss: float) -> Compared:
    return Compared(
        run=run,
        state="finished",
        params={"depth": 3, "lr": lr},
        metrics={"loss": loss},
        code="abc",
        image="",
        machine="t z",
        attempts=1,
        preemptions=0,
        seconds=1.0,
        cost_usd=0.1,
        curves={},
    )


def test_parameters_that_differ_come_first() -> None:
    rows = comparison_rows([compared("a", 0.1, 1.0), compared("b", 0.2, 1.0)])
    assert [(row.name, row.differs) for row in rows[:3]] == [("lr", True), ("depth", False), ("loss", False)]
    assert "image" not in [row.name for row in rows]


def test_marks_that_are_close_to_each_other_have_one_text() -> None:
    marks = [
        CurveMark(step, kind, 1, 0.0) for step, kind in ((0, "preempted"), (1, "lost"), (1, "resumed"), (3, "lost"))
    ]
    (plot,) = plots({"a": Curves({"loss": POINTS}, ())}, marks=marks)  # type: ignore[arg-type]
    assert [mark.step for mark in plot.named_marks()] == [0, 1, 3]
    (plot,) = plots({"a": Curves({"loss": [Point(s, 0.0, 0.0, 1) for s in range(10)]}, ())}, marks=marks)  # type: ignore[arg-type]
    assert [mark.step for mark in plot.named_marks()] == [0, 3]
