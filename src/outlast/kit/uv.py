"""The `uv` program on this computer: resolves environments, and collects the libraries of the agent kit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

from outlast.errors import OutlastError

# uv's own words for a package index that does not answer.
NETWORK = re.compile(
    r"error sending request|dns error|timed out|connection refused|Failed to fetch|Could not connect|status code 5\d\d",
    re.IGNORECASE,
)
_HINT = "install it: `pip install uv`, or see https://docs.astral.sh/uv/"


class UvFailed(OutlastError):
    """uv ended with an error; `output` is its stderr."""

    def __init__(self, message: str, *, output: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.output = output


def find_uv() -> str:
    """Return the path of uv: the one of this Python's environment, else the one on PATH. Raises OutlastError."""
    beside = os.path.join(os.path.dirname(sys.executable), "uv")
    found = beside if os.access(beside, os.X_OK) else shutil.which("uv")
    if not found:
        raise OutlastError("`uv` is not installed, and machines of this cloud need it for Python packages", hint=_HINT)
    return found


def run_uv(
    arguments: Sequence[str],
    *,
    what: str,
    cwd: str | None = None,
    environment: Mapping[str, str] | None = None,
    input: str = "",
) -> str:
    """Run uv and return its output. Raises UvFailed with the reason that uv printed."""
    try:
        done = subprocess.run(
            [find_uv(), *arguments],
            cwd=cwd,
            # Certificates of this computer: a proxy or a mirror may have its own.
            env={"UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1", **(os.environ if environment is None else environment)},
            input=input,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as problem:
        raise UvFailed(f"{what}: cannot run uv: {problem.strerror}", output="", hint=_HINT) from problem
    if done.returncode:
        raise UvFailed(f"{what}: {reason_of(done.stderr)}", output=done.stderr)
    return done.stdout


def reason_of(output: str) -> str:
    """Return the error in uv's output in one line: from its first `error:` or `×` on, without the drawing."""
    lines = [line.strip(" ×╰─▶│\t") for line in output.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("warning:", "Using ", "Resolved ", "hint:"))]
    return " ".join(lines)[:600].removeprefix("error: ") or "no reason was printed"
