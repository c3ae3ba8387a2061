"""Our reading of ignore rules agrees with the real git."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from outlast.code.ignore import Patterns
from outlast.code.source_files import SourceTree

NAMES = st.sampled_from(["a", "b", "ab", "a.log", "b.log", "keep", "A", "a b", "x1", "-", "]", "a\\b", "é", "!a", "#a"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
PLAIN = ("a", "b", "ab", "keep", ".log", "x1", "*", "**", "?", "/", "/", "\\", " ", "é", "!", "#", "-", "]", "\t", "\r")
SETS = (
    "[ab]",
    "[!a]",
    "[^a]",
    "[a-c]",
    "[]]",
    "[]-]",
    "[[:alpha:]]",
    "[[:digit:]x]",
    "[a",
    "[[:bad:]]",
    "[\\]]",
    "[a-",
)
ODD_SETS = ("[", "**/", "/**", "/**/", "[--a]", "[a/]", "[[:upper:]", "[b-a]", "[!]a]", "\\ ")
ATOMS = st.sampled_from([*PLAIN, *SETS, *ODD_SETS])
LINES = st.one_of(
    st.lists(ATOMS, min_size=1, max_size=5).map("".join),
    st.sampled_from(
        ["a/", "!keep/", "*.log", "!a", "/a", "a/*", "!a/b", "**/a", "a/**", "a/**/b", "*", "!*/", "!*.log"]
    ),
)
RULES = st.lists(LINES, max_size=5).map("\n".join)


def _make(root: str, paths: list[str], rules: dict[str, str]) -> None:
    for path in paths:
        target = os.path.join(root, path)
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            Path(target).touch()
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            continue
    for folder, text in rules.items():
        if os.path.isdir(os.path.join(root, folder)):
            Path(root, folder, ".gitignore").write_bytes(text.encode())


@pytest.mark.full
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    paths=st.lists(PATHS, min_size=1, max_size=15),
    rules=st.dictionaries(st.one_of(st.just(""), PATHS), RULES, max_size=3),
    part=st.one_of(st.just(""), PATHS),
)
@example(paths=["keep/a.log", "keep/b"], rules={"": "*.log\n!keep/"}, part="")
@example(paths=["ab/a/b", "a/b"], rules={"": "a**/b"}, part="")
@example(paths=["a/b/x1"], rules={"": "a/*", "a": "!b"}, part="a")
def test_agrees_with_git_about_any_rules(paths: list[str], rules: dict[str, str], part: str) -> None:
    with tempfile.TemporaryDirectory() as root:
        subprocess.run(["git", "init", "-q", root], check=True)
        _make(root, paths, rules)
        folder = os.path.join(root, part)
        if not os.path.isdir(folder):
            folder = root
        with_git = [found.path for found in SourceTree(folder).files]
        without = [found.path for found in SourceTree(folder, use_git=False).files]
        assert without == with_git


@pytest.mark.parametrize(
    ("line", "path", "ignored"),
    [
        ("*.log", "a/b.log", True),
        ("/a", "b/a", None),
        ("a/b", "c/a/b", None),
        ("a/**", "a", None),
        ("a/**/b", "a/b", True),
        ("a/**/b", "a/x/y/b", True),
        ("[[:digit:]]", "7", True),
        ("\\!a", "!a", True),
        ("!a", "a", False),
        ("a  ", "a", True),
        ("a\\ ", "a ", True),
        ("# a", "a", None),
        ("a\\", "a", None),
        ("[", "[", None),
    ],
)
def test_reads_a_line_as_git_does(line: str, path: str, ignored: bool | None) -> None:
    assert Patterns(line.encode()).verdict(path.encode(), folder=False) is ignored


def test_reads_files_of_windows_editors() -> None:
    patterns = Patterns(b"\xef\xbb\xbf*.log\r\nbuild/\r\n")
    assert patterns.verdict(b"a.log", folder=False)
    assert patterns.verdict(b"build", folder=True)
    assert patterns.verdict(b"build", folder=False) is None
