"""PyTorch, sharded state: each rank saves its shards, and any number of ranks restores them.

A shard is stored as its tensor with its place in the whole one. A restore copies those parts of the saved shards that a
rank needs, one saved rank at a time, into the tensors that the program already has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor

from outlast.errors import UsageError

_SHARD = "outlast.shard"
# The first index of a shard in each dimension, and its shape.
Box = tuple[tuple[int, ...], tuple[int, ...]]


def is_sharded(part: object) -> bool:
    """Return whether a part is a model whose parameters are distributed tensors (FSDP2, tensor parallelism)."""
    return isinstance(part, torch.nn.Module) and any(isinstance(p, DTensor) for p in part.parameters())


def model_of(part: object, parts: Mapping[str, Any]) -> torch.nn.Module | None:
    """Return the sharded model that a part is, or whose parameters it optimizes; None for any other part."""
    if is_sharded(part):
        assert isinstance(part, torch.nn.Module)
        return part
    if not isinstance(part, torch.optim.Optimizer):
        return None
    own = {id(p) for group in part.param_groups for p in group["params"]}
    models = [model for model in parts.values() if is_sharded(model)]
    return next((model for model in models if own & {id(p) for p in model.parameters()}), None)


def state_of(part: Any, model: torch.nn.Module) -> dict[str, Any]:
    """Return the state of a sharded model, or of its optimizer by the names of the parameters."""
    state: dict[str, Any] = get_model_state_dict(model) if part is model else get_optimizer_state_dict(model, part)
    return state


def load_state(part: Any, model: torch.nn.Module, state: dict[str, Any]) -> None:
    if part is model:
        set_model_state_dict(model, state)
    else:
        set_optimizer_state_dict(model, part, optim_state_dict=state)


def plain(value: Any) -> Any:
    """Return a state with each distributed tensor replaced by this rank's shard and its place."""
    if isinstance(value, DTensor):
        begin, _ = _box(value)
        return {_SHARD: {"shape": tuple(value.shape), "begin": begin, "part": value.to_local()}}
    if isinstance(value, Mapping):
        return {key: plain(below) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(plain(below) for below in value)
    return value


def _box(tensor: DTensor) -> Box:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, begin = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple(begin), tuple(shape)


class Reshard:
    """Fills the tensors of a state from the shards of saved ranks."""

    def __init__(self, target: dict[str, Any]) -> None:
        self.target = target
        # Path → the boxes that were copied into the tensor there.
        self._copied: dict[str, set[Box]] = {}

    def add(self, saved: Mapping[str, Any]) -> None:
        """Copy what one saved rank has of this rank's shards; values that are not sharded come from the first rank."""
        self.target = self._merged(self.target, saved, "")

    @property
    def missing(self) -> str:
        """The path of a tensor that the ranks so far do not fill completely; empty if there is none."""
        return next(_each_tensor(self.target, "", self._lacks), "")

    def _lacks(self, path: str, tensor: DTensor) -> bool:
        filled = sum(math.prod(shape) for _, shape in self._copied.get(path, ()))
        return bool(filled < tensor.to_local().numel())

    def _merged(self, target: Any, saved: Any, path: str) -> Any:
        if isinstance(target, DTensor):
            self._copy(target, saved, path)
            return target
        if isinstance(target, Mapping) and isinstance(saved, Mapping) and _SHARD not in saved:
            if lacking := sorted(map(str, target.keys() - saved.keys())):
                raise UsageError(f"the checkpoint has no `{path}{lacking[0]}`", hint="restore it with the same model")
            return {key: self._merged(below, saved[key], f"{path}{key}.") for key, below in target.items()}
        return saved

    def _copy(self, target: DTensor, saved: Any, path: str) -> None:
        shard = saved.get(_SHARD) if isinstance(saved, Mapping) else None
        if shard is None or tuple(shard["shape"]) != tuple(target.shape):
            found = tuple(shard["shape"]) if shard else "not sharded"
            raise UsageError(f"`{path.rstrip('.')}` is {tuple(target.shape)} here, and {found} in the checkpoint")
        mine = _box(target)
        theirs: Box = (tuple(shard["begin"]), tuple(shard["part"].shape))
        common = _overlap(mine, theirs)
        if common is None or common in self._copied.setdefault(path, set()):
            return
        self._copied[path].add(common)
        local = target.to_local()
        with torch.no_grad():
            local[_within(common, mine)].copy_(shard["part"][_within(common, theirs)])


def _each_tensor(value: Any, path: str, lacks: Callable[[str, DTensor], bool]) -> Any:
    if isinstance(value, DTensor):
        if lacks(path, value):
            yield path.rstrip(".")
    elif isinstance(value, Mapping):
        for key, below in value.items():
            yield from _each_tensor(below, f"{path}{key}.", lacks)


def _overlap(one: Box, other: Box) -> Box | None:
    """Return the box that two boxes share; None if there is none."""
    begin = tuple(map(max, one[0], other[0]))
    ends = zip(one[0], one[1], other[0], other[1], strict=True)
    end = tuple(min(a + n, b + m) for a, n, b, m in ends)
    shape = tuple(e - b for b, e in zip(begin, end, strict=True))
    return (begin, shape) if min(shape, default=1) > 0 else None


def _within(box: Box, outer: Box) -> tuple[slice, ...]:
    starts = [begin - first for begin, first in zip(box[0], outer[0], strict=True)]
    return tuple(slice(start, start + size) for start, size in zip(starts, box[1], strict=True))
