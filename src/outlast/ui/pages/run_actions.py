"""The actions on a run's page: the same as the commands, with a confirmation where they cost something."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from nicegui import ui

from outlast.app.actions import cancel_run, preempt_run
from outlast.app.background import start_supervisor
from outlast.app.notes import annotate
from outlast.app.outputs import fetch_outputs
from outlast.errors import OutlastError
from outlast.retention.prune import delete_runs
from outlast.runs.notes import RunNote, read_note
from outlast.ui.detail import RunDetail
from outlast.ui.layout import PageView, heading, show_error


class Actions:
    """The buttons. Actions that are impossible now are hidden."""

    def __init__(self, view: PageView, detail: RunDetail) -> None:
        self.view = view
        self.run = detail.run
        with ui.element("div").classes("ol-row ol-actions").props('role=group aria-label="Actions"'):
            self.note = _button("Note", "sell", self._note)
            self.pull = _button("Pull", "download", self._pull)
            self.rerun = _button("Rerun", "replay", self._rerun)
            self.preempt = _button("Preempt", "bolt", self._preempt)
            self.delete = _button("Delete", "delete", self._delete).classes("ol-danger")
            self.cancel = _button("Cancel", "stop_circle", self._cancel).classes("ol-danger")

    def update(self, detail: RunDetail) -> None:
        state = detail.state
        self.cancel.set_visibility(state.alive)
        self.delete.set_visibility(state.closed)
        self.preempt.set_visibility(state.alive and any(a.phase != "over" for a in state.attempts))

    async def _cancel(self) -> None:
        text = "The run ends now and its machine is deleted. Checkpoints, logs and outputs stay."
        if await confirm(f"Cancel {self.run}?", text, {"Cancel the run": "yes"}):
            done = await self._try(lambda: cancel_run(self.view.workspace, self.run))
            if done is not None:
                await self._try(lambda: start_supervisor(self.view.workspace))
                ui.notify(f"cancelled {self.run}" if done else f"{self.run} has already ended")

    async def _delete(self) -> None:
        text = "Its checkpoints, logs, metrics and outputs are deleted for good. Its cost stays in the ledger."
        if not await confirm(f"Delete {self.run}?", text, {"Delete the run": "yes"}):
            return
        if await self._try(lambda: delete_runs(self.view.workspace, [self.run])) is not None:
            ui.navigate.to("/")

    async def _preempt(self) -> None:
        text = (
            "Its machine is deleted, as by a cloud. With notice, the run saves and hands over. Without notice, it "
            "resumes from its last checkpoint and loses the work since then."
        )
        choice = await confirm(f"Preempt {self.run}?", text, {"Without notice": "no-notice", "With notice": "notice"})
        if choice:
            notice = choice == "notice"
            attempt = await self._try(lambda: preempt_run(self.view.workspace, self.run, notice=notice))
            if attempt is not None:
                how = "with notice" if notice else "without notice"
                ui.notify(f"preempted attempt {attempt.number} in {attempt.zone}, {how}")

    async def _note(self) -> None:
        typed = await ask_note(self.run, await self.view.read(read_note, self.view.workspace.bucket, self.run))
        if typed is not None:
            text, tags, untag = typed
            await self._try(lambda: annotate(self.view.workspace, self.run, text=text, tags=tags, untag=untag))

    async def _pull(self) -> None:
        folder = os.path.join("outputs", self.run)
        count = await self._try(lambda: fetch_outputs(self.view.workspace, self.run, folder))
        if count is not None:
            files = "1 file" if count == 1 else f"{count} files"
            ui.notify(f"{files} in {os.path.abspath(folder)}" if count else f"{self.run} has no outputs yet")

    def _rerun(self) -> None:
        """Open the form of a new run, filled in from this one: nothing starts before its price is shown."""
        ui.navigate.to(f"/new?run={quote(self.run, safe='')}")

    async def _try(self, work: Callable[[], Any]) -> Any:
        """Return the result; None after showing an error."""
        try:
            return await self.view.read(work)
        except OutlastError as problem:
            show_error(problem.message, problem.hint)
        except OSError as problem:
            show_error(f"{problem.filename or 'this'}: {problem.strerror}")
        return None


def _button(title: str, icon: str, work: Callable[[], Any]) -> ui.button:
    return ui.button(title, icon=icon, on_click=work, color=None).props("outline no-caps dense").classes("ol-button")


async def confirm(question: str, text: str, choices: dict[str, str]) -> str:
    """Ask for confirmation. Return the chosen value; empty if dismissed. The last choice is the least harmful one."""
    with ui.dialog() as dialog, ui.card().classes("ol-dialog"):
        heading(question)
        ui.label(text)
        with ui.element("div").classes("ol-row ol-end"):
            ui.button("Back", on_click=lambda: dialog.submit(""), color=None).props("flat no-caps")
            for title, value in choices.items():
                ui.button(title, on_click=lambda value=value: dialog.submit(value), color=None).props(
                    "unelevated no-caps"
                ).classes("ol-primary" if len(choices) > 1 and value == [*choices.values()][-1] else "ol-alarm")
    answer = await dialog
    dialog.delete()
    return str(answer or "")


async def ask_note(run: str, note: RunNote) -> tuple[str, list[str], list[str]] | None:
    """Ask for the note of a run. Return its text, and the tags to add and to remove; None if dismissed."""
    with ui.dialog() as dialog, ui.card().classes("ol-dialog"):
        heading(f"Note on {run}")
        tags = ui.input("Tags, separated by spaces", value=" ".join(note.tags)).props("dense outlined")
        text = ui.textarea("Note", value=note.text).props("dense outlined")
        tags.classes("ol-field")
        text.classes("ol-field")
        with ui.element("div").classes("ol-row ol-end"):
            ui.button("Back", on_click=lambda: dialog.submit(""), color=None).props("flat no-caps")
            save = ui.button("Save", on_click=lambda: dialog.submit("yes"), color=None)
            save.props("unelevated no-caps").classes("ol-primary")
    answer = await dialog
    typed, wanted = str(text.value or ""), str(tags.value or "").split()
    dialog.delete()
    return (typed, wanted, [tag for tag in note.tags if tag not in wanted]) if answer else None
