"""Optuna's plots of a sweep as data for the browser.

The plots contain names and values of users, and Plotly interprets some markup: all markup that Optuna did not write is
escaped here.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from typing import Any

import msgspec

from outlast.sweep.record import Sweep
from outlast.sweep.state import SweepState
from outlast.sweep.study import Search

# The markup that Optuna and Plotly write.
_ALLOWED_MARKUP = re.compile(r"<(?!(?:br|/?extra)>)")
_GREY, _FAINT = "#7f8a99", "rgba(128,138,153,.22)"
# The maximum number of slice plots side by side.
_PARAMS_MAX = 4
_SEQUENCE = ["#0d9488", "#d97706", "#6366f1", "#be123c", "#4d7c0f"]


class OptunaPlot(msgspec.Struct, frozen=True, kw_only=True):
    """A Plotly figure."""

    name: str
    title: str
    figure: dict[str, Any]


def draw_plots(sweep: Sweep, state: SweepState) -> tuple[OptunaPlot, ...]:
    """Return all plots that the data allows. Blocking. Raises OutlastError without Optuna."""
    if not state.complete:
        return ()
    search = Search(sweep.name, sweep.search)
    search.follow(state)
    drawn = []
    for name, title, draw in _possible(search, sweep, state):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            figure = draw()
        drawn.append(OptunaPlot(name=name, title=title, figure=_plain(figure)))
    return tuple(drawn)


def _possible(search: Search, sweep: Sweep, state: SweepState) -> list[tuple[str, str, Callable[[], Any]]]:
    import optuna.visualization as draw

    study = search.study
    goals, params = sweep.search.goals, list(sweep.search.params)[:_PARAMS_MAX]
    target: dict[str, Any] = {"target_name": goals[0].partition(":")[2]}
    if len(goals) > 1:
        target["target"] = _first_value
    found: list[tuple[str, str, Callable[[], Any]]] = []
    if len(goals) > 1:
        names = [goal.partition(":")[2] for goal in goals]
        if len(goals) <= 3:
            found.append(("pareto", "Pareto front", lambda: draw.plot_pareto_front(study, target_names=names)))
    found.append(("history", "Optimization history", lambda: draw.plot_optimization_history(study, **target)))
    weights = search.importance()
    if weights:
        found.append(("importance", "Parameter importance", lambda: _importance(weights)))
    found.append(("slice", "Slice", lambda: draw.plot_slice(study, params=params, **target)))
    if len(params) > 1 and len(state.complete) > 1:
        # The two most important parameters: all pairs together are too small to read.
        pair = list(weights or params)[:2]
        title = f"Contour of {pair[0]} and {pair[1]}"
        found.append(("contour", title, lambda: draw.plot_contour(study, params=pair, **target)))
    found.append(("edf", "Distribution of the goal", lambda: draw.plot_edf(study, **target)))
    if len(goals) == 1 and any(trial.reports for trial in state.trials):
        found.append(("intermediate", "Intermediate values", lambda: draw.plot_intermediate_values(study)))
    found.append(("timeline", "Timeline", lambda: draw.plot_timeline(study)))
    return found


def _first_value(trial: Any) -> float:
    return float(trial.values[0])


def _importance(weights: dict[str, float]) -> dict[str, Any]:
    """Return the plot of the weights that `outlast sweep show` prints, in Optuna's style."""
    names = list(reversed(weights))
    bar = {
        "type": "bar",
        "orientation": "h",
        "y": names,
        "x": [weights[name] for name in names],
        "text": [f"{weights[name]:.2f}" for name in names],
        "textposition": "auto",
    }
    return {"data": [bar], "layout": {"xaxis": {"title": {"text": "importance"}}}}


def _plain(figure: Any) -> dict[str, Any]:
    """Convert to plain data with escaped text, without Optuna's title, in colours for both themes."""
    made = figure if isinstance(figure, dict) else json.loads(figure.to_json())
    found: dict[str, Any] = _escaped(made)
    layout = found.setdefault("layout", {})
    layout.pop("template", None)
    layout.pop("title", None)
    layout |= {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": _GREY, "size": 12, "family": "system-ui, sans-serif"},
        "margin": {"l": 60, "r": 20, "t": 16, "b": 48},
        "autosize": True,
        "colorway": _SEQUENCE,
        "legend": {**layout.get("legend", {}), "bgcolor": "rgba(0,0,0,0)"},
    }
    layout.pop("width", None)
    layout.pop("height", None)
    axes = [name for name in layout if re.fullmatch(r"[xy]axis\d*", name)] or ["xaxis", "yaxis"]
    for name in {*axes, "xaxis", "yaxis"}:
        axis = layout.setdefault(name, {})
        axis |= {"gridcolor": _FAINT, "zerolinecolor": _FAINT, "linecolor": _FAINT, "automargin": True}
    found["config"] = {
        "displaylogo": False,
        "responsive": True,
        "modeBarButtonsToRemove": ["toImage", "sendDataToCloud"],
    }
    return {name: found[name] for name in ("data", "layout", "config")}


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return _ALLOWED_MARKUP.sub("&lt;", value)
    if isinstance(value, list):
        return [_escaped(one) for one in value]
    if isinstance(value, dict):
        return {name: _escaped(one) for name, one in value.items()}
    return value
