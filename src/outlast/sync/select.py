"""The files of a folder that a sync copies: one scan of all of them, and a fast check of single paths.

The rules are those for the code of a run: files that git or `.outlastignore` ignores, secrets, virtual environments
and links that lead out of the folder are left out.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from outlast.code.ignore import Rules
from outlast.code.source_files import (
    OUTLASTIGNORE,
    SECRET_FOLDERS,
    Ignoring,
    SkippedFile,
    SourceTree,
    always_excluded,
    link_escapes,
    rules_without_git,
    secret_name,
)

IGNORE_FILES = (".gitignore", OUTLASTIGNORE)

# Type and permissions, size, mtime, ctime. No program can set the ctime, so it reveals a file that was replaced by
# another one with the same mtime.
Fingerprint = tuple[int, int, int, int]


def fingerprint_of(info: os.stat_result) -> Fingerprint:
    return info.st_mode, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def scan(root: str) -> tuple[dict[str, Fingerprint], list[SkippedFile]]:
    """Return every file to copy, and the files that were left out with the reasons."""
    tree = SourceTree(root)
    fingerprints: dict[str, Fingerprint] = {}
    for found in tree.files:
        try:
            fingerprints[found.path] = fingerprint_of(os.lstat(os.path.join(root, found.path)))
        except OSError:
            continue  # deleted during the scan
    return fingerprints, tree.left_out


class PathFilter:
    """Decides whether to copy a path. It caches rules per folder: create a new one when an ignore file changes."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._mine = Rules(root, OUTLASTIGNORE)
        self._folders: dict[str, Ignoring | None] = {"": rules_without_git(root, "")}

    def allows(self, path: str, info: os.stat_result) -> bool:
        """Return whether to copy the path, which must be a file or a link."""
        name = os.path.basename(path)
        rules = self._rules(os.path.dirname(path))
        if rules is None or always_excluded(name) or secret_name(name) or self._ignored(rules, path, folder=False):
            return False
        if stat.S_ISLNK(info.st_mode):
            return not link_escapes(self.root, path, os.readlink(os.path.join(self.root, path)))
        return stat.S_ISREG(info.st_mode)

    def enters(self, folder: str) -> bool:
        return self._rules(folder) is not None

    def forget(self, folder: str) -> None:
        """Drop the cache of a created or replaced folder: it may be a repository or virtual environment now."""
        for known in [known for known in self._folders if known and (known + "/").startswith(folder + "/")]:
            del self._folders[known]

    def _rules(self, folder: str) -> Ignoring | None:
        """Return the rules for a folder; None if the folder is left out."""
        if folder not in self._folders:
            self._folders[folder] = self._find_rules(folder)
        return self._folders[folder]

    def _find_rules(self, folder: str) -> Ignoring | None:
        above, name = os.path.dirname(folder), os.path.basename(folder)
        rules = self._rules(above)
        if (
            rules is None
            or always_excluded(name)
            or name in SECRET_FOLDERS
            or self._ignored(rules, folder, folder=True)
        ):
            return None
        whole = os.path.join(self.root, folder)
        if os.path.islink(whole) or os.path.exists(os.path.join(whole, "pyvenv.cfg")):
            return None
        nested = os.path.lexists(os.path.join(whole, ".git"))
        return rules_without_git(whole, folder + "/") if nested else rules

    def _ignored(self, rules: Ignoring, path: str, *, folder: bool) -> bool:
        return rules.ignored(path, folder=folder) or self._mine.ignored(path, folder=folder)


def below(root: str, folder: str, filter: PathFilter) -> dict[str, Fingerprint]:
    """Return the files to copy in a folder, without calling git."""
    found: dict[str, Fingerprint] = {}
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        if here and not filter.enters(here):
            continue
        try:
            entries = list(os.scandir(os.path.join(root, here)))
        except OSError:
            continue
        for entry in entries:
            path = f"{here}/{entry.name}" if here else entry.name
            try:
                info = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(info.st_mode):
                    waiting.append(path)
                elif filter.allows(path, info):
                    found[path] = fingerprint_of(info)
            except OSError:
                continue
    return found


def folders_of(paths: Iterable[str]) -> set[str]:
    """Return all parent folders of the paths."""
    folders: set[str] = set()
    for path in paths:
        while (path := os.path.dirname(path)) and path not in folders:
            folders.add(path)
    return folders
