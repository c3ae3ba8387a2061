"""Ignore rules with the semantics of git: patterns, and the precedence of files of patterns.

It follows git's `dir.c` and `wildmatch.c`; a property test compares it with git. The `pathspec` library differs: there
`!keep/` includes `keep/a.log` although `*.log` covers it, `[[:digit:]]` is not supported, and one bad line is an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence

_CLASSES: dict[bytes, Callable[[int], bool]] = {
    b"alnum": lambda c: chr(c).isalnum(),
    b"alpha": lambda c: chr(c).isalpha(),
    b"blank": lambda c: c in b" \t",
    b"cntrl": lambda c: c < 32 or c == 127,
    b"digit": lambda c: 48 <= c <= 57,
    b"graph": lambda c: 33 <= c <= 126,
    b"lower": lambda c: chr(c).islower(),
    b"print": lambda c: 32 <= c <= 126,
    b"punct": lambda c: 33 <= c <= 126 and not chr(c).isalnum(),
    b"space": lambda c: c in b" \t\n\v\f\r",
    b"upper": lambda c: chr(c).isupper(),
    b"xdigit": lambda c: c in b"0123456789abcdefABCDEF",
}
_SPECIAL = re.compile(rb"[*?\[\\]")


class _NeverMatches(Exception):
    """The pattern is malformed; git silently matches nothing with it."""


class _Pattern:
    """One line of a file of patterns."""

    __slots__ = ("folders_only", "negated", "regex", "source")

    def __init__(self, line: bytes) -> None:
        self.negated = line.startswith(b"!")
        glob = line[1:] if self.negated else line
        self.folders_only = glob.endswith(b"/")
        if self.folders_only:
            glob = glob[:-1]
        if not glob:
            raise _NeverMatches
        # Without a slash it matches names at any depth; with one, paths relative to the folder of the file of patterns.
        anywhere = b"/" not in glob
        self.source = (b"(?:.*/)?" if anywhere else b"") + _translate(glob.removeprefix(b"/") if not anywhere else glob)
        self.regex = re.compile(self.source, re.DOTALL)


class Patterns:
    """One file of patterns. The last matching line decides."""

    def __init__(self, text: bytes) -> None:
        self._patterns: list[_Pattern] = []
        for raw in text.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
            if raw.startswith(b"#"):
                continue
            line = _trim(raw.removesuffix(b"\r"))
            try:
                if line:
                    self._patterns.append(_Pattern(line))
            except _NeverMatches:
                continue
        # Most paths match no line: one combined expression rejects them fast.
        self._any = re.compile(b"|".join(p.source for p in self._patterns) or b"(?!)", re.DOTALL)

    def verdict(self, path: bytes, *, folder: bool) -> bool | None:
        """Return True (ignored), False (included) or None (no match) for a path relative to this file's folder."""
        if not self._any.fullmatch(path):
            return None
        for pattern in reversed(self._patterns):
            if (folder or not pattern.folders_only) and pattern.regex.fullmatch(path):
                return not pattern.negated
        return None


class Rules:
    """The files of patterns of a tree; the deepest file has precedence.

    The caller walks from the top down and must not enter ignored folders: nothing below them can be included again.
    """

    def __init__(self, root: str, name: str, *, weaker: Sequence[Patterns] = ()) -> None:
        """`weaker` patterns apply to the whole tree with the lowest precedence; the weakest first."""
        self._root = root
        self._name = name
        self._weaker = tuple((0, patterns) for patterns in weaker)
        self._chains: dict[str, tuple[tuple[int, Patterns], ...]] = {}

    def ignored(self, path: str, *, folder: bool) -> bool:
        raw = os.fsencode(path)
        for skipped, patterns in reversed(self._chain(os.path.dirname(path))):
            verdict = patterns.verdict(raw[skipped:], folder=folder)
            if verdict is not None:
                return verdict
        return False

    def covers(self, path: str, *, folder: bool) -> bool:
        """Return whether a path or any folder above it is ignored."""
        above = os.path.dirname(path)
        return (bool(above) and self.covers(above, folder=True)) or self.ignored(path, folder=folder)

    def _chain(self, folder: str) -> tuple[tuple[int, Patterns], ...]:
        """Return the patterns for a folder, the strongest last, each with the length of the path above it."""
        if folder not in self._chains:
            chain = self._chain(os.path.dirname(folder)) if folder else self._weaker
            text = read_rules(os.path.join(self._root, folder, self._name))
            if text:
                chain = (*chain, (len(os.fsencode(folder)) + 1 if folder else 0, Patterns(text)))
            self._chains[folder] = chain
        return self._chains[folder]


