"""The magic `%outlast` of notebooks: a command of the command line in a cell."""

from __future__ import annotations

import shlex
import subprocess
import sys
from typing import Any


def register(shell: Any) -> None:
    """Add `%outlast ARGUMENTS` to an IPython shell."""
    shell.register_magic_function(run_command, "line", "outlast")


def run_command(line: str) -> None:
    """Run a command and print its output as it comes. Interrupting the cell interrupts the command."""
    argv = [sys.executable, "-P", "-m", "outlast.cli", *shlex.split(line)]
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for text in process.stdout:
            print(text, end="", flush=True)
