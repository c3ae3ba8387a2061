"""Saves as groups of written files, and checkpoints that were committed between two files of a save. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from outlast.runs.state import Checkpoint

# Files that are written in turns, closer to each other than this, are written at once.
_AT_ONCE_S = 0.4
# So many saves show which files belong to each.
_SAVES_MIN = 2
# Times of files lose digits as floating-point numbers.
_ROUNDING_S = 1e-6
_NUMBER = re.compile(r"\d+")
_TEMPORARY = re.compile(r"tmp|temp|\.part|\.new$|~$|incomplete", re.IGNORECASE)


# Logs, tables, pictures and settings: frameworks write them at the start, and no program continues from them.
_NOT_STATE = re.compile(
    r"\.(?:log|jsonl|csv|tsv|ya?ml|toml|py|ipynb|md|html|png|svg|jpe?g|out|err|sh|lock)$|tfevents|"
    r"(?:^|/)[._]?(?:config|args|hparams|params|options|settings|tokenizer\w*|vocab\w*|\w*metadata|sharding|readme)"
    r"(?:\.(?:json|txt|proto|pbtxt))?$|"
    r"(?:^|/)(?:vis_data/.*|\d{8}_\d{6}|scalars|metrics|history|[^/]*(?:results?|logs?|training))\.json$|"
    r"(?:^|/)[^/]*(?:log|stdout|stderr|output|results?|metrics|history|requirements)[^/]*\.txt$",
    re.IGNORECASE,
)
_STATE = re.compile(r"(?:state|checkpoint|ckpt|resume|snapshot|weights)[^/]*\.\w+$", re.IGNORECASE)


# Formats of weights: beside such a file, others are not the state.
_WEIGHTS = re.compile(
    r"\.(?:pth?|ckpt|bin|safetensors|h5|keras|np[yz]|pkl|pickle|joblib|ubj|cbm|bkp|zip|tar|distcp|msgpack|onnx|index|"
    r"data-\d+-of-\d+)(?:\.(?:tar|gz|zst))?$",
    re.IGNORECASE,
)


def is_weights(path: str) -> bool:
    """Return whether a file has a format of weights, by its name."""
    return bool(_WEIGHTS.search(path))


def state_files(paths: Iterable[str]) -> set[str]:
    """Return the files that may hold the state: those in a format of weights, or without any, all but logs."""
    found = {path for path in paths if is_state(path)}
    return {path for path in found if is_weights(path)} or found


def is_state(path: str) -> bool:
    """Return whether a file may hold the state of a training, by its name."""
    return bool(_STATE.search(path)) or not _NOT_STATE.search(path)


class Save(msgspec.Struct, frozen=True):
    """The files of one save, without the numbers in their names → the last write of each."""

    files: dict[str, float]


def saves_of(writes: Iterable[tuple[float, str]]) -> list[Save]:
    """Group the writes of one attempt: a save ends where a file is written again after another one."""
    writes = list(writes)
    renamed = _renamed(writes)
    found: list[Save] = []
    last = ""
    for at, path in sorted(writes):
        name = _NUMBER.sub("#", path)
        if name in renamed or _TEMPORARY.search(name) or not is_state(path):
            continue
        if not found or (name in found[-1].files and name != last):
            found.append(Save({}))
        found[-1].files[name] = at
        last = name
    return found


def _renamed(writes: Iterable[tuple[float, str]]) -> set[str]:
    """Return the names of files that were renamed: another name has the same time of change, and was seen later."""
    first: dict[float, str] = {}
    found = set()
    for at, path in writes:
        name = _NUMBER.sub("#", path)
        if first.setdefault(at, name) != name:
            found.add(first[at])
    return found


def split_save(writes: Mapping[int, Iterable[tuple[float, str]]], committed: Checkpoint) -> tuple[str, ...]:
    """Return two files if the checkpoint was committed between them: the last one in it, and one that was to follow.

    A file belongs to a save if it is in every complete one; the last save of an attempt may be incomplete.
    """
    by_attempt = {attempt: saves_of(found) for attempt, found in writes.items()}
    complete = [save.files.keys() for saves in by_attempt.values() for save in saves[:-1]]
    if len(complete) < _SAVES_MIN:
        return ()
    whole = set(complete[0]).intersection(*complete[1:])
    until = (committed.changed_at or committed.at) + _ROUNDING_S
    written: dict[str, float] = {}
    current: dict[str, float] = {}
    for save in by_attempt.get(committed.attempt, []):
        current = {name: at for name, at in save.files.items() if at <= until} or current
        written.update(current)
    if not current:
        return ()
    newest = max(current, key=lambda name: current[name])
    for name in sorted(whole - current.keys()) if newest in whole else ():
        if current[newest] - written.get(name, 0.0) > _AT_ONCE_S:
            return newest, name
    return ()
