"""Placeholders for programs with an option to resume: `{resume:--resume {newest:out/checkpoint-*}}`.

`{newest:PATTERN}` is the newest path that matches, and `{resume:TEXT}` is TEXT if every pattern in it matches, else
nothing. `{exists:PATTERN}` in TEXT stands for nothing: some options to resume take no path. The paths that exist are
passed in, so that nothing here reads a disk.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence

_NEWEST = re.compile(r"\{newest:([^{}]+)\}")
_EXISTS = re.compile(r"\s*\{exists:([^{}]+)\}")
_RESUME = re.compile(r"\{resume:((?:[^{}]|\{(?:newest|exists):[^{}]+\})*)\}")
_NUMBER = re.compile(r"\d+")

# Pattern → the newest path that matches it; empty if there is none.
Newest = Callable[[str], str]


def newest_of(paths: Sequence[tuple[str, float]]) -> str:
    """Return the newest of paths with their times of change: by the numbers in the names, else by time.

    `checkpoint-90` is older than `checkpoint-100`, although its name sorts behind.
    """
    shapes = {_NUMBER.sub("#", path) for path, _ in paths}
    if len(shapes) == 1 and "#" in next(iter(shapes)):
        return max(paths, key=lambda item: [int(n) for n in _NUMBER.findall(item[0])])[0]
    return max(paths, key=lambda item: item[1])[0] if paths else ""


def fill_text(text: str, newest: Newest) -> str:
    """Fill the placeholders of a shell command. Paths are quoted."""
    filled = _RESUME.sub(lambda match: _inner(match.group(1), newest, quote=True), text)
    return _NEWEST.sub(lambda match: _quoted(newest(match.group(1))), filled)


def fill_argv(argv: Sequence[str], newest: Newest) -> list[str]:
    """Fill the placeholders of a list of arguments. `{resume:--resume {newest:…}}` becomes two arguments or none."""
    found: list[str] = []
    for word in argv:
        whole = _RESUME.fullmatch(word)
        if whole is not None:
            found += shlex.split(_inner(whole.group(1), newest, quote=True))
            continue
        filled = _RESUME.sub(lambda match: _inner(match.group(1), newest, quote=False), word)
        found.append(_NEWEST.sub(lambda match: newest(match.group(1)), filled))
    return found


def problems_in(command: str | tuple[str, ...]) -> list[str]:
    """Return a message for each placeholder that is incomplete."""
    texts = (command,) if isinstance(command, str) else command
    rest = " ".join(_NEWEST.sub("", _RESUME.sub("", text)) for text in texts)
    found = re.findall(r"\{(resume|newest|exists):", rest)
    example = "{resume:--resume {newest:out/checkpoint-*}}"
    problems = [f"`{{{name}:` is not closed, or has no pattern; write {example}" for name in dict.fromkeys(found)]
    for text in texts:
        for inner in _RESUME.findall(text):
            if not _NEWEST.search(inner) and not _EXISTS.search(inner):
                problems.append(
                    f"{{resume:{inner}}} contains no {{newest:PATTERN}} or {{exists:PATTERN}}; write {example}"
                )
    return problems


def _inner(text: str, newest: Newest, *, quote: bool) -> str:
    if not all(newest(pattern) for pattern in (*_NEWEST.findall(text), *_EXISTS.findall(text))):
        return ""
    text = _EXISTS.sub("", text)
    return _NEWEST.sub(lambda match: _quoted(newest(match.group(1))) if quote else newest(match.group(1)), text)


def _quoted(path: str) -> str:
    return shlex.quote(path) if path else ""
