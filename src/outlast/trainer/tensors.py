"""PyTorch's tensors and generators and JAX's arrays as plain fields, and back. Imports neither unless a state needs it.

Tensors are restored on the CPU. Tensors that cover exactly the same memory, as tied weights do, stay tied; any other
view becomes a separate tensor, so that a slice does not include the full one.
"""

from __future__ import annotations

import math
import re
import sys
from typing import Any

from outlast.trainer.arrays import Blob, MissingLibrary, Unsupported, array_fields, checked_shape, make_array, missing

_NUMBERS = {"int": (8, 16, 32, 64), "uint": (8, 16, 32, 64), "float": (16, 32, 64), "complex": (32, 64, 128)}
_FLOAT8 = ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
_DTYPES = frozenset(
    (
        *("bool", "bfloat16"),
        *(f"float8_{name}" for name in _FLOAT8),
        *(f"{kind}{bits}" for kind, every in _NUMBERS.items() for bits in every),
    )
)
_DEVICE = re.compile(r"(cpu|cuda|mps|xpu|meta)(:[0-9]{1,3})?")


def _torch() -> Any:
    try:
        import torch
    except ImportError as problem:
        raise missing("torch", problem) from problem
    return torch


def fields_of(value: Any) -> tuple[str, tuple[Any, ...]] | None:
    """Return the name and the fields of a value of PyTorch or JAX; None for any other. Raises Unsupported."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "Tensor"):
        if isinstance(value, torch.Tensor):
            return _tensor_fields(torch, value)
        if isinstance(value, torch.Size):
            return "torch.Size", (tuple(value),)
        if isinstance(value, torch.dtype):
            return "torch.dtype", (_dtype_name(value),)
        if isinstance(value, torch.device):
            return "torch.device", (str(value),)
        if isinstance(value, torch.Generator):
            return "torch.Generator", (str(value.device), value.get_state())
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(value, getattr(jax, "Array", ())):
        return _jax_fields(jax, value)
    return None


def _dtype_name(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise Unsupported(f"dtype {name} has no plain form", hint="save VALUE with another dtype")
    return name


def _tensor_fields(torch: Any, tensor: Any) -> tuple[str, tuple[Any, ...]]:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise Unsupported("only torch.Tensor and torch.nn.Parameter are plain tensors")
    plain = tensor.detach()
    if plain.layout != torch.strided or plain.is_nested:
        raise Unsupported(f"a tensor of layout {plain.layout} has no plain form", hint="save VALUE.to_dense()")
    if plain.is_meta:
        raise Unsupported("a tensor on the meta device has no data")
    dtype, shape, stride = _dtype_name(plain.dtype), tuple(plain.shape), plain.stride()
    device = plain.device
    key = (device.type, device.index, plain.data_ptr(), dtype, shape, stride, plain.is_conj(), plain.is_neg())
    # Other dense strides, such as channels_last, are kept; overlapping ones and gaps are not.
    if plain.is_contiguous() or not _is_dense(shape, stride):
        stride = ()
    name = "torch.Tensor" if type(tensor) is torch.Tensor else "torch.nn.Parameter"
    requires_grad, size = bool(tensor.requires_grad), plain.numel() * plain.element_size()
    if not size:
        return name, (dtype, shape, (), requires_grad, Blob.of(b""))
    return name, (dtype, shape, tuple(stride), requires_grad, Blob(lambda: _bytes_of(torch, plain, stride), size, key))


def _bytes_of(torch: Any, tensor: Any, stride: tuple[int, ...]) -> memoryview:
    """Return the bytes of a tensor in the order of these strides; empty: contiguous."""
    plain = tensor.resolve_conj().resolve_neg().cpu()
    if not stride:
        plain = plain.contiguous()
    elif tuple(plain.stride()) != tuple(stride):
        plain = torch.empty_strided(plain.shape, stride, dtype=plain.dtype).copy_(plain)
    return memoryview(plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy())


def _is_dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Return whether these strides visit each element of a block of memory once, in any order of the axes."""
    expected = 1
    for step, size in sorted((step, size) for step, size in zip(stride, shape, strict=True) if size != 1):
        if step != expected:
            return False
        expected *= size
    return True


def make_tensor(dtype: Any, shape: Any, stride: Any, requires_grad: Any, blob: Any) -> Any:
    """Return a tensor over the memory of the blob, which must have exactly its size."""
    torch = _torch()
    made, shape = make_dtype(dtype), checked_shape(shape)
    stride = checked_shape(stride)
    if type(blob) is not memoryview or math.prod(shape) * made.itemsize != blob.nbytes:
        raise ValueError("a tensor does not fit its bytes")
    if stride and (len(stride) != len(shape) or not _is_dense(shape, stride)):
        raise ValueError("strides of a tensor do not fit its shape")
    if not blob.nbytes:
        tensor = torch.empty(shape, dtype=made)
    else:
        flat = torch.frombuffer(blob, dtype=torch.uint8).view(made)
        tensor = flat.as_strided(shape, stride) if stride else flat.reshape(shape)
    return tensor.requires_grad_(requires_grad is True)


def make_parameter(dtype: Any, shape: Any, stride: Any, requires_grad: Any, blob: Any) -> Any:
    tensor = make_tensor(dtype, shape, stride, False, blob)
    return _torch().nn.Parameter(tensor, requires_grad=requires_grad is True)


def make_dtype(name: Any) -> Any:
    if name not in _DTYPES:
        raise ValueError("not a dtype of PyTorch")
    return getattr(_torch(), name)


def make_size(shape: Any) -> Any:
    return _torch().Size(checked_shape(shape))


def make_device(text: Any) -> Any:
    if not _DEVICE.fullmatch(text):
        raise ValueError("not a device of PyTorch")
    return _torch().device(text)


def make_generator(device: Any, state: Any) -> Any:
    wanted = make_device(device)
    try:
        made = _torch().Generator(wanted)
    except RuntimeError as problem:
        # Not BadCheckpoint: earlier checkpoints would fail, too, and the training would start at step 0.
        raise MissingLibrary(
            f"the checkpoint contains a torch.Generator on {device}, which is not available: {problem}",
            hint="save generator.get_state() instead of the generator",
        ) from problem
    made.set_state(state)
    return made


def _jax_fields(jax: Any, value: Any) -> tuple[str, tuple[Any, ...]]:
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
        raise Unsupported("a typed key has no plain form", hint="save jax.random.key_data(VALUE)")
    if isinstance(value, jax.core.Tracer) or not value.is_fully_addressable:
        raise Unsupported("this process does not hold all of it", hint="save its shards by rank")
    import numpy

    dtype, *_ = array_fields(numpy, numpy.empty(0, value.dtype))

    def view() -> memoryview:
        dense: Any = numpy.ascontiguousarray(value).reshape(-1)
        return memoryview(dense.view(numpy.uint8))

    blob = Blob(view, value.nbytes) if value.nbytes else Blob.of(b"")
    return "jax.Array", (dtype, tuple(value.shape), "C", blob)


def make_jax_array(dtype: Any, shape: Any, order: Any, blob: Any) -> Any:
    try:
        import jax
    except ImportError as problem:
        raise missing("jax", problem) from problem
    return jax.numpy.array(make_array(dtype, shape, order, blob))
