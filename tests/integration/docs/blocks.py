"""The fenced blocks of README and docs, and the lines of ours that are in them.

The first word behind a fence is the language; the words after it say what becomes of the block:

    sh                      a reader types this, in this order: bash runs it, page by page
    sh needs=gcp            needs more than this computer, a clone and a minute: only read, and never run
    sh background           goes on while the rest of the page is typed in another terminal
    python file=train.py    the reader saves it under this name (toml and yaml, too)

A block without a language is an example out of its surroundings, or something that is printed. Lines of ours in all of
them are read: each command and option must exist.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.conventions.sources import ROOT, shown

PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "reference")]

# Where a command of ours begins: a line, a substitution, behind a pipe or a list. Prompts are none of ours.
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
        told = {name: value for name, _, value in (word.partition("=") for word in argv)}
        text = "\n".join(lines[begin:number])
        found.append(Block(page=page, line=begin, language=language, argv=told, text=text))
        number += 1
    return found


def commands(block: Block) -> list[list[str]]:
    """The words of each call of ours in a block, without the name of the program."""
    found: list[list[str]] = []
    for line in block.text.replace("\\\n", " ").splitlines():
        begin = 0
        while match := _OURS.search(line, begin):
            begin = match.start(1) + len("outlast")
            inside = line[: match.start(1)].rstrip().endswith("$(")
            # What another call prints is one word of this one.
            own = match[1] if inside else re.sub(r'"?\$\([^)]*\)"?', "printed", match[1])
            found.append(_words(own, inside=inside))
    return found


def _words(text: str, *, inside: bool) -> list[str]:
    """As bash splits them, up to the end of this command: a comment, a pipe, the bracket around it."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|;&)" if inside else "|;&")
    lexer.whitespace_split = True
    lexer.commenters = ""
    argv: list[str] = []
    for word in lexer:
        if word.startswith("#") or (argv and set(word) <= set("|;&)")):
            break
        argv.append(word)
    return argv[1:]
