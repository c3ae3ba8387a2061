"""Checks of `[data]`: its sources, and its target paths inside the code folder."""

from __future__ import annotations

import os
from collections.abc import Mapping

from outlast.store.traits import is_url

STORES = ("gs://", "s3://", "memory://")


def local_path(source: str) -> str:
    """Return the local path of a source; empty for a bucket."""
    if source.startswith("file://"):
        source = source.removeprefix("file://")
    return "" if is_url(source) else os.path.abspath(os.path.expanduser(source))


def field(place: str) -> str:
    """Return the name of a line of `[data]` in messages."""
    return f'[data] "{place}"'


def check_data(sources: Mapping[str, str]) -> list[str]:
    """Return all problems visible at submission: bad paths, unknown URL schemes, missing local sources."""
    problems = check_places(sources)
    for place, source in sources.items():
        path = local_path(source)
        if path and not os.path.exists(path):
            problems.append(f"{field(place)}: `{source}` does not exist")
        elif path and not os.access(path, os.R_OK):
            problems.append(f"{field(place)}: `{source}` cannot be read")
    return problems


def check_places(sources: Mapping[str, str]) -> list[str]:
    """Return all problems that are visible without access to the sources."""
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
