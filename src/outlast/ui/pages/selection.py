"""Actions on the runs that are selected in the overview: compare, cancel, rerun, delete, download."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

from nicegui import ui

from outlast.app.actions import cancel_run, rerun_run
from outlast.app.background import start_supervisor
from outlast.errors import OutlastError
from outlast.retention.prune import delete_runs
from outlast.ui.layout import PageView, show_error
from outlast.ui.pages.run_actions import confirm

_COMPARED_MAX, _NAMED = 8, 6


class SelectedRuns:
    """The bar that appears above the table while runs are selected."""

    def __init__(self, view: PageView) -> None:
        self.view = view
        self.grid: ui.aggrid
        with (
            ui.element("div")
            .classes("ol-row ol-selected")
            .props("id=ol-selected hidden role=group aria-label=Selected")
        ):
            ui.element("span").props("id=ol-selected-count role=status")
            for title, work in (
                ("Compare", self._compare),
                ("Download outputs", self._download),
                ("Rerun", self._rerun),
                ("Cancel", self._cancel),
                ("Delete", self._delete),
            ):
                ui.button(title, on_click=work, color=None).props("outline no-caps dense").classes("ol-button")

    async def _rows(self, alive: bool | None = None) -> list[str]:
        """Return the selected runs, and those of selected groups; with `alive` only live or only ended ones."""
        selected = {str(row["key"] or row["run"]) for row in await self.grid.get_selected_rows()}
        rows = self.view.feed.snapshot.rows.values()
        chosen = [row for row in rows if row.run in selected or row.part_of in selected]
        return [row.run for row in chosen if alive is None or row.alive is alive]

    async def _compare(self) -> None:
        runs = await self._rows()
        if not 2 <= len(runs) <= _COMPARED_MAX:
            show_error(f"{len(runs)} selected", f"select 2 to {_COMPARED_MAX} runs to compare them")
            return
        ui.navigate.to(f"/compare?runs={quote(','.join(runs))}")

    async def _download(self) -> None:
        ui.navigate.to(f"/api/outputs.zip?runs={quote(','.join(await self._rows()))}", new_tab=True)

    async def _cancel(self) -> None:
        text = "They end now and their machines are deleted. Checkpoints, logs and outputs stay."
        await self._each(await self._rows(alive=True), "Cancel", text, lambda run: cancel_run(self.view.workspace, run))

    async def _rerun(self) -> None:
        text = "Starts a new run for each, with the recorded spec, code and image. Their machines are billed."
        await self._each(await self._rows(), "Rerun", text, lambda run: rerun_run(self.view.workspace, run))

    async def _delete(self) -> None:
        text = "Their checkpoints, logs, metrics and outputs are deleted for good. Their cost stays in the ledger."

        def delete(run: str) -> None:
            delete_runs(self.view.workspace, [run])

        await self._each(await self._rows(alive=False), "Delete", text, delete)

    async def _each(self, runs: list[str], verb: str, text: str, work: Callable[[str], object]) -> None:
        if not runs:
            show_error(f"{verb}: no selected run allows it", "live runs can be cancelled, ended runs can be deleted")
            return
        count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
        more = f" and {len(runs) - _NAMED} more" if len(runs) > _NAMED else ""
        if not await confirm(
            f"{verb} {count}?", f"{', '.join(runs[:_NAMED])}{more}. {text}", {f"{verb} {count}": "yes"}
        ):
            return
        done = 0
        for run in runs:
            try:
                await self.view.read(work, run)
                done += 1
            except OutlastError as problem:
                show_error(f"{run}: {problem.message}", problem.hint)
        if done and verb != "Delete":
            await self.view.read(lambda: start_supervisor(self.view.workspace))
        self.grid.run_grid_method("deselectAll")
        ui.notify(f"{verb.lower()}: {done} of {len(runs)} done")
