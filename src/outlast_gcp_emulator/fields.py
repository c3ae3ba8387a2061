"""Partial responses: `fields=items(name,size),nextPageToken` selects the returned fields."""

from __future__ import annotations

import json
import re
from typing import Any

from outlast_gcp_emulator.errors import invalid
from outlast_gcp_emulator.http_types import HttpResponse, json_response

# Name → mask of its value; an empty mask selects everything.
Mask = dict[str, "Mask"]

_TOKENS = re.compile(r"[^,()/]+|[,()/]")


def parse_mask(text: str) -> Mask:
    """Parse a field mask. Raises ApiError for an invalid one."""
    tokens = [token.strip() for token in _TOKENS.findall(text) if token.strip()]
    mask, rest = _parse_list(tokens)
    if rest:
        raise invalid(f"Invalid field selection {text}")
    return mask


def _parse_list(tokens: list[str]) -> tuple[Mask, list[str]]:
    mask: Mask = {}
    while tokens and tokens[0] != ")":
        tokens = _parse_one(tokens, mask)
        if tokens and tokens[0] == ",":
            tokens = tokens[1:]
    return mask, tokens


def _parse_one(tokens: list[str], mask: Mask) -> list[str]:
    name, tokens = tokens[0], tokens[1:]
    if name in ("(", ",", "/"):
        raise invalid(f"Invalid field selection {name}")
    below = mask.setdefault(name, {})
    if tokens[:1] == ["/"]:
        if len(tokens) < 2:
            raise invalid(f"Invalid field selection {name}/")
        return _parse_one(tokens[1:], below)
    if tokens[:1] == ["("]:
        inner, tokens = _parse_list(tokens[1:])
        if tokens[:1] != [")"]:
            raise invalid(f"Invalid field selection {name}(")
        below.update(inner)
        return tokens[1:]
    return tokens


def select(value: Any, mask: Mask) -> Any:
    """Return the part of a value that a mask selects."""
    if not mask or ("*" in mask and not mask["*"]):
        return value
    if isinstance(value, list):
        return [select(item, mask) for item in value]
    if isinstance(value, dict):
        others = mask.get("*")
        found = {name: mask.get(name, others) for name in value}
        return {name: select(value[name], below) for name, below in found.items() if below is not None}
    return value


def masked(response: HttpResponse, text: str) -> HttpResponse:
    """Return the response with the selected fields. Errors and media are unchanged."""
    if response.status != 200 or not response.headers.get("Content-Type", "").startswith("application/json"):
        return response
    if not isinstance(response.body, bytes) or "x-goog-generation" in response.headers:
        return response
    return json_response(select(json.loads(response.body), parse_mask(text)))
