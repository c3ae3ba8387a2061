"""CRC32C compared with a bitwise algorithm and with published values."""

from __future__ import annotations

import random

import pytest

from outlast_gcp_emulator.storage.checksums import _EXPONENTS, BLOCK_BYTES, Checksums, crc32c, crc32c_text

DIVISOR = 0x11EDC6F41


def slow(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_the_four_terms_are_a_multiple_of_the_divisor() -> None:
    remainder = sum(1 << exponent for exponent in _EXPONENTS) | 1
    while remainder.bit_length() > 32:
        remainder ^= DIVISOR << remainder.bit_length() - 33
    assert remainder == 0


def test_crc32c_matches_published_values() -> None:
    # RFC 3720, B.4, and the usual check value.
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c_text(crc32c(b"")) == "AAAAAA=="


@pytest.mark.parametrize("size", [0, 1, 3, 700, 1249, 1250, 1251, 1300, 2048, 5000, 40_000])
def test_crc32c_matches_the_bitwise_algorithm(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert crc32c(data) == slow(data)
    cut = size // 3
    assert crc32c(data[cut:], crc32c(data[:cut])) == slow(data)


def test_crc32c_matches_googles_library_on_large_data() -> None:
    google = pytest.importorskip("google_crc32c", reason="google-crc32c is not installed")
    data = random.Random(7).randbytes(3 * BLOCK_BYTES + 12_345)
    assert crc32c(data) == google.value(data)
    sums = Checksums()
    for start in range(0, len(data), 100_001):
        sums.update(data[start : start + 100_001])
    assert (sums.crc32c, sums.size) == (google.value(data), len(data))
