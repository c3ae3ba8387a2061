"""Previews of files by their first bytes: an image, a table, text, or bytes. Pure."""

from __future__ import annotations

import csv
import io
import json
from typing import Literal

import msgspec

# The part of a file that is read, and the shown rows, columns and characters per cell of a table.
HEAD_BYTES = 256 * 1024
_ROWS, _COLUMNS, _CELL = 200, 30, 300
_IMAGE_MAX = 20_000_000

# By first bytes. Not SVG, which may contain scripts.
_IMAGES = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))

Kind = Literal["image", "table", "text", "bytes"]


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    kind: Kind
    text: str = ""
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    # There is more than is shown.
    cut: bool = False


def image_type(head: bytes) -> str:
    """Return the media type of an image from its first bytes; empty if it is not shown."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _IMAGES if head.startswith(magic)), "")


def preview(path: str, head: bytes, size: int) -> Preview:
    if image_type(head[:16]):
        return Preview(kind="image") if size <= _IMAGE_MAX else Preview(kind="bytes")
    cut = size > len(head)
    if b"\0" in head:
        return Preview(kind="bytes")
    if cut:
        head = head[: head.rfind(b"\n") + 1] or head
    text = head.decode("utf-8", "replace")
    ending = path.rpartition(".")[2].lower()
    table = _delimited(text, ending) if ending in ("csv", "tsv") else _lines(text) if ending == "jsonl" else None
    if table:
        header, rows = table
        shown = tuple(tuple(cell[:_CELL] for cell in row[:_COLUMNS]) for row in rows[:_ROWS])
        return Preview(kind="table", header=tuple(header[:_COLUMNS]), rows=shown, cut=cut or len(rows) > _ROWS)
    return Preview(kind="text", text=text, cut=cut)


def _delimited(text: str, ending: str) -> tuple[list[str], list[list[str]]] | None:
    try:
        rows = list(csv.reader(io.StringIO(text), delimiter="\t" if ending == "tsv" else ","))
    except csv.Error:
        return None
    return (rows[0], rows[1:]) if rows and len(rows[0]) > 1 else None


def _lines(text: str) -> tuple[list[str], list[list[str]]] | None:
    try:
        found = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError):
        return None
    if not found or not all(isinstance(row, dict) for row in found):
        return None
    header = list(dict.fromkeys(key for row in found for key in row))
    return header, [[_cell_text(row.get(key)) for key in header] for row in found]


def _cell_text(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)
