"""Scans of the checkpoint folder of a running command: its files, open files and databases, as one immutable value."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Protocol

from outlast.agent.checkpoint.database import databases_among, with_sidecar_files
from outlast.agent.checkpoint.decide import Scan
from outlast.agent.checkpoint.open_files import OpenFiles, being_written, without_idle
from outlast.agent.checkpoint.snapshot import FolderSnapshot, take_snapshot
from outlast.agent.clock import Clock
from outlast.spec.checkpoint_patterns import is_meant


class Processes(Protocol):
    """The part of a command that a scan reads."""

    def members(self) -> list[int]:
        """Return the ids of its processes."""

    def is_alive(self) -> bool:
        """Return whether its leader runs."""


class Scanner:
    """Scans one folder again and again. Remembers since when files are open, to recognise logs and databases."""

    def __init__(
        self,
        folder: str,
        *,
        names: tuple[str, ...],
        home: str,
        report: Callable[[str], None],
        clock: Clock,
        is_part: bool = False,
    ) -> None:
        self.folder = folder
        self.names = names
        self.is_part = is_part
        self._home = home
        self._report = report
        self._clock = clock
        self._open = OpenFiles()
        self._databases: frozenset[str] = frozenset()
        self._filled: frozenset[str] = frozenset()
        self._reported_open = False

    def scan_folder(self, *, command_ended: bool = False) -> FolderSnapshot:
        """List the folder. Much cheaper than `scan`, which also lists the open files of every process."""
        return take_snapshot(
            self.folder,
            names=self.names,
            logs=self._open.logs,
            databases=self._databases,
            command_ended=command_ended,
            is_part=self.is_part,
        )

    def scan(
        self,
        snapshot: FolderSnapshot,
        command: Processes,
        *,
        taken_at: float,
        changing_s: float = 0.0,
        outrun: bool = False,
    ) -> Scan:
        """Add the facts about processes and disk to a snapshot taken at `taken_at`."""
        # Open files before `is_alive`: a command that dies in between closes its files, complete or not.
        writing = self.files_being_written(command)
        return Scan(
            snapshot=snapshot,
            taken_at=taken_at,
            databases=self._databases,
            logs=self._open.logs,
            writing=writing,
            filled=self._filled,
            command_alive=command.is_alive(),
            changing_s=changing_s,
            outrun=outrun,
            free_bytes=self.free_bytes(),
        )

    def files_being_written(self, command: Processes) -> frozenset[str]:
        """Return the files that the command has open for writing and that are neither logs nor databases."""
        found = being_written(self.folder, command.members())
        meant = [path for path in found if is_meant(path, self.names)]
        paths = without_idle(self.folder, meant, now=self._clock.time(), names=self.names)
        self._databases = databases_among(self.folder, paths, known=self._databases)
        self._open.update(paths - with_sidecar_files(self._databases), now=self._clock.monotonic())
        if self._open.open_too_long and not self._reported_open:
            self._reported_open = True
            path = self._open.open_too_long[0]
            self._report(f"`{path}` stays open for writing: nothing is committed before it is closed")
        return self._open.paths - self._open.logs

    def free_bytes(self) -> int:
        """Return the free space where copies are made; 0 if it cannot be read."""
        try:
            return shutil.disk_usage(self._home).free
        except OSError:
            return 0

    def remember_filled(self, snapshot: FolderSnapshot) -> None:
        """Remember which files have had content."""
        self._filled = frozenset(path for path, (size, _, _) in snapshot.files.items() if size or path in self._filled)

    def forget_databases(self) -> None:
        """Treat databases as ordinary files, with the files that SQLite left beside them: the command has ended."""
        self._databases = frozenset()
