"""The spec tab of a run: spec, code with differences, image."""

from __future__ import annotations

from typing import Any

import msgspec
from nicegui import background_tasks, ui

from outlast.code.diff import CodeDiff, code_diff
from outlast.code.record import CodeRecord
from outlast.store.blobs import blob_key
from outlast.ui.detail import RunDetail
from outlast.ui.files import checked_name
from outlast.ui.format import size
from outlast.ui.layout import PageView, empty, fact, panel
from outlast.ui.pages.components import Tab
from outlast.workspace import RunRequest

_DIFF_MAX = 400_000
_CHOICES_MAX = 500


class SpecTab(Tab):
    def __init__(self, view: PageView, detail: RunDetail) -> None:
        self.view = view
        request = detail.request
        assert request is not None
        self.request = request
        with ui.element("div").classes("ol-two"):
            with panel("Spec", note="as recorded"):
                _facts(request)
                with ui.element("pre").classes("ol-code ol-pre").props("tabindex=0"):
                    ui.label(_spec(request))
            with panel("Code"):
                _code(request.code)
                self._changes()

    def update(self, detail: RunDetail) -> None:
        """Do nothing: the request never changes."""

    def _changes(self) -> None:
        other = self.view.query.get("against", "")
        rows = self.view.feed.snapshot.rows
        known = [run for run in rows if run != self.request.run][-_CHOICES_MAX:]
        choices = {
            "": "its commit" if self.request.code.commit else "nothing",
            **{run: run for run in reversed(known)},
        }
        if other:
            choices.setdefault(other, other)
        ui.select(
            choices, value=other, label="Differences from", on_change=lambda event: self._against(str(event.value))
        ).props("dense outlined options-dense").classes("ol-select")
        self.place = ui.element("div").classes("ol-diffs")
        background_tasks.create(self._show(other))

    def _against(self, other: str) -> None:
        self.view.remember(against=other)
        background_tasks.create(self._show(other))

    async def _show(self, other: str) -> None:
        found = await self.view.load(self.place, self._difference, other)
        if found is None:
            return
        self.place.clear()
        with self.place:
            if isinstance(found, str):
                _diff("uncommitted changes", found) if found else empty("No uncommitted changes recorded.")
                return
            if found.note:
                ui.label(found.note)
            for file in found.files:
                _diff(f"{file.kind} {file.path}", file.diff or "(no text)")
            if found.same:
                empty(f"The code is the same as in {other}.")

    def _difference(self, other: str) -> CodeDiff | str:
        """Return the uncommitted changes as text, or the difference from another run."""
        bucket, code = self.view.workspace.bucket, self.request.code
        if not other:
            return bucket.get(blob_key(code.diff))[:_DIFF_MAX].decode("utf-8", "replace") if code.diff else ""
        return code_diff(bucket, self.view.workspace.request(checked_name(other)).code, code)


def _spec(request: RunRequest) -> str:
    """Return the spec as JSON without default values."""
    return msgspec.json.format(
        msgspec.json.encode(_without_defaults(msgspec.to_builtins(request.spec))), indent=2
    ).decode()


def _without_defaults(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    kept = {name: _without_defaults(one) for name, one in value.items()}
    return {name: one for name, one in kept.items() if one not in (None, "", {}, [], False, 0.0)}


def _facts(request: RunRequest) -> None:
    spec = request.spec
    with ui.element("div").classes("ol-facts").style("margin-bottom:10px"):
        command = spec.command if isinstance(spec.command, str) else " ".join(spec.command)
        fact("Command", command, classes="ol-long")
        for name, value in spec.params.items():
            fact(name, str(value))
        fact("Image", spec.machine.image or spec.machine.container or "the cloud's default")
        fact("outlast", request.version)


def _code(code: CodeRecord) -> None:
    with ui.element("div").classes("ol-facts").style("margin-bottom:10px"):
        if code.kind == "none":
            fact("Code", "none")
        if code.url:
            fact("Repository", code.url)
        if code.commit or code.ref:
            fact("Commit", (code.commit or code.ref)[:12], note="with uncommitted changes" if code.dirty else "")
        if code.kind == "bundle":
            fact("Bundle", code.sha256[:12], note=f"{code.files} files, {size(code.bytes)}")


def _diff(title: str, text: str) -> None:
    """Show a diff with coloured lines; the signs carry the meaning, too."""
    with ui.expansion(title, value=True).classes("ol-diff").props("dense"), ui.element("pre").classes("ol-code ol-pre"):
        for line in text[:_DIFF_MAX].splitlines()[:2000]:
            tone = "ol-plus" if line.startswith("+") else "ol-minus" if line.startswith("-") else ""
            ui.label(line or " ").classes(tone)
