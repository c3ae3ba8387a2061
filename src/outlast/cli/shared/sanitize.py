"""Removal of control sequences from foreign text before it reaches a terminal.

Names, reasons and output come from machines, clouds and everyone who can write to the workspace. A terminal executes
control sequences: it changes its title, answers, copies, moves the cursor and overwrites lines.

Output to a pipe or a file is passed on byte for byte. Every command imports this module, so its imports are cheap.
"""

from __future__ import annotations

import io
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

# Styles of our own output: none of them can hide text.
_OUR_STYLE = r"\x1b\[(?:0|[1249]|2[2-9]|3[1-79]|9[1-7]|1;3[1-7]|38;5;[0-9]{1,3})?m"
# C0, C1, and Unicode marks that reverse the direction of the text after them.
_ODD = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
_TEXT = re.compile(f"({_OUR_STYLE})|{_ODD}")

# The sequences that progress bars need: colours, erasing in a line, and moves over a few lines.
_MOVES = rb"\x1b\[[0-9;]{0,16}[mK]|\x1b\[[0-9]{0,2}[A-G]"
_OUTPUT = re.compile(rb"(" + _MOVES + rb")|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]")
_COLOURS = re.compile(rb"(\x1b\[[0-9;]{0,16}m)|[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")
# The possible first half of a sequence that continues in the next piece.
_BEGUN = re.compile(rb"(?:\x1b(?:\[[0-9;]{0,16})?|\xc2)\Z")


def plain(text: str) -> str:
    """Escape everything that a terminal would execute, except our own colours."""
    return text if text.isprintable() else _TEXT.sub(lambda found: found[1] or _escaped(found[0]), text)


def one_line(text: str) -> str:
    """Escape a cell or a name, line breaks included."""
    return text if text.isprintable() else plain(text).replace("\n", "\\n").replace("\t", " ")


def _escaped(odd: str) -> str:
    return odd.encode("unicode_escape").decode("ascii")


class Output:
    """Program output, shown piece by piece; a sequence may be split over two pieces."""

    def __init__(self, *, whole_lines: bool = False) -> None:
        """`whole_lines`: lines of several programs are interleaved, so no program may move the cursor."""
        self._rest = b""
        self._allowed = _COLOURS if whole_lines else _OUTPUT

    def show(self, body: bytes) -> None:
        if sys.stdout.isatty():
            body = self._rest + body
            begun = _BEGUN.search(body)
            self._rest = begun[0] if begun else b""
            body = self._allowed.sub(_harmless, body[: begun.start()] if begun else body)
        sys.stdout.buffer.write(body)
        sys.stdout.buffer.flush()


def _harmless(found: re.Match[bytes]) -> bytes:
    return found[1] or b"?"


class _Screen(io.TextIOWrapper):
    def write(self, text: str, /) -> int:
        super().write(plain(text))
        return len(text)


def guard() -> None:
    """Sanitize stdout and stderr from now on; text that cannot be encoded is escaped."""
    sys.stdout, sys.stderr = _guarded(sys.stdout), _guarded(sys.stderr)


def _guarded(stream: TextIO) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.reconfigure(errors="backslashreplace")
    if not stream.isatty():
        return stream
    return _Screen(
        stream.buffer, encoding=stream.encoding, errors="backslashreplace", line_buffering=stream.line_buffering
    )


def send_sequence(sequence: str, stream: TextIO) -> None:
    """Send a control sequence of our own if the stream is a terminal."""
    if stream.isatty():
        stream.flush()
        stream.buffer.write(sequence.encode())
        stream.flush()


def clear() -> None:
    send_sequence("\x1b[2J\x1b[1;1H", sys.stdout)
