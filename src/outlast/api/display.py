"""Runs in notebooks: HTML that follows the theme of the notebook, and a view that updates itself."""

from __future__ import annotations

import html
import time
from typing import Any

from outlast.app.following import poll_s
from outlast.errors import OutlastError
from outlast.formatting.event_text import sentence
from outlast.formatting.quantities import money
from outlast.formatting.run_row import newest_step, spent_usd, status_text, why
from outlast.runs.state import RunState
from outlast.spec.quantity import describe_s
from outlast.workspace import Workspace

# Events below the facts, newest last.
_EVENTS = 5
_CELL = "padding:0.1em 0.8em 0.1em 0;text-align:left;vertical-align:top"


def run_bundle(workspace: Workspace, run: str) -> dict[str, str]:
    """Return the run as text and as HTML. A workspace that cannot be reached is shown, not raised."""
    try:
        facts, events = _facts(workspace, run)
    except OutlastError as problem:
        return {
            "text/plain": f"{run}: {problem.message}",
            "text/html": f"<b>{html.escape(run)}</b> {html.escape(problem.message)}",
        }
    lines = [f"{run}  {facts['status']}", *(f"{name:<10}{text}" for name, text in facts.items() if name != "status")]
    return {"text/plain": "\n".join(lines), "text/html": _html(run, facts, events)}


def _facts(workspace: Workspace, run: str) -> tuple[dict[str, str], list[str]]:
    """Return the facts with a value, by name, and the newest events."""
    story = workspace.story(run)
    state, now = story.refresh(), time.time()
    heartbeat = workspace.heartbeat(run) if state.alive else None
    step = newest_step(state, heartbeat)
    facts = {
        "status": status_text(state),
        "why": why(state),
        "hint": state.hint,
        "machine": _machine(state),
        "attempt": str(state.last.number) if state.last else "",
        "step": "" if step is None else str(step),
        "saved": str(len(state.checkpoints)) if state.checkpoints else "",
        "age": describe_s(max(0.0, (state.ended_at or now) - state.submitted_at)),
        "cost": money(spent_usd(state, now)),
        "workspace": workspace.url,
    }
    events = [sentence(event) for event in story.events[-_EVENTS:]]
    return {name: text for name, text in facts.items() if text}, events


def _machine(state: RunState) -> str:
    last = state.last
    if last is None:
        return ""
    return f"{last.type} {last.zone}" + ("" if last.spot else " on demand")


def _html(run: str, facts: dict[str, str], events: list[str]) -> str:
    rows = "".join(
        f'<tr><th style="{_CELL}">{html.escape(name)}</th><td style="{_CELL}">{html.escape(text)}</td></tr>'
        for name, text in facts.items()
    )
    lines = "".join(f"<div>{html.escape(event)}</div>" for event in events)
    return (
        f'<div class="outlast-run"><b>{html.escape(run)}</b><table style="margin:0.3em 0">{rows}</table>'
        f'<div style="font-family:monospace;white-space:pre-wrap;opacity:0.8">{lines}</div></div>'
    )


def show_live(workspace: Workspace, run: str, *, every_s: float) -> None:
    """Display the run and update it until it ends. Without a notebook its text is printed when it changes."""
    handle, shown = _display(), ""
    while True:
        ended = bool(workspace.story(run).refresh().ending)
        bundle = run_bundle(workspace, run)
        if bundle["text/html"] != shown:
            shown = bundle["text/html"]
            handle.update(bundle)
        if ended:
            return
        time.sleep(max(every_s, poll_s(workspace)))


class _Printed:
    """Replaces the display of a notebook elsewhere."""

    def __init__(self) -> None:
        self._last = ""

    def update(self, bundle: dict[str, str]) -> None:
        line = bundle["text/plain"].partition("\n")[0]
        if line != self._last:
            self._last = line
            print(line)


class _Notebook:
    """One display of a notebook, whose content is replaced."""

    def __init__(self, display: Any) -> None:
        self._display = display
        self._handle: Any = None

    def update(self, bundle: dict[str, str]) -> None:
        if self._handle is None:
            self._handle = self._display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


def _display() -> _Printed | _Notebook:
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError:
        return _Printed()
    shell = get_ipython()
    return _Printed() if shell is None or not hasattr(shell, "kernel") else _Notebook(display)
