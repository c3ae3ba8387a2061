"""What went wrong: the last lines of the attempt that failed, above everything else on the page of a run."""

from __future__ import annotations

from nicegui import background_tasks, ui

from outlast.errors import OutlastError
from outlast.runs.state import Attempt, RunState
from outlast.ui.detail import RunDetail
from outlast.ui.layout import PageView, panel, prose
from outlast.ui.pages.components import code, href

_BAD = ("crashed", "killed", "hung", "broken")
_LINES, _BYTES = 30, 8192


class Failure:
    """The panel of a run that failed, or whose last attempt crashed; hidden for others."""

    def __init__(self, view: PageView) -> None:
        self.view = view
        self.shown: tuple[str, int, int] | None = None
        with panel("What went wrong", classes="ol-failure") as self.section:
            self.place = ui.element("div")
        self.section.set_visibility(False)

    def update(self, detail: RunDetail) -> None:
        attempt = failed_attempt(detail.state)
        size = dict(detail.logs).get(attempt.number, 0) if attempt else 0
        self.section.set_visibility(attempt is not None)
        if attempt is None or self.shown == (detail.run, attempt.number, size):
            return
        self.shown = (detail.run, attempt.number, size)
        background_tasks.create(self._show(detail.run, attempt))

    async def _show(self, run: str, attempt: Attempt) -> None:
        try:
            lines = await self.view.read(self._tail, run, attempt.number)
        except OutlastError as problem:
            lines = problem.message
        if self.view.client.is_deleted or self.place.is_deleted:
            return
        self.place.clear()
        with self.place:
            with ui.element("div").classes("ol-row ol-above"):
                prose(f"Attempt {attempt.number}: {attempt.why or attempt.outcome}").classes("ol-grow")
                ui.link("Whole log", f"{href('run', run)}?tab=log&attempt={attempt.number}")
            if lines:
                code(lines, label="The last lines of its output")

    def _tail(self, run: str, attempt: int) -> str:
        """Return the last lines of the output."""
        index = self.view.feed.logs.index(run, attempt)
        index.refresh()
        text = index.read(index.size - _BYTES, index.size).decode("utf-8", "replace")
        return "\n".join(text.splitlines()[-_LINES:])


def failed_attempt(state: RunState) -> Attempt | None:
    """Return the attempt that explains a failure; None while nothing is wrong."""
    if state.ending not in ("", "failed") or state.limit is not None:
        return None
    ran = [attempt for attempt in state.attempts if attempt.started_at]
    if not ran or (state.alive and ran[-1].outcome not in _BAD):
        return None
    return ran[-1]
