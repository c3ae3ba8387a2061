"""MD5 and CRC32C of streams. The standard library has no CRC32C; this one reaches 300 MB/s without C.

A checksum is the remainder of the message, a polynomial over GF(2), divided by another one. x^5685 + x^1362 + x^426 + 1
is a multiple of the divisor of CRC32C (found by search; a test checks it), so x^5685 may be replaced by the three other
terms: three shifts of a big integer. Squaring keeps it a multiple and doubles all exponents, so one shift may be as
long as half the message. Each step shortens the message considerably; the last few hundred bytes go through the usual
table.
"""

from __future__ import annotations

import base64
import hashlib

BLOCK_BYTES = 256 * 1024

_EXPONENTS = (5685, 1362, 426)
_DIVISOR = 0x82F63B78
# The bits that one step removes: whole bytes, so that the rest is a message again.
_STEP = (_EXPONENTS[0] - _EXPONENTS[1]) // 8 * 8


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_DIVISOR if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


def crc32c(data: bytes, crc: int = 0) -> int:
    """Return the checksum after these bytes; `crc` is the checksum of the bytes before them."""
    for start in range(0, len(data), BLOCK_BYTES):
        crc = _block(data[start : start + BLOCK_BYTES], crc)
    return crc


def _block(data: bytes, crc: int) -> int:
    crc ^= 0xFFFFFFFF
    if len(data) * 8 >= _EXPONENTS[0] + _STEP + 32:
        # CRC32C is reflected: the lowest bit of the first byte is the highest power, so steps remove low bits.
        data, crc = _folded(int.from_bytes(data, "little") ^ crc, len(data) * 8), 0
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _folded(message: int, bits: int) -> bytes:
    """Return a short message with the same remainder."""
    top, middle, low = _EXPONENTS
    doubled = 0
    while (top + _STEP) << doubled + 1 <= bits:
        doubled += 1
    for scale in range(doubled, -1, -1):
        step = _STEP << scale
        shifts = [(distance << scale) - step for distance in (top - middle, top - low, top)]
        while bits >= (top << scale) + step:
            low_bits = message & (1 << step) - 1
            message = message >> step ^ low_bits << shifts[0] ^ low_bits << shifts[1] ^ low_bits << shifts[2]
            bits -= step
    return message.to_bytes(bits // 8, "little")


class Checksums:
    """Computes both checksums and the size of a stream."""

    def __init__(self) -> None:
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._crc32c = 0
        # Small pieces are collected, because whole blocks are ten times as fast.
        self._pending = bytearray()
        self.size = 0

    def update(self, data: bytes) -> None:
        self._md5.update(data)
        self._pending += data
        self.size += len(data)
        if len(self._pending) >= BLOCK_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._crc32c = crc32c(bytes(self._pending), self._crc32c)
        self._pending.clear()

    @property
    def crc32c(self) -> int:
        self._flush()
        return self._crc32c

    @property
    def md5(self) -> bytes:
        return self._md5.digest()


def crc32c_text(crc: int) -> str:
    """Return a CRC32C as Google writes it: big-endian, base64."""
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


def md5_text(md5: bytes) -> str:
    return base64.b64encode(md5).decode()
