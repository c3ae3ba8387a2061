"""Fenced blocks of README and docs, and the outlast commands in them.

The first word after a fence is the language; further words declare the use of the block:

    sh                      the reader types it: bash runs these blocks in order, page by page
    sh needs=gcp            needs more than this computer: checked, but never run
    sh background           keeps running while the rest of the page runs in another terminal
    python file=train.py    the reader saves it under this name (also toml and yaml)

A block without a language is an excerpt or output. In all blocks, every outlast command and option must exist.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.conventions.sources import ROOT, shown

PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "reference")]

# The start of an outlast command: of a line, in a substitution, after a pipe or a list.
_OURS = re.compile(r"(?:^|\$\(|[|;&]\s*)\s*(outlast(?:\s|$).*)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    page: Path
    line: int
    language: str
    argv: dict[str, str]
    text: str

    @property
    def where(self) -> str:
        return f"{shown(self.page)}:{self.line}"

    @property
    def is_run(self) -> bool:
        return self.language == "sh" and "needs" not in self.argv


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        fence = re.match(r"^(```+)(.*)$", lines[number])
        number += 1
        if fence is None:
            continue
        begin = number
        while lines[number].rstrip() != fence[1]:
            number += 1
        language, *argv = fence[2].split() or [""]
        options = {name: value for name, _, value in (word.partition("=") for word in argv)}
        text = "\n".join(lines[begin:number])
        found.append(Block(page=page, line=begin, language=language, argv=options, text=text))
        number += 1
    return found


def commands(block: Block) -> list[list[str]]:
    """Return the arguments of each outlast command in a block."""
    found: list[list[str]] = []
    for line in block.text.replace("\\\n", " ").splitlines():
        begin = 0
        while match := _OURS.search(line, begin):
            begin = match.start(1) + len("outlast")
            inside = line[: match.start(1)].rstrip().endswith("$(")
            # A substitution is one argument.
            own = match[1] if inside else re.sub(r'"?\$\([^)]*\)"?', "printed", match[1])
            found.append(_words(own, inside=inside))
    return found


def _words(text: str, *, inside: bool) -> list[str]:
    """Split like bash, up to the end of the command: a comment, a pipe, a redirection or a closing bracket."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|;&)" if inside else "|;&")
    lexer.whitespace_split = True
    lexer.commenters = ""
    argv: list[str] = []
    for word in lexer:
        if word.startswith("#") or (argv and set(word) <= set("|;&)<>")):
            break
        argv.append(word)
    return argv[1:]
