"""The files of a code folder, without ignored files and secrets.

The ignore rules come from git, or without git from our own reading of `.gitignore`. Both agree, except for files that
are tracked although ignored: only git knows those.
"""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Sequence
from typing import Protocol

import msgspec

from outlast.code import git
from outlast.code.ignore import Patterns, Rules, read_rules
from outlast.errors import SpecError

OUTLASTIGNORE = ".outlastignore"
_SECRET_FILES = (
    *(".env", ".env.*", "*.pem", "*.key", "*.p12", "*.pfx", "*.ppk", ".netrc", "_netrc", ".pgpass", ".pypirc"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", ".git-credentials"),
    *("credentials.json", "service-account*.json", "service_account*.json", "application_default_credentials.json"),
)
_SECRET = re.compile("|".join(fnmatch.translate(glob) for glob in _SECRET_FILES))
SECRET_FOLDERS = frozenset({".aws", ".ssh", ".gnupg", ".azure", ".kube"})
_NOT_SECRET = frozenset({".env.example", ".env.template", ".env.sample"})


class SkippedFile(msgspec.Struct, frozen=True, order=True):
    path: str
    why: str


class SourceFile(msgspec.Struct, frozen=True):
    """A file of the tree, or a link if `link` is its target."""

    path: str
    bytes: int = 0
    executable: bool = False
    link: str = ""


class Ignoring(Protocol):
    def ignored(self, path: str, *, folder: bool) -> bool: ...


class _GitListing:
    """The listing of git: all other files are ignored."""

    def __init__(self, files: frozenset[str], prefix: str) -> None:
        self._files = {prefix + name for name in files}
        self._folders = set(self._files)
        for name in self._files:
            while (name := os.path.dirname(name)) and name not in self._folders:
                self._folders.add(name)

    def ignored(self, path: str, *, folder: bool) -> bool:
        return path not in (self._folders if folder else self._files)


class _Within:
    """Rules of a whole repository, applied to the part of it below `part`. The tree's paths begin with `skipped`."""

    def __init__(self, rules: Rules, *, skipped: str, part: str) -> None:
        self._rules = rules
        self._skipped = skipped
        self._part = part

    def ignored(self, path: str, *, folder: bool) -> bool:
        return self._rules.ignored(self._part + path.removeprefix(self._skipped), folder=folder)


class SourceTree:
    """A listing of a folder: `files` and `left_out`, both sorted."""

    def __init__(self, folder: str, *, exclude: Sequence[str] = (), use_git: bool = True) -> None:
        self.root = _existing(folder)
        self._use_git = use_git
        self._exclude = Patterns("\n".join(exclude).encode())
        self._mine = Rules(self.root, OUTLASTIGNORE)
        self.files: list[SourceFile] = []
        self.left_out: list[SkippedFile] = []
        self._visit("", self._rules_of(""))
        self.files.sort(key=lambda found: os.fsencode(found.path))
        self.left_out.sort()

    def excludes(self, path: str) -> bool:
        """Return whether a path would be left out; for files that do not exist any more."""
        folders, name = path.split("/")[:-1], os.path.basename(path)
        if (
            secret_name(name)
            or always_excluded(name)
            or any(part in SECRET_FOLDERS or always_excluded(part) for part in folders)
        ):
            return True
        above = ["/".join(folders[: count + 1]) for count in range(len(folders))]
        return any(self._excludes(step, folder=True) for step in above) or self._excludes(path, folder=False)

    def _rules_of(self, relative: str) -> Ignoring:
        """Return the rules of the repository that contains this folder."""
        folder = os.path.join(self.root, relative) if relative else self.root
        skipped = relative + "/" if relative else ""
        files = git.listed(folder) if self._use_git else None
        return _GitListing(files, skipped) if files is not None else rules_without_git(folder, skipped)

    def _visit(self, relative: str, rules: Ignoring) -> None:
        try:
            with os.scandir(os.path.join(self.root, relative)) as entries:
                found = list(entries)
        except OSError as problem:
            raise unreadable(relative, problem) from problem
        names = {entry.name for entry in found}
        if relative and "pyvenv.cfg" in names:
            self.left_out.append(SkippedFile(relative + "/", "virtual environment"))
            return
        if relative and ".git" in names:
            rules = self._rules_of(relative)
        for entry in found:
            path = f"{relative}/{entry.name}" if relative else entry.name
            folder = entry.is_dir(follow_symlinks=False)
            # git does not list pipes and other special files, so its rules do not apply to them.
            known = folder or entry.is_symlink() or entry.is_file(follow_symlinks=False)
            if (
                always_excluded(entry.name)
                or (known and rules.ignored(path, folder=folder))
                or self._excludes(path, folder=folder)
            ):
                continue
            if entry.name in SECRET_FOLDERS if folder else secret_name(entry.name):
                self.left_out.append(SkippedFile(path + "/" * folder, "may contain secrets"))
            elif folder:
                self._visit(path, rules)
            else:
                self._take(path, entry)

    def _excludes(self, path: str, *, folder: bool) -> bool:
        # `exclude` takes precedence over files of patterns.
        verdict = self._exclude.verdict(os.fsencode(path), folder=folder)
        return self._mine.ignored(path, folder=folder) if verdict is None else verdict

    def _take(self, path: str, entry: os.DirEntry[str]) -> None:
        try:
            info = entry.stat(follow_symlinks=False)
            link = os.readlink(entry.path) if stat.S_ISLNK(info.st_mode) else ""
        except FileNotFoundError:
            self.left_out.append(SkippedFile(path, "vanished while it was packed"))
            return
        if stat.S_ISREG(info.st_mode):
            self.files.append(SourceFile(path, info.st_size, bool(info.st_mode & 0o100)))
        elif not link:
            self.left_out.append(SkippedFile(path, "neither a file nor a folder"))
        elif link_escapes(self.root, path, link):
            self.left_out.append(SkippedFile(path, "link to a target outside the folder"))
        else:
            self.files.append(SourceFile(path, link=link))


def secret_name(name: str) -> bool:
    return name not in _NOT_SECRET and bool(_SECRET.match(name.lower()))


def link_escapes(root: str, path: str, link: str) -> bool:
    """Return whether a link points outside the folder, directly or through other links."""
    if os.path.isabs(link):
        return True
    written = os.path.normpath(os.path.join(os.path.dirname(path), link))
    real = os.path.realpath(os.path.join(root, path))
    return written == ".." or written.startswith("../") or not (real + "/").startswith(os.path.realpath(root) + "/")


def unreadable(path: str, problem: OSError) -> SpecError:
    return SpecError(
        [f"[code] path: could not read `{path or '.'}`: {problem.strerror}"],
        hint=f"make it readable, or exclude it in `{OUTLASTIGNORE}`",
    )


def always_excluded(name: str) -> bool:
    return name in (".git", "__pycache__") or (name.startswith(".outlast") and name != OUTLASTIGNORE)


def _existing(folder: str) -> str:
    if not os.path.isdir(folder):
        why = "is not a folder" if os.path.lexists(folder) else "does not exist"
        raise SpecError([f"[code] path: `{folder}` {why}"])
    return os.path.realpath(folder)


def rules_without_git(folder: str, skipped: str) -> Ignoring:
    """Return git's rules for the folder, read without git."""
    top = folder
    while not os.path.lexists(os.path.join(top, ".git")):
        if os.path.dirname(top) == top:
            return _Within(Rules(folder, ".gitignore"), skipped=skipped, part="")
        top = os.path.dirname(top)
    settings = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    personal = os.path.join(settings, "git", "ignore"), os.path.join(top, ".git", "info", "exclude")
    rules = Rules(top, ".gitignore", weaker=[Patterns(read_rules(path)) for path in personal])
    part = os.path.relpath(folder, top)
    if part == ".":
        return _Within(rules, skipped=skipped, part="")
    if rules.covers(part, folder=True):
        # The folder itself is ignored: use only the rules inside it.
        return _Within(Rules(folder, ".gitignore"), skipped=skipped, part="")
    return _Within(rules, skipped=skipped, part=part + "/")