def read_rules(path: str) -> bytes:
    """Return the text of a file of patterns; empty if missing. Like git, it does not follow links."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return b""
    with open(handle, "rb") as file:
        try:
            return file.read()
        except IsADirectoryError:
            return b""


def _trim(line: bytes) -> bytes:
    """Remove trailing spaces, except one after a backslash."""
    at, end = 0, len(line)
    while at < len(line):
        if line[at : at + 1] == b"\\":
            at, end = at + 2, len(line)
            continue
        if line[at : at + 1] != b" ":
            end = len(line)
        elif end == len(line):
            end = at
        at += 1
    return line[:end]


def _translate(glob: bytes) -> bytes:
    """Translate a glob to a regular expression for a full match."""
    special = _SPECIAL.search(glob)
    # git compares the literal prefix first and passes only the rest on, so that `**` there counts as at the start.
    start = special.start() if special else len(glob)
    out, at = [re.escape(glob[:start])], start
    while at < len(glob):
        byte = glob[at : at + 1]
        if byte == b"*":
            piece, at = _translate_stars(glob, at, start)
        elif byte == b"?":
            piece, at = b"[^/]", at + 1
        elif byte == b"[":
            piece, at = _translate_set(glob, at + 1)
        else:
            at += byte == b"\\"
            if at == len(glob):
                raise _NeverMatches  # a lone backslash at the end
            piece, at = re.escape(glob[at : at + 1]), at + 1
        out.append(piece)
    return b"".join(out)


def _translate_stars(glob: bytes, at: int, start: int) -> tuple[bytes, int]:
    end = at
    while glob[end : end + 1] == b"*":
        end += 1
    opened = at == start or glob[at - 1 : at] == b"/"
    if end - at < 2 or not opened:
        return b"[^/]*", end
    if end == len(glob):
        return b".*", end
    if glob[end : end + 1] == b"/":
        return b"(?:.*/)?", end + 1  # `**/` also matches nothing
    return (b".*", end) if glob[end : end + 2] == b"\\/" else (b"[^/]*", end)


def _translate_set(glob: bytes, at: int) -> tuple[bytes, int]:
    """Translate a set in brackets to the bytes that it contains for git."""
    negated = glob[at : at + 1] in (b"!", b"^")
    at += negated
    chosen: set[int] = set()
    before, first = -1, True
    while first or glob[at : at + 1] != b"]":
        first = False
        found, before, at = _read_member(glob, at, before)
        chosen |= found
    members = (set(range(256)) - chosen if negated else chosen) - {ord("/")}
    if not members:
        return b"(?!)", at + 1
    return b"[" + b"".join(b"\\x%02x" % byte for byte in sorted(members)) + b"]", at + 1


def _read_member(glob: bytes, at: int, before: int) -> tuple[set[int], int, int]:
    """Read one byte, range or class of a set; return its bytes, the begin of a range, and the position after it."""
    if at >= len(glob):
        raise _NeverMatches
    if glob[at : at + 1] == b"-" and before >= 0 and glob[at + 1 : at + 2] not in (b"", b"]"):
        at += 1
        at += glob[at : at + 1] == b"\\"
        if at >= len(glob):
            raise _NeverMatches
        return set(range(before, glob[at] + 1)), -1, at + 1
    if glob[at : at + 2] == b"[:":
        end = glob.find(b"]", at + 2)
        if end < 0:
            raise _NeverMatches
        if end > at + 2 and glob[end - 1 : end] == b":":
            kind = _CLASSES.get(glob[at + 2 : end - 1])
            if kind is None:
                raise _NeverMatches
            return {byte for byte in range(128) if kind(byte)}, -1, end + 1
    at += glob[at : at + 1] == b"\\"
    if at >= len(glob):
        raise _NeverMatches
    return {glob[at]}, glob[at], at + 1
