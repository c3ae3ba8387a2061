"""Event files of TensorBoard, written without its packages: records of a length, a protobuf message and checksums."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from outlast.runs.metrics import Point

_CASTAGNOLI = 0x82F63B78
_MASK = 0xA282EAD8
_VERSION = b"brain.Event:2"
# Protobuf: field number and wire type.
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY = b"\x09", b"\x10", b"\x1a", b"\x2a"
_VALUE, _TAG, _SIMPLE_VALUE = b"\x0a", b"\x0a", b"\x15"


def event_file(series: Mapping[str, Sequence[Point]]) -> bytes:
    """Return an event file with one scalar per point."""
    begin = min((points[0].at for points in series.values() if points), default=0.0)
    return b"".join(_record(message) for message in _messages(series, begin))


def _messages(series: Mapping[str, Sequence[Point]], begin: float) -> Iterator[bytes]:
    yield _WALL_TIME + struct.pack("<d", begin) + _FILE_VERSION + _sized(_VERSION)
    for name, points in series.items():
        for point in points:
            value = _TAG + _sized(name.encode()) + _SIMPLE_VALUE + struct.pack("<f", _finite(point.value))
            summary = _VALUE + _sized(value)
            # A negative step is ten bytes of two's complement.
            step = _varint(point.step & 0xFFFFFFFFFFFFFFFF)
            yield _WALL_TIME + struct.pack("<d", point.at) + _STEP + step + _SUMMARY + _sized(summary)


def _finite(value: float) -> float:
    """Return the value as a 32-bit number can hold it."""
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
