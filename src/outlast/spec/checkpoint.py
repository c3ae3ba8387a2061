"""The reader of `[checkpoint]`: the folder or files that a program saves to and resumes from. No IO."""

from __future__ import annotations

import re
from typing import Any

from outlast.spec import fields, quantity
from outlast.spec.reader import Reader, count, text
from outlast.spec.spec import CheckpointSpec

# Extensions of checkpoints that are single files.
_FILE = re.compile(
    r"\.(pth?|ckpt|pkl|pickle|h5|hdf5|keras|np[yz]|safetensors|joblib|onnx|weights|json|ya?ml|txt|csv|bin|db|sqlite3?"
    r"|tar|t?gz|zip|zst|th|model|mdl|ubj|cbm|bst|msgpack|eqx|params|pdparams|pdopt|cbsnapshot|jsonl|parquet)$",
    re.IGNORECASE,
)
_PATTERN = re.compile(r"[*?[]")
_NOWHERE: tuple[str, tuple[str, ...]] = ("", ())


def read_checkpoint(reader: Reader) -> CheckpointSpec:
    if reader.table and "path" not in reader.table:
        reader.wrong("path", "missing: set the folder or file to which the program writes its checkpoints")
    path, names = reader.take("path", _path, _NOWHERE)
    checkpoint = CheckpointSpec(
        path=path,
        names=names,
        every_s=reader.take("every", quantity.duration_s, 0.0),
        keep=reader.take("keep", count, CheckpointSpec().keep),
        keep_every=reader.take("keep_every", count, 0),
        keep_best=reader.take("keep_best", _best, ""),
        keep_best_count=reader.take("keep_best_count", count, 1),
        on_notice=reader.take("on_notice", _on_notice, ""),
    )
    if "keep_best_count" in reader.table and "keep_best" not in reader.table:
        reader.wrong("keep_best_count", 'requires a metric; add keep_best = "min:loss"')
    reader.finish()
    return checkpoint


def _path(value: Any) -> tuple[str, tuple[str, ...]]:
    """Return the folder, and the names in it that belong to a checkpoint (none: all).

    A path with a file extension counts as a file. The agent creates folders before the program starts, and in place of
    a folder the program could not write its file. Items of a list are always names.
    """
    if isinstance(value, list):
        if not value:
            raise ValueError("must not be empty")
        return _together([fields.inside(item) for item in value])
    path = fields.inside(value)
    # `folder/*` means the folder.
    path = path.removesuffix("/*")
    if text(value).rstrip().endswith("/"):
        return _folder(path)
    return _together([path]) if _FILE.search(path) or _PATTERN.search(path) else _folder(path)


def _folder(path: str) -> tuple[str, tuple[str, ...]]:
    if _PATTERN.search(path):
        raise ValueError(f"expected a folder without a pattern, got {path!r}; remove the `/` at the end")
    return path, ()


def _together(paths: list[str]) -> tuple[str, tuple[str, ...]]:
    """Return the deepest folder that contains all paths, and their names relative to it."""
    if "." in paths or "*" in paths:
        raise ValueError('expected a part of the code folder; for all of it write path = "."')
    if any("**" in path for path in paths):
        raise ValueError("`**` is not supported: `*` matches within one name; name the folder instead")
    parts = [path.split("/") for path in paths]
    depth = 0
    while all(len(part) > depth + 1 and part[depth] == parts[0][depth] for part in parts):
        if _PATTERN.search(parts[0][depth]):
            break
        depth += 1
    return "/".join(parts[0][:depth]) or ".", tuple(dict.fromkeys("/".join(part[depth:]) for part in parts))


def _on_notice(value: Any) -> str:
    if value not in ("save-now", "work-on"):
        raise ValueError(f'expected "save-now" or "work-on", got {value!r}')
    return str(value)


def _best(value: Any) -> str:
    order, _, metric = text(value).partition(":")
    if order not in ("min", "max") or not metric.strip() or not metric.isprintable():
        raise ValueError(f'expected "min:METRIC" or "max:METRIC", such as "min:loss", got {value!r}')
    return f"{order}:{metric.strip()}"
