"""What is printed and where it is looked up: tables, sums, errors, the workspace meant. Does without click, so that a
short listing need not load it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from outlast import private
from outlast.cli.shared.sanitize import one_line
from outlast.errors import WorkspaceError
from outlast.formatting.quantities import money as money  # where most commands look for it
from outlast.workspace import Workspace, open_workspace

if TYPE_CHECKING:
    from outlast.cli.shared.project import Project

_DIM, _RED, _CYAN = "2", "1;31", "36"

# When something was last told about what goes on, by the clock that only goes forward.
said_at = 0.0


def find_workspace(url: str, project: Project | None = None) -> Workspace:
    """Open the workspace of the option, the environment, the nearest project file or the default, in this order.

    `project` is the project file if the caller has loaded it already.
    """
    private.close_home()
    if not url and not os.environ.get("OUTLAST_WORKSPACE"):
        from outlast.cli.shared.project import load_project, workspace_url_of

        url = workspace_url_of(project if project and project.nearest else load_project())
    return open_workspace(url)


def _styled(text: str, style: str, *, where: object) -> str:
    """Colour for a terminal alone. It never carries meaning by itself."""
    isatty = getattr(where, "isatty", None)
    plain = not callable(isatty) or not isatty() or "NO_COLOR" in os.environ
    return text if plain else f"\x1b[{style}m{text}\x1b[0m"


def note(text: str) -> None:
    """Progress: to stderr, never in the way of results."""
    global said_at
    said_at = time.monotonic()
    print(text, file=sys.stderr, flush=True)


def dim(text: str) -> str:
    return _styled(text, _DIM, where=sys.stdout)


def complain(message: str, *, hint: str = "") -> None:
    """An error, as everywhere: what, and the next step."""
    note(_styled("error:", _RED, where=sys.stderr) + f" {message}")
    if hint:
        note(_styled("hint:", _CYAN, where=sys.stderr) + f" {hint}")


def tell_damaged(*damaged: Mapping[str, str], so: str = "") -> int:
    """Name what a listing could not read, after it has shown the rest. The exit code of that listing."""
    told = dict.fromkeys(why for one in damaged for why in one.values())
    for why in told:
        note(f"{why}{so}")
    return WorkspaceError.exit_code if told else 0


def _columns() -> int:
    """The width of the terminal. As `shutil` tells it, which takes five milliseconds to load."""
    request = os.environ.get("COLUMNS", "")
    return (
        int(request) if request.isdigit() and int(request) else os.get_terminal_size(sys.stdout.fileno()).columns or 80
    )


def table(rows: list[list[str]], *, header: list[str]) -> str:
    """Columns as wide as their widest cell. The last one is cut to the terminal's width, if there is a terminal."""
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    limit = _columns() if sys.stdout.isatty() else 10_000
    lines = []
    for row in [header, *rows]:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        lines.append(line if len(line) <= limit else line[: limit - 1] + "…")
    return "\n".join([dim(lines[0]), *lines[1:]])
