"""Copies the outputs of one attempt to the workspace, under a prefix of that attempt."""

from __future__ import annotations

import os
from collections.abc import Callable

from outlast.errors import WorkspaceError
from outlast.runs.folder_listing import files_of
from outlast.runs.outputs import OF_ATTEMPT
from outlast.store.bucket import Bucket, check_key

# Copying this much takes little enough time to do it before a commit.
QUICK_BYTES = 16 << 20
_EVERY_S = 20.0


class OutputSender:
    """Copies new and changed output files, and remembers which ones were copied."""

    def __init__(
        self,
        bucket: Bucket,
        run: str,
        attempt: int,
        *,
        folder: str,
        node: int = 0,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.folder = folder
        self._bucket = bucket
        # With the attempt's number: an attempt that was given up cannot overwrite the outputs of a later one.
        # Nodes may write different files under one name.
        self._prefix = OF_ATTEMPT.format(run=run, attempt=attempt) + (f"node-{node}/" if node else "")
        self._report = report
        self._sent: dict[str, tuple[int, int]] = {}
        self._next_at: float | None = None
        # Outputs that cannot be copied, and why.
        self.unsent: dict[str, str] = {}

    def send_all(self) -> int:
        """Copy new and changed files. Returns the number of all output files; `unsent` has those that failed."""
        files = files_of(self.folder)
        for path, (size, changed_ns, _) in files.items():
            self._send(path, (size, changed_ns))
        return len(files)

    def send_if_due(self, monotonic: Callable[[], float]) -> None:
        """Copy new and changed files from time to time; report failures."""
        if self._next_at is None:
            self._next_at = monotonic() + _EVERY_S
        if monotonic() >= self._next_at:
            self._send_or_report(self.send_all)
            self._next_at = monotonic() + _EVERY_S

    def send_few(self) -> None:
        """Copy new and changed files, unless they exceed `QUICK_BYTES`; report failures."""
        self._send_or_report(self._send_few)

    def _send_few(self) -> None:
        files = files_of(self.folder)
        new = {path: mark[:2] for path, mark in files.items() if self._sent.get(path) != mark[:2]}
        if sum(size for size, _ in new.values()) <= QUICK_BYTES:
            for path, mark in new.items():
                self._send(path, mark)

    def _send_or_report(self, send: Callable[[], object]) -> None:
        try:
            send()
        except (WorkspaceError, OSError) as problem:
            self._report(f"outputs could not be copied now: {problem}")

    def _send(self, path: str, mark: tuple[int, int]) -> None:
        if self._sent.get(path) == mark:
            return
        source = os.path.join(self.folder, path)
        # Keys are text; file names may be any bytes.
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        key = self._prefix + shown
        try:
            check_key(key)
            with open(source, "rb"):
                pass
        except FileNotFoundError:
            return  # deleted meanwhile
        except (WorkspaceError, OSError) as problem:
            self.unsent[shown] = problem.message if isinstance(problem, WorkspaceError) else str(problem.strerror)
            return
        self._bucket.upload(key, source)
        self.unsent.pop(shown, None)
        self._sent[path] = mark
