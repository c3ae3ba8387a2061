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
from outlast.machines.environment import SHELL_LINE, SHELL_PATHS, pip_files

# The environment for Python packages: one folder for all users of machines with this image. A machine that shares the
# computer's file system has only its home folder to itself.
SYSTEM_ENV = "/opt/outlast/env"
HOME_ENV = "$HOME/.outlast/env"
# Scripts and files of the build; removed before the snapshot.
BUILD_FOLDER = ".outlast/build"
# The archive of the kit with `bin/uv`, in the build folder.
UV_ARCHIVE = "uv.tar.gz"
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
    places = f"{HOME_ENV}/bin:$HOME/{BUILD_FOLDER}/guard" if shares_software else f"{HOME_ENV}/bin:{SYSTEM_ENV}/bin"
    return f'cd "$HOME" && export PATH="{places}:$PATH" DEBIAN_FRONTEND=noninteractive PIP_NO_INPUT=1'


def _apt(packages: tuple[str, ...]) -> str:
    return (
        _SUDO
        + "$sudo apt-get update -q\n"
        + f"$sudo apt-get install -y -q --no-install-recommends {shlex.join(packages)}\n"
        + "$sudo apt-get clean\n"
    )


def _pip(recipe: Recipe, place: str) -> str:
    folder = f'"$HOME/{BUILD_FOLDER}"'
    lines = [
        f'place="{place}"',
        'mkdir -p "$place/bin" 2>/dev/null || { '
        + _SUDO.strip()
        + '; $sudo mkdir -p "$place/bin" && $sudo chown -R "$(id -u)" "$place" || place="$HOME/.outlast/env"; }',
        'mkdir -p "$place/bin"',
        # The base image need not have pip, venv or even Python.
        f'tar -xzf {folder}/{UV_ARCHIVE} -C "$place"',
        'uv="$place/bin/uv" python="$place/bin/python"',
        'export UV_PYTHON_INSTALL_DIR="${place%/*}/python" UV_NO_CACHE=1 UV_NO_CONFIG=1 UV_LINK_MODE=copy',
        "export UV_SYSTEM_CERTS=1 UV_NATIVE_TLS=1",
        # Packages of the base image (a tuned framework) stay visible.
        'version=3.12; ! command -v python3 >/dev/null || version="$(command -v python3)"',
        '[ -x "$python" ] ||',
        '  "$uv" venv --quiet --allow-existing --relocatable --system-site-packages --python "$version" "$place"',
        # Scripts that call `pip` use this environment, too.
        f'for name in pip pip3; do cp {folder}/pip "$place/bin/$name" && chmod 755 "$place/bin/$name"; done',
        'for packages in "$place"/lib/python3*/site-packages; do',
        f'    mkdir -p "$packages/pip" && cp {folder}/pip_program.py "$packages/pip/__main__.py"',
        '    echo \'__version__ = "25.0"\' > "$packages/pip/__init__.py"',
        "done",
        'install() { "$uv" pip install --python "$python" "$@"; }',
    ]
    if recipe.lock:
        hashes = " --require-hashes" if "--hash" in recipe.lock else ""
        lines.append(f"install --no-deps{hashes} -r {folder}/lock.txt")
    # Paths in a list of requirements are relative to the home folder, where the recipe's files are.
    for number in range(1, len(recipe.requirements) + 1):
        listed = f'"$HOME/.outlast-requirements-{number}.txt"'
        lines += [f"cp {folder}/requirements-{number}.txt {listed}", f"install -r {listed}", f"rm {listed}"]
    if recipe.spec.pip:
        lines.append(f"install {shlex.join(recipe.spec.pip)}")
    lines.append(f'"$python" {folder}/relocate.py "$place/bin"')
    lines.append(SHELL_PATHS)
    if place == SYSTEM_ENV:
        # Every user of the image: login shells reset the PATH and then read this folder.
        lines += [_SUDO.strip(), f"echo {shlex.quote(SHELL_LINE)} | $sudo tee /etc/profile.d/outlast.sh >/dev/null"]
    return "\n".join(lines) + "\n"


def texts(recipe: Recipe, todo: Sequence[Step]) -> dict[str, str]:
    """Return the files that the builder needs: name in the build folder → content."""
    found = {f"requirements-{number}.txt": body for number, body in enumerate(recipe.requirements.values(), 1)}
    found |= {f"{step.name}.sh": step.script for step in todo}
    found |= {name: _read(name) for name in ("wrapper.sh", "relocate.py")}
    found |= pip_files()
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
