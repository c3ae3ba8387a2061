"""The house style: limits on size, and constructs that are forbidden."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.conventions.sources import PACKAGE, ROOT, for_files, modules, shown, tracked, tree

LINES_MAX_OF_A_MODULE = 400
LINES_MAX_OF_A_FUNCTION = 70
BROAD_EXCEPTS_MAX = 5

# The outermost loops, each with its reason beside it. Room for five, and no more.
BROAD_EXCEPTS = {
    "src/outlast/testing/scheduler.py",  # the end of a simulated process: what it raised is the simulation's finding
    "src/outlast/executor/call_process.py",  # an exception of a user's function is its result, and goes to the caller
    "src/outlast/executor/pickling.py",  # classes of a user's result may raise anything when they are loaded
    "src/outlast/executor/pool.py",  # a bug in the pool's thread must not leave calls waiting without end
    "src/outlast/supervisor/loop.py",  # a bug in one round must not leave every run unattended
}

WAITING = ROOT / "tests" / "support" / "waiting.py"
PYTHON = [*modules(), *modules(ROOT / "tests")]

# Written in pieces, so that this file does not find itself.
UNFINISHED = re.compile("|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "NotImplemented" + "Error"]))
PRIVATE = re.compile(
    "|".join(
        [
            "(?<![A-Za-z0-9_.}*-])/(?:ho" + r"me|Users)/[A-Za-z0-9_-]+",
            "(?<![A-Za-z0-9_.}*-])/ro" + r"ot/[A-Za-z0-9_.-]+",
            "pypi" + r"\.(?!toml)[a-z]",
            "python" + r"hosted\.org",
            "registry" + r"\.npmjs",
            "arti" + "factory",
            r"index-url[ =]+\S*://",
        ]
    )
)


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@for_files(PYTHON)
def test_no_module_and_no_function_is_a_giant(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= LINES_MAX_OF_A_MODULE, f"{shown(path)} has {lines} lines: split it"
    for function in functions(path):
        length = (function.end_lineno or 0) - function.lineno + 1
        where = f"{shown(path)}:{function.lineno}: {function.name}"
        assert length <= LINES_MAX_OF_A_FUNCTION, f"{where} has {length} lines: split it"


def test_only_the_outermost_loops_catch_everything() -> None:
    assert len(BROAD_EXCEPTS) <= BROAD_EXCEPTS_MAX
    found: set[str] = set()
    for path in modules():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ExceptHandler) and _catches_everything(node):
                found.add(f"{shown(path)}:{node.lineno}")
    strangers = {place for place in found if place.rpartition(":")[0] not in BROAD_EXCEPTS}
    assert not strangers, f"catches everything: {sorted(strangers)}"
    assert len(found) <= BROAD_EXCEPTS_MAX


def _catches_everything(handler: ast.ExceptHandler) -> bool:
    """`except:`, `except Exception`; `BaseException` is fine where it is raised again after tidying up."""
    if handler.type is None:
        return True
    named = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
    if "BaseException" in named:
        return not any(isinstance(node, ast.Raise) and node.exc is None for node in ast.walk(handler))
    return "Exception" in named


@for_files(PYTHON)
def test_nothing_is_left_unfinished(path: Path) -> None:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        assert not UNFINISHED.search(line), f"{shown(path)}:{number}: {line.strip()}"


@for_files(modules(ROOT / "tests"))
def test_no_test_sleeps_to_wait(path: Path) -> None:
    if path == WAITING:
        return
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            assert name not in ("time.sleep", "sleep", "asyncio.sleep"), (
                f"{shown(path)}:{node.lineno}: poll for the condition with tests/support/waiting.py instead"
            )


def test_no_published_file_names_a_path_of_a_developers_computer() -> None:
    found_paths: list[str] = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture
        for number, line in enumerate(text.splitlines(), 1):
            if found := PRIVATE.search(line):
                found_paths.append(f"{shown(path)}:{number}: {found.group()}")
    assert not found_paths, "\n".join(found_paths)


def test_every_module_has_a_docstring_with_a_subject() -> None:
    silent = [shown(path) for path in modules(PACKAGE) if not ast.get_docstring(tree(path))]
    assert not silent, f"without a docstring: {silent}"
