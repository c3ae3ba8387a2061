"""The difference between the code of two runs, file by file."""

from __future__ import annotations

import difflib
import os
import tempfile

import msgspec

from outlast.code.bundle import unpack
from outlast.code.record import CodeRecord
from outlast.errors import Missing
from outlast.store.bucket import Bucket

# Larger files are compared, but not shown line by line.
_SHOWN_BYTES_MAX = 512 * 1024


class FileChange(msgspec.Struct, frozen=True, kw_only=True):
    """One file that differs."""

    path: str
    kind: str  # added, removed, changed
    added: int = 0
    removed: int = 0
    # A unified diff; empty for binary files.
    diff: str = ""


class CodeDiff(msgspec.Struct, frozen=True, kw_only=True):
    files: tuple[FileChange, ...] = ()
    # A description, if there are no files to compare.
    note: str = ""

    @property
    def same(self) -> bool:
        return not self.files and not self.note


def code_diff(bucket: Bucket, one: CodeRecord, other: CodeRecord) -> CodeDiff:
    """Return the changes from one to the other."""
    if one == other or (one.sha256 and one.sha256 == other.sha256):
        return CodeDiff()
    if one.kind != "bundle" or other.kind != "bundle":
        names = [
            f"{code.kind} {code.url} {(code.commit or code.ref or code.sha256)[:12]}".strip() for code in (one, other)
        ]
        return CodeDiff(note="" if names[0] == names[1] else f"{names[0]} and {names[1]}")
    with tempfile.TemporaryDirectory(prefix="outlast-compare-") as folder:
        try:
            for name, code in (("one", one), ("other", other)):
                unpack(bucket, code, os.path.join(folder, name))
        except Missing as problem:
            return CodeDiff(note=f"its code no longer exists: {problem.message}")
        return CodeDiff(files=tuple(_changes(os.path.join(folder, "one"), os.path.join(folder, "other"))))


def _changes(one: str, other: str) -> list[FileChange]:
    before, after = _files(one), _files(other)
    found = []
    for path in sorted({*before, *after}):
        old, new = before.get(path), after.get(path)
        if old != new:
            kind = "added" if old is None else "removed" if new is None else "changed"
            found.append(_change(path, kind, old or b"", new or b""))
    return found


def _change(path: str, kind: str, old: bytes, new: bytes) -> FileChange:
    if max(len(old), len(new)) > _SHOWN_BYTES_MAX or b"\0" in old + new:
        return FileChange(path=path, kind=kind)
    before, after = (body.decode(errors="replace").splitlines() for body in (old, new))
    diff = list(difflib.unified_diff(before, after, fromfile=f"a/{path}", tofile=f"b/{path}", lineterm=""))
    added = sum(line.startswith("+") and not line.startswith("+++") for line in diff)
    removed = sum(line.startswith("-") and not line.startswith("---") for line in diff)
    return FileChange(path=path, kind=kind, added=added, removed=removed, diff="\n".join(diff))


def _files(root: str) -> dict[str, bytes]:
    """Return path → body. A link is represented by its target."""
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.islink(path):
                body = os.fsencode(f"-> {os.readlink(path)}")
            else:
                with open(path, "rb") as file:
                    body = file.read()
            found[os.path.relpath(path, root)] = body
    return found
