"""What can be done to a run from its page: the same that the commands do, asked for twice where it costs something."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from nicegui import ui

from outlast.app.actions import cancel_run, preempt_run, rerun_run
from outlast.app.background import start_supervisor
from outlast.app.outputs import fetch_outputs
from outlast.errors import OutlastError
from outlast.ui.detail import Detail
from outlast.ui.layout import PageView, complain, heading


class Actions:
    """The buttons. What makes no sense now is not offered."""

    def __init__(self, view: PageView, detail: Detail) -> None:
        self.view = view
        self.run = detail.run
        with ui.element("div").classes("ol-row ol-actions").props('role=group aria-label="Actions"'):
            self.pull = _button("Pull", "download", self._pull)
            self.rerun = _button("Rerun", "replay", self._rerun)
            self.preempt = _button("Preempt", "bolt", self._preempt)
            self.cancel = _button("Cancel", "stop_circle", self._cancel).classes("ol-danger")

    def tell(self, detail: Detail) -> None:
        state = detail.state
        self.cancel.set_visibility(state.alive)
        self.preempt.set_visibility(state.alive and any(a.phase != "over" for a in state.attempts))

    async def _cancel(self) -> None:
        text = "It ends now, and its machine is deleted. Checkpoints, logs and outputs stay."
        if await _sure(f"Cancel {self.run}?", text, {"Cancel the run": "yes"}):
            done = await self._try(lambda: cancel_run(self.view.workspace, self.run))
            if done is not None:
                await self._try(lambda: start_supervisor(self.view.workspace))
                ui.notify(f"cancelled {self.run}" if done else f"{self.run} is over already")

    async def _preempt(self) -> None:
        text = (
            "Its machine is taken away, as a cloud would. With a notice it saves and hands over; without one it goes "
            "on from its last checkpoint, and the work since then is lost."
        )
        choice = await _sure(f"Preempt {self.run}?", text, {"Without notice": "no-notice", "With notice": "notice"})
        if choice:
            notice = choice == "notice"
            attempt = await self._try(lambda: preempt_run(self.view.workspace, self.run, notice=notice))
            if attempt is not None:
                how = "with notice" if notice else "without notice"
                ui.notify(f"preempted attempt {attempt.number} in {attempt.zone}, {how}")

    async def _pull(self) -> None:
        folder = os.path.join("outputs", self.run)
        count = await self._try(lambda: fetch_outputs(self.view.workspace, self.run, folder))
        if count is not None:
            files = "1 file" if count == 1 else f"{count} files"
            ui.notify(f"{files} in {os.path.abspath(folder)}" if count else f"{self.run} has no outputs (yet)")

    async def _rerun(self) -> None:
        text = (
            "A new run of the recorded spec, code and image, from the beginning. Its machines cost what machines cost."
        )
        if await _sure(f"Run {self.run} again?", text, {"Run it again": "yes"}):
            asked = await self._try(lambda: rerun_run(self.view.workspace, self.run))
            if asked is not None:
                await self._try(lambda: start_supervisor(self.view.workspace))
                ui.navigate.to(f"/run/{quote(asked.run, safe='')}")

    async def _try(self, work: Callable[[], Any]) -> Any:
        """Its result, or None after the error was shown."""
        try:
            return await self.view.read(work)
        except OutlastError as problem:
            complain(problem.message, problem.hint)
        except OSError as problem:
            complain(f"{problem.filename or 'this'}: {problem.strerror}")
        return None


def _button(title: str, icon: str, work: Callable[[], Any]) -> ui.button:
    return ui.button(title, icon=icon, on_click=work, color=None).props("outline no-caps dense").classes("ol-button")


async def _sure(question: str, text: str, choices: dict[str, str]) -> str:
    """What was chosen; empty if it was left alone. The last choice is the one that does least harm."""
    with ui.dialog() as dialog, ui.card().classes("ol-dialog"):
        heading(question)
        ui.label(text)
        with ui.element("div").classes("ol-row ol-end"):
            ui.button("Leave it", on_click=lambda: dialog.submit(""), color=None).props("flat no-caps")
            for title, value in choices.items():
                ui.button(title, on_click=lambda value=value: dialog.submit(value), color=None).props(
                    "unelevated no-caps"
                ).classes("ol-primary" if len(choices) > 1 and value == [*choices.values()][-1] else "ol-alarm")
    answer = await dialog
    dialog.delete()
    return str(answer or "")
