"""The steps of a build as bash scripts, and the report of a failed one. Pure.

Each script runs in the home folder of the machine. `wrapper.sh` records the line of every command, and reports the last
one when the script fails or exits.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

import msgspec

from outlast.images.recipe import Recipe

# The environment for Python packages: one folder for all users of machines with this image. A machine that shares the
# computer's file system has only its home folder to itself.
SYSTEM_ENV = "/opt/outlast/env"
HOME_ENV = "$HOME/.outlast/env"
# Scripts and files of the build; removed before the snapshot.
BUILD_FOLDER = ".outlast/build"
MARK = "@outlast-failed@"
_FAILED = re.compile(rf"{MARK} line (\d+) code (\d+)")

_SUDO = 'sudo=""; [ "$(id -u)" = 0 ] || sudo="sudo -n"\n'

_GUARD = """\
#!/bin/sh
echo "outlast: this machine shares this computer's file system, and ${0##*/} would change it; list Python packages" >&2
echo "outlast: in [image] pip; other software needs a machine of mode root or userns" >&2
exit 1
"""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a build."""

    name: str
    # The title in the log.
    title: str
    script: str
    # The script is the user's: a failure shows the line.
    own: bool = False


def steps(recipe: Recipe, *, shares_software: bool) -> list[Step]:
    """Return the steps between the upload of the files and the scrub, in order."""
    found: list[Step] = []
    spec = recipe.spec
    if spec.packages:
        found.append(Step(name="packages", title=_counted("package", spec.packages), script=_apt(spec.packages)))
    if recipe.lock or recipe.requirements or spec.pip:
        place = HOME_ENV if shares_software else SYSTEM_ENV
        found.append(Step(name="pip", title="Python packages", script=_pip(recipe, place)))
    if recipe.script:
        found.append(Step(name="script", title=recipe.script_name, script=recipe.script, own=True))
    for kind, commands in (("warm", spec.warm), ("test", spec.test)):
        for number, command in enumerate(commands, 1):
            found.append(Step(name=f"{kind}-{number}", title=f"{kind}: {_short(command)}", script=command, own=True))
    return found


def preamble(*, shares_software: bool) -> str:
    """Return the commands that set up a step's shell, with the Python environment in PATH."""
    places = f"{HOME_ENV}/bin:$HOME/{BUILD_FOLDER}/guard" if shares_software else f"{SYSTEM_ENV}/bin"
    return f'cd "$HOME" && export PATH="{places}:$PATH" DEBIAN_FRONTEND=noninteractive PIP_NO_INPUT=1'


def _apt(packages: tuple[str, ...]) -> str:
    return (
        _SUDO
        + "$sudo apt-get update -q\n"
        + f"$sudo apt-get install -y -q --no-install-recommends {shlex.join(packages)}\n"
        + "$sudo apt-get clean\n"
    )


def _pip(recipe: Recipe, place: str) -> str:
    lines = [
        f'place="{place}"',
        'mkdir -p "$place" 2>/dev/null || { '
        + _SUDO.strip()
        + '; $sudo mkdir -p "$place"; $sudo chown "$(id -u)" "$place"; }',
        # Packages of the base image (a tuned framework, pip itself) stay visible.
        'python="$place/bin/python"',
        '[ -x "$python" ] || python3 -m venv --without-pip --system-site-packages "$place" || {',
        '  echo "outlast: python3 cannot create an environment; add python3-venv to packages" >&2; exit 1; }',
        '"$python" -m pip --version >/dev/null 2>&1 || "$python" -m ensurepip >/dev/null || {',
        '  echo "outlast: pip is not installed; add python3-pip to packages" >&2; exit 1; }',
        # Scripts that call `pip` use this environment, too.
        """[ -e "$place/bin/pip" ] || printf '#!/bin/sh\\nexec "${0%%/*}/python" -m pip "$@"\\n' > "$place/bin/pip" """,
        'chmod 755 "$place/bin/pip"',
        'pip() { "$python" -m pip install --disable-pip-version-check --no-warn-script-location "$@"; }',
    ]
    folder = f'"$HOME/{BUILD_FOLDER}"'
    if recipe.lock:
        hashes = " --require-hashes" if "--hash" in recipe.lock else ""
        lines.append(f"pip --no-deps{hashes} -r {folder}/lock.txt")
    lines += [f"pip -r {folder}/requirements-{number}.txt" for number in range(1, len(recipe.requirements) + 1)]
    if recipe.spec.pip:
        lines.append(f"pip {shlex.join(recipe.spec.pip)}")
    lines.append(f'"$python" {folder}/relocate.py "$place/bin"')
    return "\n".join(lines) + "\n"


def texts(recipe: Recipe, todo: Sequence[Step]) -> dict[str, str]:
    """Return the files that the builder needs: name in the build folder → content."""
    found = {f"requirements-{number}.txt": body for number, body in enumerate(recipe.requirements.values(), 1)}
    found |= {f"{step.name}.sh": step.script for step in todo}
    found |= {name: _read(name) for name in ("wrapper.sh", "relocate.py")}
    # On a machine that shares this computer's file system, these commands would change the computer itself.
    found |= {f"guard/{name}": _GUARD for name in ("pip", "pip3", "apt", "apt-get")}
    return {**found, "lock.txt": recipe.lock} if recipe.lock else found


def failure_of(line: str) -> tuple[int, int] | None:
    """Return line and exit code, if this line of output is the wrapper's report."""
    match = _FAILED.search(line)
    return (int(match.group(1)), int(match.group(2))) if match else None


def explain(step: Step, line: int, code: int, tail: list[str]) -> str:
    """Return the error message of a failed step, with the line and the last output."""
    lines = step.script.splitlines()
    # Errors of bash itself, such as an unset variable, run no trap, but name the line.
    if tail and (match := re.search(rf"/{re.escape(step.name)}\.sh: line (\d+): ", tail[-1])):
        line = int(match.group(1))
    if step.own and 0 < line <= len(lines):
        where = f"{step.title}, line {line}" if step.name == "script" else step.title
        head = f"{where}: `{_short(lines[line - 1].strip())}` exited with {code}"
    else:
        head = f"{step.title} exited with {code}"
    if not tail:
        return f"{head} without output"
    return head + "; the last output:\n" + "\n".join(f"    {text}" for text in tail)


def _read(name: str) -> str:
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
        return file.read()


def _short(command: str) -> str:
    line = " ".join(command.split())
    return line if len(line) <= 100 else line[:99] + "…"


def _counted(what: str, items: tuple[str, ...]) -> str:
    return f"1 {what}" if len(items) == 1 else f"{len(items)} {what}s"
