"""Reversible encoding of labels under Google's rules: lower-case letters, digits, `-` and `_`, at most 63.

A character that a label cannot contain becomes `_` and two hexadecimal digits for each of its bytes.
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
    """Return the label of a text. Raises BadRequest if it is too long."""
    encoded = _escape(text)
    if len(encoded) > _LENGTH_MAX:
        raise BadRequest(f"label `{text}` is too long for Google", hint=f"use at most {_LENGTH_MAX} characters")
    return encoded


def decode(text: str) -> str:
    """Return the text of a label. A label that `encode` cannot have produced is returned unchanged."""
    if _PLAIN.fullmatch(text):
        return text
    try:
        decoded = _ESCAPED.sub(lambda found: bytes.fromhex(found[0].replace("_", "")).decode(), text)
    except UnicodeDecodeError:
        return text
    return decoded if _escape(decoded) == text else text


def _escape(text: str) -> str:
    return _ODD.sub(lambda found: "".join(f"_{byte:02x}" for byte in found[0].encode()), text)


def encode_all(labels: Mapping[str, str]) -> dict[str, str]:
    for key in labels:
        if not key[:1].isalpha():
            raise BadRequest(f"invalid label `{key}`", hint="labels begin with a letter")
    return {encode(key): encode(value) for key, value in labels.items()}


def decode_all(labels: Mapping[str, str]) -> dict[str, str]:
    return {decode(key): decode(value) for key, value in labels.items()}


def filter_of(labels: Mapping[str, str]) -> str:
    """Return a filter expression for listings."""
    return " AND ".join(f'(labels.{key}="{value}")' for key, value in encode_all(labels).items())
