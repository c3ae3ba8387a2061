"""Reads what a store hands us: a typed value, or Damaged with the name of the object. Never anything else."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from outlast.errors import Damaged

T = TypeVar("T")

# What a decoder raises for bytes that are not what they should be.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
HINT = "was it written by a newer outlast, or changed by hand?"


def decoded(body: bytes, kind: type[T], key: str) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE as problem:
        raise Damaged(f"{key} cannot be read: {problem}", hint=HINT) from problem
