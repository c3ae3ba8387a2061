"""Which files of a folder belong on the other side: one look at all of them, and quick answers about single ones.

The same rules as for the code of a run: what git ignores, `.outlastignore`, secrets, virtual environments and links
that lead out stay here. Refuses to send anything.
"""

from __future__ import annotations

import os
import stat

from outlast.code.ignore import Rules
from outlast.code.source_files import (
    OUTLASTIGNORE,
    SECRET_FOLDERS,
    Ignoring,
    SkippedFile,
    SourceTree,
    link_escapes,
    never_taken,
    rules_without_git,
    secret_name,
)

RULES = (".gitignore", OUTLASTIGNORE)

# What tells one state of a file from another: kind and permissions, size, both times. The second time, which no program
# can set, gives away a file that was replaced by one with the time of its predecessor.
Mark = tuple[int, int, int, int]


def mark_of(info: os.stat_result) -> Mark:
    return info.st_mode, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def look(root: str) -> tuple[dict[str, Mark], list[SkippedFile]]:
    """Every file that belongs on the other side, and what was left out and why."""
    tree = SourceTree(root)
    marks: dict[str, Mark] = {}
    for found in tree.files:
        try:
            marks[found.path] = mark_of(os.lstat(os.path.join(root, found.path)))
        except OSError:
            continue  # it went away while we looked
    return marks, tree.left_out


class Judge:
    """Whether a path belongs. Remembers folders; a changed file of rules asks for another judge."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._mine = Rules(root, OUTLASTIGNORE)
        self._folders: dict[str, Ignoring | None] = {"": rules_without_git(root, "")}

    def allows(self, path: str, info: os.stat_result) -> bool:
        """A file or a link; never a folder, pipe or the like."""
        name = os.path.basename(path)
        rules = self._rules(os.path.dirname(path))
        if rules is None or never_taken(name) or secret_name(name) or self._ignored(rules, path, folder=False):
            return False
        if stat.S_ISLNK(info.st_mode):
            return not link_escapes(self.root, path, os.readlink(os.path.join(self.root, path)))
        return stat.S_ISREG(info.st_mode)

    def enters(self, folder: str) -> bool:
        return self._rules(folder) is not None

    def forget(self, folder: str) -> None:
        """It was made or replaced: it may be another repository, or a virtual environment, now."""
        for known in [known for known in self._folders if known and (known + "/").startswith(folder + "/")]:
            del self._folders[known]

    def _rules(self, folder: str) -> Ignoring | None:
        """The rules that speak in a folder; None if nothing in it belongs."""
        if folder not in self._folders:
            self._folders[folder] = self._find_rules(folder)
        return self._folders[folder]

    def _find_rules(self, folder: str) -> Ignoring | None:
        above, name = os.path.dirname(folder), os.path.basename(folder)
        rules = self._rules(above)
        if rules is None or never_taken(name) or name in SECRET_FOLDERS or self._ignored(rules, folder, folder=True):
            return None
        whole = os.path.join(self.root, folder)
        if os.path.islink(whole) or os.path.exists(os.path.join(whole, "pyvenv.cfg")):
            return None
        nested = os.path.lexists(os.path.join(whole, ".git"))
        return rules_without_git(whole, folder + "/") if nested else rules

    def _ignored(self, rules: Ignoring, path: str, *, folder: bool) -> bool:
        return rules.ignored(path, folder=folder) or self._mine.ignored(path, folder=folder)


def below(root: str, folder: str, judge: Judge) -> dict[str, Mark]:
    """The files in a folder that belong, without asking git."""
    found: dict[str, Mark] = {}
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        if here and not judge.enters(here):
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
                elif judge.allows(path, info):
                    found[path] = mark_of(info)
            except OSError:
                continue
    return found
