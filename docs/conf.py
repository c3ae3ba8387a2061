"""How the site is built (`make docs`): nothing comes from another host, and a link into nowhere ends the build."""

from __future__ import annotations

import importlib.metadata
import posixpath
import re
import subprocess
import sys
from pathlib import Path

from sphinx.application import Sphinx

# Every build writes the reference again, so it cannot be out of date.
subprocess.run([sys.executable, str(Path(__file__).parents[1] / "tools" / "reference.py")], check=True)

project = "outlast"
release = importlib.metadata.version("outlast")
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
# The index holds README.md, which those see who read the folder as it is.
exclude_patterns = ["README.md"]
myst_heading_anchors = 4
nitpicky = True

html_theme = "furo"
html_title = "outlast"
html_show_copyright = False
html_copy_source = False
html_show_sphinx = False
# Blocks without a known language: output, and templates.
highlight_language = "text"
# A shell block may hold `…`, which the lexer of bash takes for a mistake.
suppress_warnings = ["misc.highlighting_failure"]

_LINK = re.compile(r"\[([^\]]+)\]\(([^)#:]+)(#[^)]*)?\)")
# Pages that stand at the top of the repository.
_PAGES = {"../ARCHITECTURE.md": "architecture.md"}


def _without_files_outside(app: Sphinx, page: str, source: list[str]) -> None:
    """Files of the repository that are no page of the site are named there, not linked."""
    folder = posixpath.dirname(page)

    def link(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, match[2]))
        if path in _PAGES:
            return f"[{match[1]}]({posixpath.relpath(_PAGES[path], folder or '.')}{match[3] or ''})"
        return match[1] if path.startswith("../") else match.group()

    source[0] = _LINK.sub(link, source[0])


def _included(app: Sphinx, path: object, parent: str, source: list[str]) -> None:
    """ARCHITECTURE.md links to the pages as one does from the top of the repository."""
    source[0] = source[0].replace("](docs/", "](")
    _without_files_outside(app, "README" if parent == "index" else parent, source)


def setup(app: Sphinx) -> None:
    app.connect("source-read", _without_files_outside)
    app.connect("include-read", _included)
