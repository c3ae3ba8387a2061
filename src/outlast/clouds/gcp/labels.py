"""Labels under Google's rules: lower-case letters, digits, `-` and `_`, at most 63. Ours go there and back unharmed.

A character that may not stand in a label becomes `_` and the two hexadecimal digits of each of its bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from outlast.errors import BadRequest

_LENGTH_MAX = 63
_PLAIN = re.compile(r"[a-z0-9-]*")
_ODD = re.compile(r"[^a-z0-9-]")
_ESCAPED = re.compile(r"(?:_[0-9a-f]{2})+")


def encode(text: str) -> str:
    """Raises BadRequest for what is too long."""
    told = _ODD.sub(lambda found: "".join(f"_{byte:02x}" for byte in found[0].encode()), text)
    if len(told) > _LENGTH_MAX:
        raise BadRequest(f"`{text}` is too long for a label of Google's", hint=f"at most {_LENGTH_MAX} characters")
    return told


def decode(text: str) -> str:
    """What was encoded; a label that somebody else wrote, and that only looks so, stays as it is."""
    if _PLAIN.fullmatch(text):
        return text
    try:
        told = _ESCAPED.sub(lambda found: bytes.fromhex(found[0].replace("_", "")).decode(), text)
    except UnicodeDecodeError:
        return text
    return told if _ODD.sub(lambda found: "".join(f"_{b:02x}" for b in found[0].encode()), told) == text else text


def encode_all(labels: Mapping[str, str]) -> dict[str, str]:
    for key in labels:
        if not key[:1].isalpha():
            raise BadRequest(f"`{key}` cannot be a label", hint="labels begin with a letter")
    return {encode(key): encode(value) for key, value in labels.items()}


def decode_all(labels: Mapping[str, str]) -> dict[str, str]:
    return {decode(key): decode(value) for key, value in labels.items()}


def filter_of(labels: Mapping[str, str]) -> str:
    """What a listing is asked for."""
    return " AND ".join(f'(labels.{key}="{value}")' for key, value in encode_all(labels).items())
