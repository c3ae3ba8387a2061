"""Copies the outputs of one attempt to the workspace. Refuses to touch those of other attempts."""

from __future__ import annotations

import os

from outlast.errors import WorkspaceError
from outlast.runs.folder_listing import files_of
from outlast.runs.outputs import OF_ATTEMPT
from outlast.store.bucket import Bucket, check_key


class OutputSender:
    """Knows which outputs were copied, and as they were then."""

    def __init__(self, bucket: Bucket, run: str, attempt: int, *, folder: str) -> None:
        self._bucket = bucket
        # A place of the attempt's own: a zombie cannot overwrite a later attempt's.
        self._prefix = OF_ATTEMPT.format(run=run, attempt=attempt)
        self._folder = folder
        self._sent: dict[str, tuple[int, int]] = {}
        # Outputs that cannot be copied, and why.
        self.unsent: dict[str, str] = {}

    def send_all(self) -> int:
        """Copy new and changed files; how many there are in all. One that can never be copied keeps no other back."""
        files = files_of(self._folder)
        for path, (size, changed_ns, _) in files.items():
            self._send(path, (size, changed_ns))
        return len(files)

    def send_few(self, bytes_max: int) -> None:
        """Copy new and changed files, if they are not more than so many bytes."""
        files = files_of(self._folder)
        new = {path: mark[:2] for path, mark in files.items() if self._sent.get(path) != mark[:2]}
        if sum(size for size, _ in new.values()) <= bytes_max:
            for path, mark in new.items():
                self._send(path, mark)

    def _send(self, path: str, mark: tuple[int, int]) -> None:
        if self._sent.get(path) == mark:
            return
        source = os.path.join(self._folder, path)
        # A name that is no text gets one that is.
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        key = self._prefix + shown
        try:
            check_key(key)
            with open(source, "rb"):
                pass
        except FileNotFoundError:
            return  # it went away meanwhile
        except (WorkspaceError, OSError) as problem:
            self.unsent[shown] = problem.message if isinstance(problem, WorkspaceError) else str(problem.strerror)
            return
        self._bucket.upload(key, source)
        self.unsent.pop(shown, None)
        self._sent[path] = mark
