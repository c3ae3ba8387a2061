"""Fields that several tables have: names and clouds. Each raises ValueError with a sentence."""

from __future__ import annotations

import re
from typing import Any

CLOUDS = ("local", "gcp", "aws")
_NAME = re.compile(r"^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$")


def name(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, got {value!r}")
    if not _NAME.match(value):
        raise ValueError(
            f"{value!r} must be 1 to 40 lower-case letters, digits and `-`, begin with a letter and not end with `-`"
        )
    return value


def cloud(value: Any) -> str:
    if value not in CLOUDS:
        raise ValueError(f"{value!r} is no cloud; known are {', '.join(CLOUDS)}")
    return str(value)
