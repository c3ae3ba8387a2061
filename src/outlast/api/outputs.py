"""The output files of a run, by path."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from outlast.app.outputs import newest_outputs
from outlast.store.bucket import Entry
from outlast.workspace import Workspace

if TYPE_CHECKING:
    from outlast.api.fields import Path


class OutputFile:
    """One output file in the workspace."""

    def __init__(self, workspace: Workspace, path: str, entry: Entry) -> None:
        self._workspace = workspace
        self._entry = entry
        self.path = path

    def __repr__(self) -> str:
        return f"<OutputFile {self.path}, {self.size} bytes>"

    @property
    def size(self) -> int:
        return self._entry.bytes

    def read_bytes(self) -> bytes:
        """Return the content. Raises Missing if it was replaced by a later attempt."""
        return self._workspace.bucket.get(self._entry.key)

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def save(self, destination: Path) -> None:
        """Download it to a file."""
        path = os.fspath(destination)
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        self._workspace.bucket.download(self._entry.key, path)


class RunOutputs(Mapping[str, OutputFile]):
    """The output files of a run as they were listed when this object was created."""

    def __init__(self, workspace: Workspace, run: str) -> None:
        self._run = run
        found = newest_outputs(workspace, run, also_current=True)
        self._files = {path: OutputFile(workspace, path, entry) for path, entry in found.items()}

    def __getitem__(self, path: str) -> OutputFile:
        try:
            return self._files[path]
        except KeyError:
            known = ", ".join(sorted(self._files)[:8]) or "none yet"
            raise KeyError(f"{self._run} has no output `{path}`; it has: {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __repr__(self) -> str:
        return f"<outputs of {self._run}: {', '.join(self._files) or 'none'}>"
