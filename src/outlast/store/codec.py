"""Decoding of stored objects: returns a typed value, or raises Damaged with the object's key."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from outlast.errors import Damaged, Missing
from outlast.store.bucket import Bucket

T = TypeVar("T")

# Exceptions of a decoder for invalid bytes.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
HINT = "was it written by a newer outlast, or changed by hand?"

_decoders: dict[Any, Any] = {}
_first = threading.Lock()


def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return the decoder of a type, created by one thread at a time.

    msgspec crashes the process if two threads decode a new type at once, as parallel readers of runs may.
    """
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


def read_object(bucket: Bucket, key: str, kind: type[T]) -> T | None:
    """Return the value of an object; None if it does not exist. Raises Damaged."""
    try:
        return decoded(bucket.get(key), kind, key)
    except Missing:
        return None


_SEAL = b'{"sha256":"'


def sealed(body: bytes) -> bytes:
    """Put a checksum in front of the fields of a JSON object.

    Otherwise a flipped bit in a field's name would silently turn its value into the default.
    """
    return _SEAL + hashlib.sha256(body).hexdigest().encode() + b'",' + body[1:]


def unsealed(body: bytes, key: str) -> bytes:
    """Return the object without its checksum. Raises Damaged if it is wrong."""
    plain = b"{" + body[len(_SEAL) + 66 :]
    if sealed(plain) != body:
        raise Damaged(f"{key} is damaged: its checksum is wrong", hint=HINT)
    return plain


def read_all(names: Iterable[str], read: Callable[[str], T | None], damaged: dict[str, str]) -> list[T]:
    """Return the values that can be read; add the others to `damaged`, with the reason."""
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
