"""Event files of TensorBoard, written without its packages: records of a length, a protobuf message and checksums."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Protocol

_CASTAGNOLI = 0x82F63B78
_MASK = 0xA282EAD8
_VERSION = b"brain.Event:2"
# Protobuf: field number and wire type.
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY, _SESSION = b"\x09", b"\x10", b"\x1a", b"\x2a", b"\x3a"
_VALUE, _TAG, _SIMPLE_VALUE = b"\x0a", b"\x0a", b"\x15"


# SessionLog: `status` is START.
_START = b"\x08\x01"


class Scalar(Protocol):
    """A value of one metric."""

    @property
    def step(self) -> int: ...
    @property
    def value(self) -> float: ...
    @property
    def at(self) -> float: ...


def event_file(series: Mapping[str, Sequence[Scalar]]) -> bytes:
    """Return an event file with one scalar per point."""
    begin = min((points[0].at for points in series.values() if points), default=0.0)
    records = [file_begin(begin)]
    for name, points in series.items():
        records += [scalars(point.step, point.at, {name: point.value}) for point in points]
    return b"".join(records)


def file_begin(at: float) -> bytes:
    """Return the first record of a file."""
    return _record(_WALL_TIME + struct.pack("<d", at) + _FILE_VERSION + _sized(_VERSION))


def restart(step: int, at: float) -> bytes:
    """Return the record after which readers drop the values of earlier files from this step on."""
    return _record(_WALL_TIME + struct.pack("<d", at) + _step(step) + _SESSION + _sized(_START))


def scalars(step: int, at: float, values: Mapping[str, float]) -> bytes:
    """Return the record of the values of one step."""
    summary = b"".join(
        _VALUE + _sized(_TAG + _sized(name.encode()) + _SIMPLE_VALUE + struct.pack("<f", _finite(value)))
        for name, value in values.items()
    )
    return _record(_WALL_TIME + struct.pack("<d", at) + _step(step) + _SUMMARY + _sized(summary))


def _step(step: int) -> bytes:
    # A negative step is ten bytes of two's complement.
    return _STEP + _varint(step & 0xFFFFFFFFFFFFFFFF)


def _finite(value: float) -> float:
    """Return the value as a 32-bit number can hold it."""
    if math.isnan(value):
        return value
    largest = 3.4028234663852886e38
    return max(-largest, min(largest, value))


def _sized(body: bytes) -> bytes:
    return _varint(len(body)) + body


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _record(message: bytes) -> bytes:
    length = struct.pack("<Q", len(message))
    return length + _masked_crc(length) + message + _masked_crc(message)


def _masked_crc(body: bytes) -> bytes:
    crc = 0xFFFFFFFF
    table = _crc_table()
    for byte in body:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF)


@cache
def _crc_table() -> tuple[int, ...]:
    def entry(number: int) -> int:
        for _ in range(8):
            number = number >> 1 ^ (_CASTAGNOLI if number & 1 else 0)
        return number

    return tuple(entry(number) for number in range(256))
