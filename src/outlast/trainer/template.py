"""Restores into a template: the arrays and tensors of a checkpoint are copied into those that the program already has.

So a restore needs no second copy of the state, and may be partial: only what the template has.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

from outlast.errors import UsageError


def fill(template: Any, saved: Any, *, partial: bool) -> tuple[Any, list[str]]:
    """Return the template with the saved values, and the places that the checkpoint does not fit.

    Dictionaries, lists, NumPy arrays and PyTorch tensors are filled in place; other values are replaced. Values that
    only the checkpoint has are left out. Raises UsageError if a value is missing or has another shape, unless
    `partial`; then nothing was changed.
    """
    problems: list[str] = []
    _fill(template, saved, "state", problems, write=False)
    if problems and not partial:
        raise UsageError(
            f"the checkpoint does not fit the template: {problems[0]}",
            hint="restore it into a state of the same form, or keep such values with partial=True",
        )
    return _fill(template, saved, "state", [], write=True), problems


def _fill(template: Any, saved: Any, path: str, problems: list[str], *, write: bool) -> Any:
    if isinstance(template, dict):
        return _fill_dict(template, saved, path, problems, write=write)
    if isinstance(template, list | tuple) and isinstance(saved, list | tuple):
        if len(template) != len(saved) and _has_array(template):
            problems.append(f"{path} has {len(template)} elements here, and {len(saved)} in the checkpoint")
            return template
        if len(template) == len(saved):
            pairs = enumerate(zip(template, saved, strict=True))
            filled = [_fill(one, other, f"{path}[{n}]", problems, write=write) for n, (one, other) in pairs]
            return filled if isinstance(template, list) else tuple(filled)
    if _is_array(template):
        return _copy(template, saved, path, problems, write=write)
    # A copy: the arrays in it are backed by the file of the checkpoint.
    return copy.deepcopy(saved) if write else saved


def _fill_dict(template: dict[Any, Any], saved: Any, path: str, problems: list[str], *, write: bool) -> dict[Any, Any]:
    if not isinstance(saved, dict):
        problems.append(f"{path} is a dict here, and {type(saved).__name__} in the checkpoint")
        return template
    for key, below in template.items():
        if key not in saved:
            problems.append(f"{path}[{key!r}] is missing in the checkpoint")
            continue
        filled = _fill(below, saved[key], f"{path}[{key!r}]", problems, write=write)
        if write:
            template[key] = filled
    return template


def _has_array(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_array, value.values()))
    return any(map(_has_array, value)) if isinstance(value, list | tuple) else _is_array(value)


def _is_array(value: Any) -> bool:
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    return bool((numpy and isinstance(value, numpy.ndarray)) or (torch and isinstance(value, torch.Tensor)))


def _copy(template: Any, saved: Any, path: str, problems: list[str], *, write: bool) -> Any:
    if not _is_array(saved) or tuple(template.shape) != tuple(saved.shape):
        found = tuple(saved.shape) if hasattr(saved, "shape") else type(saved).__name__
        problems.append(f"{path} is {tuple(template.shape)} here, and {found} in the checkpoint")
    elif write and hasattr(template, "copy_"):
        # A tensor on any device; a parameter that is trained refuses to be changed without this.
        with sys.modules["torch"].no_grad():
            template.copy_(saved)
    elif write:
        template[...] = saved
    return template
