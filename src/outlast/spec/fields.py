"""Readers of fields that several tables share: names, clouds, paths, containers. Each raises ValueError."""

from __future__ import annotations

import re
from typing import Any

from outlast.clouds.traits import BUILT_IN, is_known, known_clouds, traits_of
from outlast.spec.reader import text

# A registry's host and port, a path, a tag, a digest; as docker reads them.
_REFERENCE = re.compile(
    r"(?:[A-Za-z0-9.-]+(?::\d+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
    r"(?:@sha256:[0-9a-f]{64})?"
)
# Machines of one run.
NODES_MAX = 256
_RESERVATION = re.compile(r"[a-z][a-z0-9-]{0,62}|projects/[^/\s]+/reservations/[^/\s]+|cr-[0-9a-f]+|arn:\S+")
_NODES = re.compile(r"(\d+)(?:\.\.(\d+))?")
_NAME = re.compile(r"^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$")


def name(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, got {value!r}")
    if not _NAME.match(value):
        raise ValueError(
            f"invalid name {value!r}: expected 1 to 40 lower-case letters, digits and `-`, first a letter, last not `-`"
        )
    return value


def clouds(value: Any) -> tuple[str, ...]:
    """Read one cloud, or several in the order in which they are tried."""
    if not isinstance(value, list):
        value = value.split(",") if isinstance(value, str) else [value]
    found = tuple(cloud(item.strip() if isinstance(item, str) else item) for item in value)
    if not found:
        raise ValueError(f"expected at least one of {', '.join(known_clouds())}, got an empty list")
    if len(set(found)) < len(found):
        raise ValueError(f"expected each cloud once, got {', '.join(found)}")
    if len(found) > 1 and (alone := [name for name in found if not traits_of(name).remote]):
        raise ValueError(f"`{alone[0]}` cannot be combined with other clouds")
    return found


def cloud(value: Any) -> str:
    if not isinstance(value, str) or not is_known(value):
        raise ValueError(f"unknown cloud {value!r}: expected one of {', '.join(known_clouds())}")
    return value


def inside(value: Any) -> str:
    """Read a path inside the code folder."""
    path = text(value).strip().rstrip("/") or "/"
    if path.startswith(("/", "~")) or ".." in path.split("/"):
        raise ValueError(f"expected a path inside the code folder, without `..`, got {value!r}")
    return "/".join(part for part in path.split("/") if part not in ("", ".")) or "."


def zone_belongs(zone: str, cloud: str) -> bool:
    """Return whether a zone or region is named as that cloud names them: `us-central1-a`, `us-east-1a`."""
    if pattern := traits_of(cloud).zone_pattern:
        return re.fullmatch(pattern, zone) is not None
    return not any(re.fullmatch(other.zone_pattern, zone) for other in BUILT_IN.values() if other.zone_pattern)


def container(value: Any) -> str:
    """Read a container image: a registry's `image:tag`, or `oci:` and a folder on the machine."""
    reference = text(value)
    if reference.startswith("oci:"):
        if not reference.removeprefix("oci:").startswith(("/", "~/")):
            raise ValueError(
                f"expected the full path of a folder on the machine, such as `oci:/opt/root`, got {value!r}"
            )
        return reference
    if not _REFERENCE.fullmatch(reference):
        raise ValueError(f"invalid container image {value!r}: expected e.g. `python:3.12` or `oci:/path/of/a/root`")
    return reference


def reservation(value: Any) -> str:
    """Read a reservation of Google Cloud, or a capacity reservation of AWS or a group of them."""
    name = text(value).strip()
    if not _RESERVATION.fullmatch(name):
        raise ValueError(
            f"invalid reservation {value!r}: expected a name, `projects/PROJECT/reservations/NAME`, or on AWS the id "
            "`cr-…` or the ARN of a resource group"
        )
    return name


def nodes(value: Any) -> tuple[int, int]:
    """Read the number of machines of a run: at most, and at least (0: exactly that many)."""
    if isinstance(value, str) and (found := _NODES.fullmatch(value.strip())):
        least, most = int(found[1]), int(found[2] or found[1])
        if 2 <= least < most <= NODES_MAX:
            return most, least
        value = most if least == most else value
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= NODES_MAX:
        raise ValueError(
            f'expected a whole number from 1 to {NODES_MAX}, or a range such as "2..4" of at least 2 machines, '
            f"got {value!r}"
        )
    return value, 0


def exit_codes(value: Any) -> tuple[int, ...]:
    """Read one exit code or a list of them."""
    found = value if isinstance(value, list | tuple) else [value]
    for code in found:
        if isinstance(code, bool) or not isinstance(code, int) or not 1 <= code <= 255:
            raise ValueError(f"expected exit codes from 1 to 255, got {code!r}")
    return tuple(found)
