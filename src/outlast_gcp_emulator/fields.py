"""Partial answers: `fields=items(name,size),nextPageToken` leaves out all else."""

from __future__ import annotations

import json
import re
from typing import Any

from outlast_gcp_emulator.errors import invalid
from outlast_gcp_emulator.http_types import HttpAnswer, json_answer

# Name → what is wanted of it; nothing below means all of it.
Mask = dict[str, "Mask"]

_TOKENS = re.compile(r"[^,()/]+|[,()/]")


def parse_mask(text: str) -> Mask:
    """Raises Refused for a mask that is none."""
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
    """The part of a value that a mask wants."""
    if not mask or ("*" in mask and not mask["*"]):
        return value
    if isinstance(value, list):
        return [select(each, mask) for each in value]
    if isinstance(value, dict):
        wanted = mask.get("*")
        found = {name: mask.get(name, wanted) for name in value}
        return {name: select(value[name], below) for name, below in found.items() if below is not None}
    return value


def masked(answer: HttpAnswer, text: str) -> HttpAnswer:
    """The answer with the fields that were asked for; refusals and media stay as they are."""
    if answer.status != 200 or not answer.headers.get("Content-Type", "").startswith("application/json"):
        return answer
    if not isinstance(answer.body, bytes) or "x-goog-generation" in answer.headers:
        return answer
    return json_answer(select(json.loads(answer.body), parse_mask(text)))
