"""Rules of frameworks: whether a folder is a complete checkpoint, by the names of the files in it. A table, and pure.

Programs of users share the folder names of Hugging Face (`checkpoint-500`) and, with `save_pretrained`, its files, but
never write its last file. The table distinguishes them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

_NUMBERED = re.compile(r"checkpoint-(\d{1,18})")
# Files that Hugging Face writes before the weights.
_DESCRIPTION = re.compile(
    r"(generation_|adapter_|tokenizer_|preprocessor_|processor_)?config\.json|README\.md|.*\.jinja"
)
# Files that it writes next. `model.pt` and `optimizer.pt` alone are those of a user's training loop.
_WEIGHTS = re.compile(r"(pytorch_|adapter_)?model.*\.(safetensors|bin)|.*\.index\.json|training_args\.bin")


class FolderFacts(NamedTuple):
    """The facts about one folder that the rules read."""

    # Names of the files in it.
    names: Collection[str]
    # It is the checkpoint folder itself, not one inside of it.
    is_top: bool = False
    # It is called `checkpoint-NUMBER`.
    is_numbered: bool = False
    # Beside it is one with a higher number: the program has gone on.
    is_superseded: bool = False
    # No process writes any more.
    command_ended: bool = False
    # It has the part of one machine; rank 0 writes what completes the checkpoint on its own machine.
    is_part: bool = False


class FrameworkRule(NamedTuple):
    """If `applies`, the folder is `complete` or not, and later rules are not read."""

    framework: str
    applies: Callable[[FolderFacts], bool]
    complete: bool


RULES = (
    # `.metadata` is written last, on the machine with rank 0.
    FrameworkRule(
        "PyTorch distributed",
        lambda facts: (
            any(name.endswith(".distcp") for name in facts.names)
            and ".metadata" not in facts.names
            and not facts.is_part
        ),
        complete=False,
    ),
    FrameworkRule("Hugging Face", lambda facts: _has_incomplete_marker(facts) and not facts.is_top, complete=False),
    FrameworkRule("Hugging Face", lambda facts: _has_incomplete_marker(facts), complete=True),
    FrameworkRule("any other", lambda facts: not facts.is_numbered, complete=True),
    # The state of the trainer is written last.
    FrameworkRule("Hugging Face", lambda facts: "trainer_state.json" in facts.names, complete=True),
    FrameworkRule("a user's loop", lambda facts: facts.is_superseded, complete=True),
    FrameworkRule("Hugging Face", lambda facts: all(map(_DESCRIPTION.fullmatch, facts.names)), complete=False),
    FrameworkRule(
        "a user's loop",
        lambda facts: facts.command_ended and "training_args.bin" not in facts.names,
        complete=True,
    ),
    # The states of the random number generators are written last.
    FrameworkRule(
        "Accelerate", lambda facts: any(name.startswith("random_states_") for name in facts.names), complete=True
    ),
    FrameworkRule("Hugging Face", lambda facts: any(map(_WEIGHTS.fullmatch, facts.names)), complete=False),
)


def is_complete(facts: FolderFacts) -> bool:
    """Return the result of the first rule that applies; a folder that no framework claims is complete."""
    return next((rule.complete for rule in RULES if rule.applies(facts)), True)


def incomplete_folders(
    files: Mapping[str, Collection[str]], *, command_ended: bool, is_part: bool = False
) -> tuple[list[str], bool]:
    """Return the incomplete folders, and whether one of them is the only checkpoint among its siblings.

    `files` maps each folder to the names of its files; the checkpoint folder itself is "".
    """
    numbers = {
        folder: int(number[1])
        for folder in {folder for below in files for folder in _with_parents(below)}
        if (number := _NUMBERED.fullmatch(os.path.basename(folder)))
    }
    siblings: dict[str, list[str]] = {}
    for folder in numbers:
        siblings.setdefault(os.path.dirname(folder), []).append(folder)
    newest = {parent: max(numbers[folder] for folder in of) for parent, of in siblings.items()}

    def facts(folder: str, names: Collection[str]) -> FolderFacts:
        return FolderFacts(
            names,
            is_top=not folder,
            is_numbered=folder in numbers,
            is_superseded=folder in numbers and numbers[folder] < newest[os.path.dirname(folder)],
            command_ended=command_ended,
            is_part=is_part,
        )

    incomplete = [folder for folder, names in files.items() if not is_complete(facts(folder, names))]
    hidden = set(incomplete)
    only = any(folder in numbers and hidden.issuperset(siblings[os.path.dirname(folder)]) for folder in incomplete)
    return incomplete, only


def _has_incomplete_marker(facts: FolderFacts) -> bool:
    return "checkpoint-is-incomplete.txt" in facts.names


def _with_parents(folder: str) -> Iterator[str]:
    while folder:
        yield folder
        folder = os.path.dirname(folder)
