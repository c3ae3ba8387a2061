"""The check of single paths agrees with the full scan."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outlast.sync.select import PathFilter, below, scan

NAMES = st.sampled_from(["a.py", "b.log", "keep.log", "data", "build", "deep", ".env", "x.pem", "ümlaut é.txt", ".aws"])
LINES = st.sampled_from(["*.log", "!keep.log", "build/", "/data", "deep/*.py", "**/a.py", "!b.log", "data/**"])


@pytest.mark.full
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    paths=st.lists(st.lists(NAMES, min_size=1, max_size=3), min_size=1, max_size=12),
    rules=st.dictionaries(st.sampled_from(["", "deep/", "data/"]), st.lists(LINES, max_size=3), max_size=3),
    mine=st.lists(LINES, max_size=2),
    nested=st.booleans(),
)
def test_the_filter_and_the_scan_agree(
    tmp_path_factory: pytest.TempPathFactory,
    paths: list[list[str]],
    rules: dict[str, list[str]],
    mine: list[str],
    nested: bool,
) -> None:
    root = tmp_path_factory.mktemp("tree")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    if nested:
        subprocess.run(["git", "init", "-q", str(root / "deep")], check=True)
    for parts in paths:
        _write(root.joinpath(*parts), "x")
    for folder, lines in rules.items():
        _write(root / folder / ".gitignore", "\n".join(lines))
    _write(root / ".outlastignore", "\n".join(mine))
    (root / "venv").mkdir()
    _write(root / "venv" / "pyvenv.cfg", "")
    os.symlink("a.py", root / "inside")
    os.symlink("/etc/passwd", root / "outside")
    real = os.path.realpath(root)
    everything, _ = scan(real)
    filter = PathFilter(real)
    assert below(real, "", filter) == everything
    for path in everything:
        assert PathFilter(real).allows(path, os.lstat(os.path.join(real, path)))


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError:
        return  # a file where a folder should be, or the other way round
