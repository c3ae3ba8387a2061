"""Fields that several tables have: names, clouds, paths, containers. Each raises ValueError with a sentence."""

from __future__ import annotations

import re
from typing import Any

from outlast.spec.reader import text

CLOUDS = ("local", "gcp", "aws")
# A registry's host and port, a path, a tag, a digest; as docker reads them.
_REFERENCE = re.compile(
    r"(?:[A-Za-z0-9.-]+(?::\d+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
    r"(?:@sha256:[0-9a-f]{64})?"
)
_NAME = re.compile(r"^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$")


def name(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, got {value!r}")
    if not _NAME.match(value):
        raise ValueError(
            f"{value!r} must be 1 to 40 lower-case letters, digits and `-`, begin with a letter and not end with `-`"
        )
    return value


def clouds(value: Any) -> tuple[str, ...]:
    """One, or several in the order in which they are tried."""
    if not isinstance(value, list):
        value = value.split(",") if isinstance(value, str) else [value]
    found = tuple(cloud(item.strip() if isinstance(item, str) else item) for item in value)
    if not found:
        raise ValueError(f"must not be empty; known are {', '.join(CLOUDS)}")
    if len(set(found)) < len(found):
        raise ValueError("names a cloud twice")
    if len(found) > 1 and "local" in found:
        raise ValueError("`local` stands alone: machines of this computer and of a cloud do not take turns")
    return found


def cloud(value: Any) -> str:
    if value not in CLOUDS:
        raise ValueError(f"{value!r} is no cloud; known are {', '.join(CLOUDS)}")
    return str(value)


def inside(value: Any) -> str:
    """A path that stays below the code folder."""
    path = text(value).strip().rstrip("/") or "/"
    if path.startswith(("/", "~")) or ".." in path.split("/"):
        raise ValueError(f"{value!r} must be a path inside the code folder, without `..`")
    return "/".join(part for part in path.split("/") if part not in ("", ".")) or "."


def zone_belongs(zone: str, cloud: str) -> bool:
    """Whether a zone or region is so called by that cloud: Google's `us-central1-a`, Amazon's `us-east-1a`."""
    amazons = re.fullmatch(r"[a-z]{2}(-[a-z]+)+-\d+[a-z]?", zone) is not None
    return amazons == (cloud == "aws")


def container(value: Any) -> str:
    """`image:tag` with the parts that a registry knows, or `oci:` and a folder of the machine."""
    reference = text(value)
    if reference.startswith("oci:"):
        if not reference.removeprefix("oci:").startswith(("/", "~/")):
            raise ValueError(f"{value!r}: `oci:` needs the full path of a folder on the machine, as in `oci:/opt/root`")
        return reference
    if not _REFERENCE.fullmatch(reference):
        raise ValueError(f"{value!r} is no container image; write it like `python:3.12`, or `oci:/path/of/a/root`")
    return reference
