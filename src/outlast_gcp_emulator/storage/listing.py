"""Lists of objects: prefixes, delimiters, globs and pages. A folder costs one query, not one per object in it."""

from __future__ import annotations

import base64
import re
import sqlite3
from typing import Any

from outlast_gcp_emulator.errors import invalid
from outlast_gcp_emulator.storage.values import OBJECT_COLUMNS, ObjectPage, ObjectQuery, StoredObject


def list_objects(connection: sqlite3.Connection, bucket: str, query: ObjectQuery) -> ObjectPage:
    page = ObjectPage()
    prefix = query.prefix.encode("utf-8", "replace")
    cursor = max(prefix, query.start)
    end = min((bound for bound in (after_all(prefix), query.end) if bound), default=b"")
    fits = glob_pattern(query.glob).fullmatch if query.glob else None
    while True:
        rows = _rows(connection, bucket, cursor, end, query.results_max + 1)
        jumped = False
        for row in rows:
            name: bytes = row[1]
            folder = _folder(name, prefix, query.delimiter.encode())
            if fits and not folder and not fits(name.decode()):
                cursor = name + b"\0"
                continue
            if len(page.objects) + len(page.prefixes) >= query.results_max:
                page.following = name
                return page
            if folder and (not fits or fits(folder.decode()) or fits(folder.decode()[: -len(query.delimiter)])):
                page.prefixes.append(folder.decode())
            if not folder or (query.trailing_delimiter and name == folder):
                page.objects.append(StoredObject.from_row(row))
            cursor = name + b"\0"
            if folder:
                cursor = after_all(folder)
                jumped = True
                break
        if not jumped and len(rows) <= query.results_max:
            return page


def _rows(connection: sqlite3.Connection, bucket: str, start: bytes, end: bytes, count: int) -> list[tuple[Any, ...]]:
    bounds = "bucket = ? AND name >= ?" + (" AND name < ?" if end else "")
    query = f"SELECT {OBJECT_COLUMNS} FROM objects WHERE {bounds} ORDER BY name LIMIT ?"
    return connection.execute(query, (bucket, start, *([end] if end else []), count)).fetchall()


def _folder(name: bytes, prefix: bytes, delimiter: bytes) -> bytes:
    """Return the common prefix that a name is listed under; empty if the name is listed itself."""
    at = name.find(delimiter, len(prefix)) if delimiter else -1
    return name[: at + len(delimiter)] if at >= 0 else b""


def after_all(prefix: bytes) -> bytes:
    """Return the first name after all with a prefix. No byte of UTF-8 is 255, so the last one can grow."""
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else b""


def page_token(following: bytes) -> str:
    return base64.urlsafe_b64encode(following).decode()


def from_page_token(token: str) -> bytes:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True)
    except ValueError as problem:
        raise invalid("Invalid pageToken") from problem


def glob_pattern(glob: str) -> re.Pattern[str]:
    """Compile a glob. `*` and `?` match within a folder, `**` across folders, `**/` also none.

    `[a-z]` and `{a,b}` are as in a shell.
    """
    parts: list[str] = []
    depth, at = 0, 0
    while at < len(glob):
        letter = glob[at]
        if glob.startswith("**/", at) and (at == 0 or glob[at - 1] == "/"):
            # Zero or more folders: `**/x` also matches `x`.
            parts.append("(?:.*/)?")
            at += 2
        elif glob.startswith("**", at):
            parts.append(".*")
            at += 1
        elif letter == "[" and (end := glob.find("]", at + 2)) > 0:
            inside = glob[at + 1 : end].replace("\\", r"\\")
            parts.append(f"[{'^' + inside[1:] if inside[0] in '!^' else inside}]")
            at = end
        elif letter == "\\" and at + 1 < len(glob):
            at += 1
            parts.append(re.escape(glob[at]))
        elif letter == "{" and "}" in glob[at:]:
            depth += 1
            parts.append("(?:")
        elif letter in "},":
            parts.append((")" if letter == "}" else "|") if depth else re.escape(letter))
            depth -= letter == "}" and depth > 0
        else:
            parts.append({"*": "[^/]*", "?": "[^/]"}.get(letter, re.escape(letter)))
        at += 1
    try:
        return re.compile("".join(parts), re.DOTALL)
    except re.error as problem:
        raise invalid(f"Invalid value for: matchGlob: {problem}") from problem
