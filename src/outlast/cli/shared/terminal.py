"""Output to the terminal: tables, notes, errors.

Does not import click, so that plain `ps` starts fast.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping

from outlast.app.project import find_workspace as find_workspace  # re-exported for the commands
from outlast.cli.shared.sanitize import one_line
from outlast.errors import WorkspaceError
from outlast.formatting.quantities import money as money  # re-exported for the commands

_DIM, _RED, _CYAN = "2", "1;31", "36"

# The monotonic time of the last message on stderr.
last_output_at = 0.0


def _styled(text: str, style: str, *, where: object) -> str:
    """Colour the text if `where` is a terminal. Colour never carries meaning alone."""
    return f"\x1b[{style}m{text}\x1b[0m" if colours(where) else text


def colours(where: object) -> bool:
    """Return whether output may be coloured: a terminal, or FORCE_COLOR; never with NO_COLOR or `--no-color`."""
    if os.environ.get("NO_COLOR"):
        return False
    isatty = getattr(where, "isatty", None)
    return bool(os.environ.get("FORCE_COLOR")) or (callable(isatty) and bool(isatty()))


def note(text: str) -> None:
    """Print progress to stderr; results go to stdout."""
    global last_output_at
    last_output_at = time.monotonic()
    print(text, file=sys.stderr, flush=True)


def dim(text: str) -> str:
    return _styled(text, _DIM, where=sys.stdout)


def complain(message: str, *, hint: str = "") -> None:
    """Print an error and the next step."""
    note(_styled("error:", _RED, where=sys.stderr) + f" {message}")
    if hint:
        note(_styled("hint:", _CYAN, where=sys.stderr) + f" {hint}")


def report_damaged(*damaged: Mapping[str, str], so: str = "") -> int:
    """Print the records that a listing could not read, and return the exit code of the listing."""
    reasons = dict.fromkeys(why for one in damaged for why in one.values())
    for why in reasons:
        note(f"{why}{so}")
    return WorkspaceError.exit_code if reasons else 0


def _columns() -> int:
    """Return the width of the terminal, like `shutil`, which takes five milliseconds to import."""
    given = os.environ.get("COLUMNS", "")
    return int(given) if given.isdigit() and int(given) else os.get_terminal_size(sys.stdout.fileno()).columns or 80


def table(rows: list[list[str]], *, header: list[str]) -> str:
    """Return an aligned table; on a terminal, lines are cut to its width."""
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    limit = _columns() if sys.stdout.isatty() else 10_000
    lines = []
    for row in [header, *rows]:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        lines.append(line if len(line) <= limit else line[: limit - 1] + "…")
    return "\n".join([dim(lines[0]), *lines[1:]])
