"""What `[data]` may say: where data come from, where they go. Refuses places outside of the code folder."""

from __future__ import annotations

import os
from collections.abc import Mapping

STORES = ("gs://", "s3://", "memory://")


def local_path(source: str) -> str:
    """The path of a source on this computer; empty for one in a store."""
    if source.startswith("file://"):
        source = source.removeprefix("file://")
    return "" if "://" in source else os.path.abspath(os.path.expanduser(source))


def field(place: str) -> str:
    """How messages name one line of `[data]`."""
    return f'[data] "{place}"'


def check_data(sources: Mapping[str, str]) -> list[str]:
    """Every problem that can be seen at submit time: bad places, unknown stores, local sources that are not there."""
    problems = check_places(sources)
    for place, source in sources.items():
        path = local_path(source)
        if path and not os.path.exists(path):
            problems.append(f"{field(place)}: `{source}` does not exist")
        elif path and not os.access(path, os.R_OK):
            problems.append(f"{field(place)}: `{source}` cannot be read")
    return problems


def check_places(sources: Mapping[str, str]) -> list[str]:
    """Every problem that can be seen without looking at the sources."""
    problems = []
    for place, source in sources.items():
        parts = place.removesuffix("/").split("/")
        if place.startswith("/") or ".." in parts or "\x00" in place:
            problems.append(f"{field(place)}: must be a path inside of the code folder")
        elif any(part in ("", ".") for part in parts):
            problems.append(f"{field(place)}: must be a plain path such as `data` or `data/train`")
        if not source:
            problems.append(f"{field(place)}: the source is empty")
        elif not local_path(source) and not source.startswith(STORES):
            known = f"`{source.split('://')[0]}://`"
            problems.append(f"{field(place)}: unknown URL scheme {known}; use a folder, gs://… or s3://…")
    return problems
