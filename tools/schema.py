"""Writes the JSON schema of `outlast.toml`, which editors use, from the tables of docs/spec.md.

`make schema` writes it; a test fails while it differs from the documentation, and another one while that differs from
the parser.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "src" / "outlast" / "spec" / "outlast.schema.json"
_ROW = re.compile(r"^\| `([a-z_]+)` \| ([^|]+) \|[^|]*\| ((?:\\\||[^|])*) \|", re.M)
_SECTION = re.compile(r"^## (Top level|\[([a-z]+)\])\n(.*?)(?=^## |\Z)", re.M | re.S)
_TEXT, _NUMBER, _FLAG = {"type": "string"}, {"type": "number"}, {"type": "boolean"}
_TEXTS = {"type": "array", "items": _TEXT}
_TABLE = {"type": "object"}
_KINDS: dict[str, Any] = {
    "text": _TEXT,
    "number": _NUMBER,
    "whole number": {"type": "integer"},
    "true or false": _FLAG,
    "true/false": _FLAG,
    "list of text": _TEXTS,
    "list of texts": _TEXTS,
    "table": _TABLE,
    "table of tables": _TABLE,
    "table of text": _TABLE,
}
# Kinds that are written as text or as a number; paths and names that may be several.
_LOOSE = ("duration", "duration or time", "size", "range", "range of sizes")
# Sections that may be written in a short form, and sections with keys of the user.
_SHORT = {"environment": [_TEXT], "checkpoint": [_TEXT], "secrets": [_TEXTS], "databases": [_TEXT]}
_OPEN = ("params", "env", "secrets", "data", "volumes", "databases", "clouds", "tasks", "cluster")


def schema(text: str) -> dict[str, Any]:
    """Return the schema of a file."""
    root: dict[str, Any] = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "outlast.toml",
        "type": "object",
        "additionalProperties": False,
        "properties": {},
    }
    for _, name, body in _SECTION.findall(text):
        fields = {
            field: _field("text or list" if field == "cloud" else kind.strip(), meaning)
            for field, kind, meaning in _ROW.findall(body)
        }
        if not name:
            root["properties"].update(fields)
            continue
        table: dict[str, Any] = {"type": "object", "properties": fields}
        if fields and name not in _OPEN:
            table["additionalProperties"] = False
        first = body.strip().split("\n\n")[0].replace("\n", " ")
        described = {"description": _plain(first)} if not first.startswith("|") else {}
        if name == "clouds":
            table = {"type": "object", "additionalProperties": {"type": "object", "properties": fields}}
        short = _SHORT.get(name)
        root["properties"][name] = {**described, **({"anyOf": [table, *short]} if short else table)}
    return root


def _field(kind: str, meaning: str) -> dict[str, Any]:
    described = {"description": _plain(meaning)}
    if kind in _KINDS:
        return {**_KINDS[kind], **described}
    if kind in _LOOSE:
        return {"type": ["string", "number"], **described}
    if kind.startswith("number or list"):
        return {"anyOf": [_NUMBER, {"type": "array", "items": _NUMBER}], **described}
    return {"anyOf": [_TEXT, _TEXTS], **described}


def _plain(text: str) -> str:
    """Remove links and escapes of Markdown."""
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text).replace("\\|", "|").strip()


def rendered() -> str:
    """Return the schema of the present documentation as text."""
    return json.dumps(schema((ROOT / "docs" / "spec.md").read_text(encoding="utf-8")), indent=1) + "\n"


if __name__ == "__main__":
    TARGET.write_text(rendered(), encoding="utf-8")
