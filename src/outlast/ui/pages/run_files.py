"""The tabs for checkpoints and outputs of a run, with previews and downloads."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import quote

from nicegui import background_tasks, ui

from outlast.app.outputs import newest_outputs
from outlast.errors import OutlastError
from outlast.runs.manifest import Manifest, read_manifest
from outlast.store.bucket import Entry
from outlast.ui.detail import RunDetail
from outlast.ui.format import moment, printable, size
from outlast.ui.layout import PageView, empty, panel, prose, show_error
from outlast.ui.pages.components import Tab
from outlast.ui.views.preview import HEAD_BYTES, Preview, preview

_FILES_MAX = 500


def _begin(work: Coroutine[Any, Any, None]) -> None:
    background_tasks.create(work)


class CheckpointsTab(Tab):
    def __init__(self, view: PageView, detail: RunDetail) -> None:
        self.view = view
        self.detail = detail
        self.count = -1
        with panel("Checkpoints", note="newest first"):
            self.place = ui.element("div").classes("ol-scroll")
        self.dialog = _Dialog()
        self.update(detail)

    def update(self, detail: RunDetail) -> None:
        self.detail = detail
        if len(detail.state.checkpoints) != self.count:
            self.count = len(detail.state.checkpoints)
            _begin(self._show())

    async def _show(self) -> None:
        prefix = f"runs/{self.detail.run}/checkpoints/"
        kept = await self.view.load(self.place, self.view.workspace.bucket.children, prefix)
        if kept is None:
            return
        self.place.clear()
        with self.place:
            found = self.detail.state.checkpoints
            if not found:
                empty("No checkpoints yet.")
                return
            rows = [
                {
                    "id": one.id,
                    "attempt": one.attempt,
                    "step": "" if one.step is None else one.step,
                    "at": moment(one.at),
                    "size": size(one.bytes),
                    "kept": "kept" if one.id in kept else "pruned",
                }
                for one in reversed(found)
            ]
            titles = {
                "id": "Checkpoint",
                "step": "Step",
                "attempt": "Attempt",
                "at": "Saved",
                "size": "Size",
                "kept": "Status",
            }
            columns = [
                {"name": n, "label": t, "field": n, "align": "left", "sortable": True} for n, t in titles.items()
            ]
            table = ui.table(columns=columns, rows=rows, row_key="id", pagination=15).props("flat dense")
            table.classes("ol-qtable ol-clickable").props('aria-label="Checkpoints"')
            table.on("rowClick", lambda event: _begin(self._open(str(event.args[1]["id"]))), [[], ["id"], None])

    async def _open(self, checkpoint: str) -> None:
        try:
            manifest = await self.view.read(read_manifest, self.view.workspace.bucket, self.detail.run, checkpoint)
        except OutlastError as problem:
            with self.place:
                show_error(problem.message, problem.hint)
            return
        self.dialog.show(f"Checkpoint {checkpoint}", lambda: self._files(manifest))

    def _files(self, manifest: Manifest) -> None:
        base = f"/api/checkpoint/{quote(self.detail.run, safe='')}/{quote(manifest.checkpoint, safe='')}"
        with ui.element("ul").classes("ol-list"):
            for file in manifest.files[:_FILES_MAX]:
                with ui.element("li").classes("ol-row"):
                    ui.label(printable(file.path)).classes("ol-grow ol-mono")
                    ui.label(size(file.bytes)).classes("ol-dim ol-num")
                    if not file.link:
                        _download(f"{base}?path={quote(file.path, safe='')}", file.path)


class OutputsTab(Tab):
    def __init__(self, view: PageView, detail: RunDetail) -> None:
        self.view = view
        self.detail = detail
        self.shown: dict[str, Entry] = {}
        with panel("Outputs", note="of all attempts, later ones over earlier ones"):
            self.place = ui.element("div")
        self.dialog = _Dialog(lambda: view.remember(file=""))
        self.seen: int | None = None
        self.wanted = view.query.get("file", "")
        self.update(detail)

    def update(self, detail: RunDetail) -> None:
        self.detail = detail
        now = hash((detail.outputs, detail.state.ending))
        if now != self.seen:
            self.seen = now
            _begin(self._show())

    async def _show(self) -> None:
        run = self.detail.run
        found = await self.view.load(self.place, lambda: newest_outputs(self.view.workspace, run, also_current=True))
        if found is None:
            return
        self.shown = dict(sorted(found.items()))
        self.place.clear()
        with self.place:
            if not found:
                empty("No outputs yet." if self.detail.state.alive else "It left no outputs.")
                return
            with ui.element("ul").classes("ol-list ol-files"):
                for path, entry in list(self.shown.items())[:_FILES_MAX]:
                    self._line(path, entry)
            if len(self.shown) > _FILES_MAX:
                prose(f"and {len(self.shown) - _FILES_MAX} more: `Pull` copies them all").classes("ol-dim")
        if self.wanted in self.shown:
            path, self.wanted = self.wanted, ""
            await self._open(path)

    def _line(self, path: str, entry: Entry) -> None:
        with ui.element("li").classes("ol-row"):
            with ui.element("button").classes("ol-file ol-grow ol-mono").props("type=button") as button:
                ui.label(printable(path))
            button.props["aria-label"] = f"Preview {printable(path)}"
            button.on("click", lambda: _begin(self._open(path)))
            ui.label(size(entry.bytes)).classes("ol-dim ol-num")
            ui.label(moment(entry.modified_at)).classes("ol-dim ol-num ol-wide")
            _download(self._address(path), path)

    def _address(self, path: str) -> str:
        return f"/api/output/{quote(self.detail.run, safe='')}?path={quote(path, safe='')}"

    async def _open(self, path: str) -> None:
        entry = self.shown[path]
        try:
            head = await self.view.read(_head, self.view.workspace.bucket, entry)
        except OutlastError as problem:
            with self.place:
                show_error(problem.message, problem.hint)
            return
        found = preview(path, head, entry.bytes)
        self.view.remember(file=path)
        self.dialog.show(printable(path), lambda: self._preview(path, found))

    def _preview(self, path: str, found: Preview) -> None:
        if found.kind == "image":
            image = ui.element("img").classes("ol-image")
            image.props["src"] = self._address(path) + "&show=1"
            image.props["alt"] = path
        elif found.kind == "table":
            _table(found)
        elif found.kind == "text":
            with ui.element("pre").classes("ol-code ol-pre").props("tabindex=0"):
                ui.label(found.text)
        else:
            empty("No preview: neither text nor an image. Download the file.")
        if found.cut:
            ui.label("Only the beginning is shown.").classes("ol-dim")


def _head(bucket: Any, entry: Entry) -> bytes:
    room = bytearray(min(entry.bytes, HEAD_BYTES))
    if not room:
        return b""
    return bytes(room[: bucket.read_into(entry.key, memoryview(room))])


def _table(found: Preview) -> None:
    with ui.element("div").classes("ol-scroll"), ui.element("table").classes("ol-table"):
        with ui.element("thead"), ui.element("tr"):
            for name in found.header:
                with ui.element("th"):
                    ui.label(name)
        with ui.element("tbody"):
            for row in found.rows:
                with ui.element("tr"):
                    for cell in row:
                        with ui.element("td"):
                            ui.label(cell)


def _download(address: str, path: str) -> None:
    with ui.element("a").classes("ol-download") as link:
        link.props["href"] = address
        link.props["download"] = path.rpartition("/")[2]
        link.props["aria-label"] = f"Download {printable(path)}"
        ui.icon("download")


class _Dialog:
    """A dialog that shows one thing at a time."""

    def __init__(self, closed: Callable[[], None] | None = None) -> None:
        with ui.dialog() as self.dialog, ui.card().classes("ol-dialog ol-big"):
            with ui.element("div").classes("ol-row"):
                self.title = ui.label().classes("ol-h2 ol-grow ol-mono")
                ui.button(icon="close", on_click=self.dialog.close, color=None).props(
                    'flat round dense aria-label="Close"'
                )
            self.body = ui.element("div").classes("ol-dialog-body")
        if closed is not None:
            # Not at "hide", which comes after the animation: by then another dialog may be open.
            self.dialog.on_value_change(lambda change: None if change.value else closed())

    def show(self, title: str, fill: Callable[[], None]) -> None:
        self.title.set_text(title)
        self.body.clear()
        with self.body:
            fill()
        self.dialog.open()
