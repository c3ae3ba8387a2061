"""A TOML writer for files that users edit: multi-line text stays multi-line. No IO."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def written(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> str:
    """Return the table as TOML: first the fields, then each nested table under its heading."""
    lines = [f"{key(name)} = {value(item)}" for name, item in table.items() if not isinstance(item, Mapping)]
    below = [(name, item) for name, item in table.items() if isinstance(item, Mapping)]
    text = "".join(f"{line}\n" for line in lines)
    for name, item in below:
        inner = written(item, (*path, name))
        heading = "" if _only_tables(item) else f"\n[{'.'.join(key(part) for part in (*path, name))}]\n"
        text += heading + inner
    return text


def _only_tables(table: Mapping[str, Any]) -> bool:
    return bool(table) and all(isinstance(item, Mapping) for item in table.values())


def key(name: str) -> str:
    return name if _BARE.fullmatch(name) else text(name)


def value(item: Any) -> str:
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, int | float):
        return repr(item)
    if isinstance(item, list):
        return f"[{', '.join(value(one) for one in item)}]"
    return _lines(item) if "\n" in item else text(item)


def text(item: str) -> str:
    # JSON and TOML share all escapes except DEL.
    return msgspec.json.encode(item).decode().replace("\x7f", "\\u007f")


def _lines(item: str) -> str:
    """Return a multi-line literal; an escaped string if a literal cannot contain the text."""
    if "'''" in item or item.endswith("'") or re.search(r"[^\n\t -~\x80-\U0010ffff]", item):
        return text(item)
    return f"'''\n{item}'''"
