"""Colours: only on a terminal, unless they are forced or refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

OUTLAST = str(Path(sys.executable).parent / "outlast")


@pytest.mark.parametrize(
    ("argv", "variables", "coloured"),
    [
        ([], {}, False),
        ([], {"FORCE_COLOR": "1"}, True),
        ([], {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (["--no-color"], {"FORCE_COLOR": "1"}, False),
    ],
)
def test_colours_are_printed_into_a_pipe_only_if_they_are_forced(
    argv: list[str], variables: dict[str, str], coloured: bool, tmp_path: Path
) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OUTLAST_WORKSPACE": str(tmp_path / "w")}
    done = subprocess.run(
        [OUTLAST, "show", "nothing-1", *argv], env=environment | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert ("\x1b[" in done.stderr) == coloured
    assert "no run `nothing-1`" in done.stderr
