"""Utilisation of NVIDIA GPUs, from the driver's library. A bare machine needs no package for it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import msgspec

_LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0


class GpuReading(msgspec.Struct, frozen=True):
    """One GPU now: the share of the last moments in which it computed, and its memory in bytes."""

    busy: float
    memory_bytes: int
    memory_total: int


class _Rates(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Gpus:
    """The GPUs of this machine; none if the driver is missing or does not answer."""

    def __init__(self, load: Callable[[str], ctypes.CDLL] = ctypes.CDLL) -> None:
        self._handles: list[ctypes.c_void_p] = []
        try:
            self._library = load(_LIBRARY)
            if self._library.nvmlInit_v2() == _SUCCESS:
                self._handles = self._find()
        except (OSError, AttributeError):
            pass  # no driver, or one that is too old

    def _find(self) -> list[ctypes.c_void_p]:
        count = ctypes.c_uint()
        if self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != _SUCCESS:
            return []
        found = []
        for number in range(count.value):
            handle = ctypes.c_void_p()
            if self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(number), ctypes.byref(handle)) == _SUCCESS:
                found.append(handle)
        return found

    def read(self) -> tuple[GpuReading, ...]:
        return tuple(one for handle in self._handles if (one := self._read(handle)) is not None)

    def _read(self, handle: ctypes.c_void_p) -> GpuReading | None:
        rates, memory = _Rates(), _Memory()
        if self._library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)) != _SUCCESS:
            return None
        if self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) != _SUCCESS:
            return None
        return GpuReading(rates.gpu / 100, memory.used, memory.total)
