"""What of other people's words reaches a terminal. Names, reasons and output come from machines, clouds and whoever
writes to the workspace, and a terminal obeys what it is shown: it retitles, answers, copies, moves up and overwrites.

Only where a terminal is: what is piped or written to a file is passed on byte for byte. Loaded by every command, so it
needs nothing but the cheapest modules.
"""

from __future__ import annotations

import io
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

# Colours as our own text has them: none hides words, or paints them on themselves.
_OUR_STYLE = r"\x1b\[(?:0|[1249]|2[2-9]|3[1-79]|9[1-7]|1;3[1-7]|38;5;[0-9]{1,3})?m"
# Beyond C0 and C1: marks that turn the direction of what follows, so that it reads as something else.
_ODD = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
_TEXT = re.compile(f"({_OUR_STYLE})|{_ODD}")

# What progress bars need, and no more: colours, parts of a line, and a few lines up and down.
_MOVES = rb"\x1b\[[0-9;]{0,16}[mK]|\x1b\[[0-9]{0,2}[A-G]"
_OUTPUT = re.compile(rb"(" + _MOVES + rb")|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]")
_COLOURS = re.compile(rb"(\x1b\[[0-9;]{0,16}m)|[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")
# What may be the first half of something that goes on in the next piece.
_BEGUN = re.compile(rb"(?:\x1b(?:\[[0-9;]{0,16})?|\xc2)\Z")


def plain(text: str) -> str:
    """The words, with nothing in them that a terminal would obey but our own colours; what is taken out can be seen."""
    return text if text.isprintable() else _TEXT.sub(lambda found: found[1] or _seen(found[0]), text)


def one_line(text: str) -> str:
    """For a cell or a name: it cannot pretend to be a line of its own."""
    return text if text.isprintable() else plain(text).replace("\n", "\\n").replace("\t", " ")


def _seen(odd: str) -> str:
    return odd.encode("unicode_escape").decode("ascii")


class Output:
    """Shows what programs printed, piece by piece. A sequence may come in two pieces."""

    def __init__(self, *, whole_lines: bool = False) -> None:
        """`whole_lines`: others' lines are shown between these, and are not theirs to move to."""
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
    """From now on nothing that is printed commands a terminal; and names that are no text are no reason to fail."""
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
    """What we tell the terminal ourselves: to clear, to begin the line again. A stream that is none is told nothing."""
    if stream.isatty():
        stream.flush()
        stream.buffer.write(sequence.encode())
        stream.flush()


def clear() -> None:
    send_sequence("\x1b[2J\x1b[1;1H", sys.stdout)
