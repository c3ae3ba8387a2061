"""Reads what a store hands us: a typed value, or Damaged with the name of the object. Never anything else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from outlast.errors import Damaged

T = TypeVar("T")

# What a decoder raises for bytes that are not what they should be.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
HINT = "was it written by a newer outlast, or changed by hand?"

_decoders: dict[Any, Any] = {}
_first = threading.Lock()


def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Made by one thread at a time: msgspec looks a type up when it is first decoded, and crashes the process if two
    threads begin that at once, as those may who read many runs in parallel."""
    found: msgspec.json.Decoder[T] | None = _decoders.get(kind)
    if found is None:
        with _first:
            found = _decoders[kind] = msgspec.json.Decoder(kind)
    return found


def decoded(body: bytes, kind: type[T], key: str) -> T:
    try:
        return _decoder(kind).decode(body)
    except UNREADABLE as problem:
        raise Damaged(f"{key} cannot be read: {problem}", hint=HINT) from problem


def readable(names: Iterable[str], read: Callable[[str], T | None], damaged: dict[str, str]) -> list[T]:
    """What is there. One that cannot be read hides none of the others: it is noted in `damaged`, with the reason."""
    found: list[T] = []
    for name in names:
        try:
            one = read(name)
        except Damaged as problem:
            damaged[name] = problem.message
            continue
        damaged.pop(name, None)
        if one is not None:
            found.append(one)
    return found
