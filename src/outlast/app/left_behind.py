"""Files that a failed run names and that stayed on this computer: git ignores them, so the code lacks them."""

from __future__ import annotations

import os
import re

from outlast.code.source_files import SourceTree
from outlast.errors import OutlastError
from outlast.runs.logs import LogReader, attempts_with_logs
from outlast.workspace import Workspace

# The end of the output, which has the error.
_LINES_MAX = 200
# `'data/train.csv'`, `data/train.csv:`, `/machine/work/data`: quoted text, or a word with a slash or a dot.
_NAMED = re.compile(r"['\"`]([^'\"`\n]{1,300})['\"`]|([\w./~-]*[./][\w./-]*\w)")
_WORK = re.compile(r"^.*?/work/(?=.)")


def left_behind_hint(workspace: Workspace, run: str) -> str:
    """Return which file the end of the run's output names that exists here but was not sent; empty if there is none."""
    code = workspace.request(run).spec.code
    if code.git or not os.path.isdir(code.path):
        return ""
    try:
        paths = left_behind(code.path, _last_output(workspace, run))
    except (OutlastError, OSError):
        return ""  # the folder has changed; this is only a hint
    if not paths:
        return ""
    top = paths[0].partition("/")[0]
    folder = top if os.path.isdir(os.path.join(code.path, top)) else ""
    how = f"send the folder with `--data {folder}={folder}`" if folder else "remove it from the ignore file"
    return f"`{paths[0]}` exists here, but git or .outlastignore ignores it, so it was not sent with the code; {how}"


def left_behind(folder: str, output: str) -> list[str]:
    """Return the paths in some output that exist in a code folder and are ignored, without the checkpoints of a run."""
    sent = {file.path for file in SourceTree(folder).files}
    folders = {path[:at] for path in sent for at, letter in enumerate(path) if letter == "/"}
    found: list[str] = []
    for quoted, word in _NAMED.findall(output):
        path = os.path.normpath(_WORK.sub("", (quoted or word).strip())).rstrip("/")
        if os.path.isabs(path) or path.startswith("..") or path in (".", ".git"):
            continue
        if path not in sent and path not in folders and path not in found and os.path.exists(f"{folder}/{path}"):
            found.append(path)
    return found


def _last_output(workspace: Workspace, run: str) -> str:
    attempts = attempts_with_logs(workspace.bucket, run)
    if not attempts:
        return ""
    *_, last = ["", *(body.decode(errors="replace") for body in LogReader(workspace.bucket, run, attempts[-1]).read())]
    return "\n".join(last.splitlines()[-_LINES_MAX:])
