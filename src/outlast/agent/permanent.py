"""Failures that another machine cannot repair, such as a misspelled command. Pure."""

from __future__ import annotations

import re

import msgspec

# A program that fails later has shown that it can start: the failure may pass.
EARLY_S = 60.0
_MODULE = re.compile(r"^ModuleNotFoundError: No module named '([^']+)'", re.MULTILINE)
_NO_FILE = re.compile(r"can't open file '([^']+)': \[Errno 2\]")
_NOT_FOUND = re.compile(r"^(?:.*: )?(?:line \d+: )?([^\s:]+): (?:command )?not found$", re.MULTILINE)
# The last line that argparse, click and absl print for wrong arguments.
_USAGE = re.compile(r"^usage: .*?^(\S+: error: .+)$|^Usage: .*?^(Error: .+)$", re.MULTILINE | re.DOTALL)


class PermanentFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The reason, and the next step for the user."""

    why: str
    hint: str


def permanent_failure(exit_code: int, *, ran_s: float, output: str) -> PermanentFailure | None:
    """Return why the command would fail on every machine; None if another attempt may help.

    `output` is the end of what the command printed.
    """
    if ran_s > EARLY_S or exit_code == 0:
        return None
    if exit_code == 127:
        found = _NOT_FOUND.search(output)
        name = f"`{found[1]}`" if found else "the command"
        return PermanentFailure(
            why=f"{name} was not found on the machine (exit code 127)",
            hint="check the spelling; programs come from the environment, the image or `setup`",
        )
    if exit_code == 126:
        return PermanentFailure(
            why="the command cannot be executed (exit code 126)", hint="make the file executable: `chmod +x FILE`"
        )
    modules: list[str] = _MODULE.findall(output)
    if exit_code == 1 and modules:
        name = modules[-1].partition(".")[0]
        return PermanentFailure(
            why=f"the Python module `{name}` is not installed",
            hint="add it to uv.lock, requirements.txt or pyproject.toml, or put it into the code folder",
        )
    if exit_code == 2 and (missing := _NO_FILE.search(output)):
        return PermanentFailure(
            why=f"the file {missing[1]} does not exist on the machine",
            hint="files that git ignores are not uploaded; `outlast run` lists files that it leaves out",
        )
    if exit_code == 2 and (usage := _USAGE.search(output)):
        return PermanentFailure(why=f"wrong arguments: {usage[1] or usage[2]}", hint="correct the command")
    return None
