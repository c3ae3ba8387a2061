"""NumPy's arrays, scalars, dtypes and generators as plain fields, and back. Imports NumPy only if a state needs it."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from typing import Any

from outlast.errors import OutlastError

_SIMPLE = re.compile(r"[<>|][biufcmMSUV][0-9]{1,10}(\[[0-9]{0,10}[a-zA-Z]{1,7}\])?")
# Number types that JAX and other libraries add to NumPy.
_FLOAT8 = ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
_ML_DTYPES = frozenset(("bfloat16", *(f"float8_{name}" for name in _FLOAT8)))
_BIT_GENERATORS = frozenset(("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"))
# Positions in a generator's block of numbers, with the last valid one. NumPy does not check them and would read
# memory out of bounds.
_POSITIONS = {"pos": 624, "buffer_pos": 4}


class Unsupported(Exception):
    """A value that plain data cannot express; in `hint`, VALUE stands for its path in the state."""

    def __init__(self, why: str = "", *, hint: str = "") -> None:
        super().__init__(why)
        self.why, self.hint = why, hint


class MissingLibrary(OutlastError):
    """A checkpoint contains values of a library that is not installed."""


class Blob:
    """Raw bytes of a value. Blobs of one `key` are the same memory: stored once, and restored as one.

    A `view` that copies, from a device or into a dense block, is created when it is used: copies of all values at once
    would need as much memory as the state.
    """

    __slots__ = ("key", "nbytes", "view")

    def __init__(self, view: Callable[[], memoryview], nbytes: int, key: object = None) -> None:
        self.view, self.nbytes, self.key = view, nbytes, key

    @classmethod
    def of(cls, content: bytes | bytearray | memoryview) -> Blob:
        view = memoryview(content)
        return cls(lambda: view, view.nbytes)


def missing(name: str, problem: ImportError) -> MissingLibrary:
    return MissingLibrary(
        f"the checkpoint contains values of {name}, which cannot be imported: {problem}", hint=f"install {name}"
    )


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as problem:
        raise missing("numpy", problem) from problem
    return numpy


def fields_of(value: Any) -> tuple[str, tuple[Any, ...]] | None:
    """Return the name and the fields of a value of NumPy; None for any other. Raises Unsupported."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(value, numpy.ndarray):
        if type(value) not in (numpy.ndarray, numpy.memmap):
            raise Unsupported("only arrays of type numpy.ndarray are plain", hint=_hint_of_subclass(numpy, value))
        return "numpy.ndarray", array_fields(numpy, value)
    if isinstance(value, numpy.generic):
        dtype, _, _, blob = array_fields(numpy, numpy.asarray(value))
        return "numpy.generic", (dtype, blob)
    if isinstance(value, numpy.dtype):
        return "numpy.dtype", (_dtype_fields(numpy, value),)
    if type(value) is numpy.random.Generator:
        return "numpy.random.Generator", (_state_of(value.bit_generator),)
    if type(value) is numpy.random.RandomState:
        return "numpy.random.RandomState", (value.get_state(legacy=False),)
    return None


def _hint_of_subclass(numpy: Any, value: Any) -> str:
    if isinstance(value, numpy.ma.MaskedArray):
        return "save VALUE.data and VALUE.mask"
    return "save numpy.asarray(VALUE)"


def array_fields(numpy: Any, array: Any) -> tuple[Any, Any, Any, Blob]:
    """Return dtype, shape, order of the memory (`C` or `F`) and the bytes, which are not copied if they are dense."""
    dtype = _dtype_fields(numpy, array.dtype)
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    if not array.nbytes:
        return dtype, array.shape, "C", Blob.of(b"")

    def view() -> memoryview:
        dense = numpy.ascontiguousarray(array.T if fortran else array).reshape(-1)
        return memoryview(dense.view(numpy.uint8))

    return dtype, array.shape, "F" if fortran else "C", Blob(view, array.nbytes)


