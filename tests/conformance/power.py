"""A power cut of a folder, as POSIX allows it: everything that was not synced is lost."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Disk:
    """Records syncs and new names below a folder, and returns the files that would survive a power cut."""

    def __init__(self, root: str) -> None:
        self.root = root
        # In order: ("sync", inode of a file or folder) and ("name", path).
        self.log: list[tuple[str, object]] = []

    def synced(self, handle: int) -> None:
        self.log.append(("sync", os.fstat(handle).st_ino))

    def named(self, path: str, folder: int | None) -> None:
        above = os.readlink(f"/proc/self/fd/{folder}") if folder is not None else ""
        self.log.append(("name", os.path.abspath(os.path.join(above, path))))

    def survives(self, key: str) -> bool:
        """Return whether the body was synced before its name was, and every new folder above it in its own parent."""
        path = os.path.join(self.root, key)
        named_at = max((n for n, what in enumerate(self.log) if what == ("name", path)), default=0)
        if ("sync", os.stat(path).st_ino) not in self.log[:named_at]:
            return False
        while path != self.root:
            made = [n for n, what in enumerate(self.log) if what == ("name", path)]
            folder = os.path.dirname(path)
            if made and ("sync", os.stat(folder).st_ino) not in self.log[made[-1] :]:
                return False
            path = folder
        return True


@contextmanager
def watched(root: str) -> Iterator[Disk]:
    """Watch the calls by which names and bodies reach a disk. They do all that they did before."""
    disk, calls = Disk(root), {name: getattr(os, name) for name in ("fsync", "link", "replace", "mkdir")}

    def names(call: Callable[..., Any], at: int, folder: str = "dst_dir_fd") -> Callable[..., Any]:
        def act(*arguments: Any, **options: Any) -> Any:
            result = call(*arguments, **options)
            disk.named(arguments[at], options.get(folder))
            return result

        return act

    def fsync(handle: int) -> None:
        calls["fsync"](handle)
        disk.synced(handle)

    os.fsync = fsync  # type: ignore[assignment]
    os.link, os.replace = names(calls["link"], 1), names(calls["replace"], 1)
    os.mkdir = names(calls["mkdir"], 0, "dir_fd")
    try:
        yield disk
    finally:
        for name, call in calls.items():
            setattr(os, name, call)
