"""Plain English: markers of unclear prose are rejected in source, tests and documents; one class name, one meaning."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from tests.conventions.sources import ROOT, for_files, modules, shown, tracked, tree

# Each marker stood for sentences that readers had to read twice. The remedy: name the actor, use the field's verb.
MARKERS = {
    r"\b(whoever|whosoever|whomever|somebody|nobody)\b": "name the actor: a user, a process, a supervisor, a cloud",
    r"\banew\b": "again",
    r"\bwhat (is|was|are|were|has|had)\b": "name the thing: files that the run created",
    r"\bis no [`a-z]": "invalid `x`: expected …",
    r"\b(told|tells)\b": "reported, returned, logged",
    r"\bfor so long\b": "for this long, for N seconds",
    r"\bof its own\b": "a separate …, its own …",
    r"\bis (half|wholly) (made|making)\b": "is still being created",
    r"\blooked after\b": "supervised",
    r"\bby halves\b": "partly",
}
FORBIDDEN = re.compile("|".join(f"(?:{pattern})" for pattern in MARKERS), re.IGNORECASE)
SUFFIXES = {".py", ".md", ".sh", ".toml", ".css", ".js"}
# Text of other projects, and this list.
ALLOWED = {
    "LICENSE",
    "tests/conventions/test_language.py",
}
# User id 65534 is called so on every Linux.
ACCOUNT = re.compile(r"[\"'`]nobody[\"'`]|\bnobody:|=nobody\b|-u nobody|CommandUser nobody|\bnobody\s+ALL")

# Names that stand for one thing in two packages that never meet: a class of the wire and its reader.
SAME_NAME: set[str] = set()

TEXTS = [path for path in tracked() if path.suffix in SUFFIXES and path.relative_to(ROOT).as_posix() not in ALLOWED]


@for_files(TEXTS)
def test_prose_has_no_marker_of_unclear_language(path: Path) -> None:
    wrong = [
        f"{shown(path)}:{number}: `{found.group()}` in: {line.strip()[:120]}"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if (found := FORBIDDEN.search(ACCOUNT.sub("", line).replace("_", " ")))
    ]
    assert not wrong, "\n".join(wrong)


def test_every_marker_is_found() -> None:
    for sentence in (
        "whoever asks",
        "a database that is no database",
        "it was told",
        "written anew",
        "what is stored",
        "a root of its own",
        "silent for so long",
    ):
        assert FORBIDDEN.search(sentence), sentence
    assert not FORBIDDEN.search("The supervisor deletes the machine and logs the reason.")


@pytest.mark.full
def test_a_class_name_has_one_meaning() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in modules():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{shown(path)}:{node.lineno}")
    twice = {name: where for name, where in places.items() if len(where) > 1 and name not in SAME_NAME}
    assert not twice, "\n".join(f"{name}: {', '.join(where)}" for name, where in twice.items())