def _dtype_fields(numpy: Any, dtype: Any) -> Any:
    """Return the text of a simple dtype, a tuple for one with fields or of subarrays."""
    if dtype.hasobject:
        raise Unsupported("it holds Python objects", hint="save VALUE.tolist()")
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return "subarray", _dtype_fields(numpy, base), shape
    if dtype.names is not None:
        parts = [dtype.fields[name] for name in dtype.names]
        formats = tuple(_dtype_fields(numpy, part[0]) for part in parts)
        return "struct", dtype.names, formats, tuple(part[1] for part in parts), dtype.itemsize, dtype.isalignedstruct
    if dtype.type.__module__.split(".")[0] == "ml_dtypes" and dtype.name in _ML_DTYPES:
        return f"ml_dtypes.{dtype.name}"
    if not _SIMPLE.fullmatch(dtype.str) or numpy.dtype(dtype.str) != dtype:
        raise Unsupported(f"its dtype {dtype} has no plain form", hint="save VALUE with another dtype")
    return dtype.str


def make_dtype(fields: Any) -> Any:
    numpy = _numpy()
    if isinstance(fields, str):
        dtype = _simple_dtype(numpy, fields)
    elif fields[0] == "subarray":
        _, base, shape = fields
        dtype = numpy.dtype((make_dtype(base), checked_shape(shape)))
    else:
        kind, names, formats, offsets, itemsize, aligned = fields
        _require_tuples(names, formats, offsets)
        if kind != "struct" or not all(type(name) is str for name in names):
            raise ValueError("not a dtype")
        layout = {"names": list(names), "formats": [make_dtype(one) for one in formats], "offsets": list(offsets)}
        dtype = numpy.dtype({**layout, "itemsize": itemsize}, align=bool(aligned))
    if dtype.hasobject:
        raise ValueError("a dtype holds Python objects")
    return dtype


def _require_tuples(*values: Any) -> None:
    if any(type(value) is not tuple for value in values):
        raise ValueError("not a tuple")


def _simple_dtype(numpy: Any, text: str) -> Any:
    if text.startswith("ml_dtypes.") and text[10:] in _ML_DTYPES:
        try:
            import ml_dtypes
        except ImportError as problem:
            raise missing("ml_dtypes", problem) from problem
        return numpy.dtype(getattr(ml_dtypes, text[10:]))
    if not _SIMPLE.fullmatch(text):
        raise ValueError("not a dtype")
    return numpy.dtype(text)


def checked_shape(shape: Any) -> tuple[int, ...]:
    if type(shape) is not tuple or not all(type(size) is int and 0 <= size < 1 << 62 for size in shape):
        raise ValueError("not a shape")
    return shape


def make_array(dtype: Any, shape: Any, order: Any, blob: Any) -> Any:
    """Return an array over the memory of the blob, which must have exactly its size."""
    numpy = _numpy()
    made, shape = make_dtype(dtype), checked_shape(shape)
    if type(blob) is not memoryview or math.prod(shape) * made.itemsize != blob.nbytes or order not in ("C", "F"):
        raise ValueError("an array does not fit its bytes")
    return numpy.ndarray(shape, made, buffer=blob, order=order)


def make_scalar(dtype: Any, blob: Any) -> Any:
    return make_array(dtype, (), "C", blob)[()]


def _state_of(bit_generator: Any) -> dict[str, Any]:
    if type(bit_generator).__name__ not in _BIT_GENERATORS:
        raise Unsupported("its bit generator is not one of NumPy's", hint="save VALUE.bit_generator.state")
    state: dict[str, Any] = bit_generator.state
    return state


def make_generator(state: Any) -> Any:
    return _numpy().random.Generator(_make_bit_generator(state))


def make_random_state(state: Any) -> Any:
    numpy = _numpy()
    made = numpy.random.RandomState(_make_bit_generator(state))
    made.set_state(state)
    return made


def _make_bit_generator(state: Any) -> Any:
    name = state["bit_generator"]
    if name not in _BIT_GENERATORS:
        raise ValueError("not a bit generator of NumPy")
    check_generator(state)
    check_generator(state["state"])
    made = getattr(_numpy().random, name)(0)
    made.state = state
    return made


def check_generator(state: dict[str, Any]) -> None:
    """Refuse a state whose position is outside the generator's block of numbers. Raises ValueError."""
    for name, last in _POSITIONS.items():
        if name in state and not (isinstance(state[name], int) and 0 <= state[name] <= last):
            raise ValueError(f"a generator's {name} is not in 0 to {last}")
