"""A trainer's state as a pickle, for programs with `pickle=True`: loading one runs code from it.

Accepts anything picklable, with NumPy arrays and PyTorch tensors (on any device) anywhere inside. Large buffers stay
outside the pickle: they are copied once and never parsed.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Sequence
from typing import Any

from outlast.trainer.arrays import Blob
from outlast.trainer.encode import UnsavableState


class _Pickler(pickle.Pickler):
    """Pickles tensors as buffers of plain bytes, with dtype and shape."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor) and type(value) in (torch.Tensor, torch.nn.Parameter):
            return _reduce_tensor(torch, value)
        return NotImplemented


def _reduce_tensor(torch: Any, tensor: Any) -> Any:
    plain = tensor.detach()
    if plain.layout != torch.strided:
        return NotImplemented
    plain = plain.cpu().contiguous()
    raw = plain.reshape(-1).view(torch.uint8).numpy() if plain.numel() else None
    dtype = str(plain.dtype).removeprefix("torch.")
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    buffer = pickle.PickleBuffer(raw) if raw is not None else b""
    return _make_tensor, (buffer, dtype, tuple(plain.shape), bool(tensor.requires_grad), is_parameter)


def _make_tensor(buffer: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool, is_parameter: bool) -> Any:
    import torch

    kind = getattr(torch, dtype)
    if len(memoryview(buffer)) == 0:
        tensor = torch.empty(shape, dtype=kind)
    else:
        view = memoryview(buffer)
        # A restored tensor must be writable, and its memory must begin where its type allows.
        aligned = not view.readonly and not torch.frombuffer(view, dtype=torch.uint8).data_ptr() % kind.itemsize
        tensor = torch.frombuffer(view if aligned else bytearray(view), dtype=torch.uint8).view(kind).reshape(shape)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)


def encode(state: Any) -> tuple[bytes, list[Blob]]:
    """Return the pickle and its buffers, which are views of the state's memory: copy them before the state changes."""
    buffers: list[Blob] = []

    def take(buffer: pickle.PickleBuffer) -> bool:
        try:
            view = buffer.raw()
        except BufferError:
            return True  # not contiguous: it goes into the pickle
        if view.nbytes < 4096:
            return True
        buffers.append(Blob.of(view))
        return False

    stream = io.BytesIO()
    try:
        _Pickler(stream, protocol=5, buffer_callback=take).dump(state)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as problem:
        raise UnsavableState(
            f"the state cannot be saved: {problem}", hint="save a dict of numbers, arrays, tensors and plain objects"
        ) from problem
    return stream.getvalue(), buffers


def decode(body: bytes | memoryview, buffers: Sequence[Any]) -> Any:
    """Return the state. Its arrays are writable if the buffers are."""
    return pickle.loads(body, buffers=buffers)
