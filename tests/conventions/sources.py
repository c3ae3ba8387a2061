"""Files that the convention tests read."""

from __future__ import annotations

import ast
import subprocess
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "outlast"


def modules(folder: Path | None = None) -> list[Path]:
    """List the Python files below a folder; without one, those of every package in `src`."""
    return sorted((folder or PACKAGE.parent).rglob("*.py"))


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def shown(path: Path) -> str:
    """Return a path as messages name it."""
    return path.relative_to(ROOT).as_posix()


def document(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def part(text: str, heading: str) -> str:
    """Return the text below a heading, up to the next one of its level or above; empty if it is missing."""
    lines = text.splitlines()
    if heading not in lines:
        return ""
    level = len(heading) - len(heading.lstrip("#"))
    found: list[str] = []
    fenced = False
    for line in lines[lines.index(heading) + 1 :]:
        fenced ^= line.startswith("```")
        depth = len(line) - len(line.lstrip("#"))
        if not fenced and 0 < depth <= level:
            break
        found.append(line)
    return "\n".join(found)


def tracked() -> list[Path]:
    """List every published file: those that git tracks, or all files without git."""
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        names = [name for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        places = [ROOT / "src", ROOT / "tests", ROOT / "docs"]
        names = [shown(path) for place in places for path in place.rglob("*") if "__pycache__" not in path.parts]
    return [path for name in names if (path := ROOT / name).is_file() and not path.is_symlink()]


def for_files(paths: Sequence[Path]) -> Callable[[Callable[[Path], None]], Callable[[list[Path]], None]]:
    """Run a check of one file over many: one test per folder, which reports every file that fails."""
    folders: dict[str, list[Path]] = defaultdict(list)
    for path in paths:
        folders["/".join(path.relative_to(ROOT).parts[:-1][:3]) or "."].append(path)

    def decorate(check: Callable[[Path], None]) -> Callable[[list[Path]], None]:
        @pytest.mark.parametrize("files", folders.values(), ids=folders)
        def test(files: list[Path]) -> None:
            wrong = []
            for path in files:
                try:
                    check(path)
                except AssertionError as problem:
                    wrong.append(str(problem))
            assert not wrong, "\n".join(wrong)

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return decorate
