"""The steps of a build as scripts of bash, and what a failed one says of itself. Pure.

Each runs in the home folder of the machine. A failure tells its line: every command leaves the number of its line
behind, and the end of the script tells the last one, whether it failed or said `exit` itself.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

import msgspec

from outlast.images.recipe import Recipe

# Where Python packages go: one place that every machine made from the image finds, whoever its user is. On a machine
# that shares the software of its computer, the only place of its own is the home folder.
SYSTEM_PLACE = "/opt/outlast/env"
HOME_PLACE = "$HOME/.outlast/env"
# Where scripts and files wait on the builder; it does not get into the image.
BUILD_FOLDER = ".outlast/build"
MARK = "@outlast-failed@"
_FAILED = re.compile(rf"{MARK} line (\d+) code (\d+)")

_SUDO = 'sudo=""; [ "$(id -u)" = 0 ] || sudo="sudo -n"\n'

# The script is in a file of its own, so that its first line is line 1. The trap is inherited by functions and by what
# is sourced. `BASH_SOURCE` tells whether a line is the script's own; the end counts as the command that sourced it.
# Both outputs are one, for ssh would bring them by two ways, and the end of a script in the middle of an error's line.
_WRAPPER = """\
exec 2>&1
set -eETo pipefail
outlast_own=$1
outlast_end() {
  local code=$?
  trap - DEBUG
  [ $code = 0 ] || echo "@outlast-failed@ line ${outlast_line:-0} code $code"
}
trap '[[ "$BASH_COMMAND" = *outlast_own* || "${BASH_SOURCE[0]}" != "$outlast_own" ]] || outlast_line=$LINENO' DEBUG
trap '[ "${BASH_SOURCE[0]}" != "$outlast_own" ] || outlast_line=$LINENO' ERR
trap outlast_end EXIT
set --
source "$outlast_own"
"""


_GUARD = """\
#!/bin/sh
echo "outlast: this machine shares the software of its computer, and ${0##*/} would change that; Python packages go" >&2
echo "outlast: into [image] pip, others need a machine of mode root or userns" >&2
exit 1
"""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to do on the builder."""

    name: str
    # What is said when it begins.
    title: str
    script: str
    # The lines are the user's own: a failure shows the line.
    own: bool = False


def steps(recipe: Recipe, *, shares_software: bool) -> list[Step]:
    """Everything between the upload of the files and the scrub, in order."""
    found: list[Step] = []
    spec = recipe.spec
    if spec.packages:
        found.append(Step(name="packages", title=_counted("package", spec.packages), script=_apt(spec.packages)))
    if recipe.lock or recipe.requirements or spec.pip:
        place = HOME_PLACE if shares_software else SYSTEM_PLACE
        found.append(Step(name="pip", title="Python packages", script=_pip(recipe, place)))
    if recipe.script:
        found.append(Step(name="script", title=recipe.script_name, script=recipe.script, own=True))
    for kind, commands in (("warm", spec.warm), ("test", spec.test)):
        for number, command in enumerate(commands, 1):
            found.append(Step(name=f"{kind}-{number}", title=f"{kind}: {_short(command)}", script=command, own=True))
    return found


def preamble(*, shares_software: bool) -> str:
    """What every step's shell knows: the programs of the Python environment, if there is one by then."""
    places = f"{HOME_PLACE}/bin:$HOME/{BUILD_FOLDER}/guard" if shares_software else f"{SYSTEM_PLACE}/bin"
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
        # What the base image brings along (a tuned framework, pip itself) stays visible.
        'python="$place/bin/python"',
        '[ -x "$python" ] || python3 -m venv --without-pip --system-site-packages "$place" || {',
        '  echo "outlast: python3 cannot make an environment here; add python3-venv to packages" >&2; exit 1; }',
        '"$python" -m pip --version >/dev/null 2>&1 || "$python" -m ensurepip >/dev/null || {',
        '  echo "outlast: there is no pip here; add python3-pip to packages" >&2; exit 1; }',
        # So that a script that calls pip means this one, too.
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
    # The home folder of the next machine may be elsewhere: programs find their Python beside them, not by its path.
    lines.append(f'"$python" -c {shlex.quote(_RELOCATE)} "$place/bin"')
    return "\n".join(lines) + "\n"


_RELOCATE = r"""
import os, sys
folder = sys.argv[1]
head = b"#!/bin/sh\n'''exec' \"$(dirname -- \"$(realpath -- \"$0\")\")\"/%s \"$0\" \"$@\"\n' '''\n"
for name in os.listdir(folder):
    path = os.path.join(folder, name)
    if os.path.islink(path) or not os.path.isfile(path):
        continue
    with open(path, "rb") as file:
        body = file.read()
    first, _, rest = body.partition(b"\n")
    program = first[2:].strip()
    if body.startswith(b"#!/bin/sh\n'''exec' "):  # what pip writes where the path is too long for a first line
        second, _, rest = rest.split(b"\n", 2)
        program = second.split(b" ", 1)[1].rsplit(b' "$0"', 1)[0].strip(b'"')
    if not first.startswith(b"#!") or os.path.dirname(program) != os.fsencode(folder):
        continue
    with open(path, "wb") as file:
        file.write(head % os.path.basename(program) + rest)
"""


def texts(recipe: Recipe, todo: Sequence[Step]) -> dict[str, str]:
    """What the builder is sent: scripts, and what they read. Names in the build folder, and contents."""
    found = {f"requirements-{number}.txt": body for number, body in enumerate(recipe.requirements.values(), 1)}
    found |= {f"{step.name}.sh": step.script for step in todo}
    found["wrapper.sh"] = _WRAPPER
    # A script that calls pip where there is no environment on the machine's disk would change the computer itself.
    found |= {f"guard/{name}": _GUARD for name in ("pip", "pip3", "apt", "apt-get")}
    return {**found, "lock.txt": recipe.lock} if recipe.lock else found


def failure_of(line: str) -> tuple[int, int] | None:
    """Line and exit code, if this line of output is how a script tells its end."""
    match = _FAILED.search(line)
    return (int(match.group(1)), int(match.group(2))) if match else None


def explain(step: Step, line: int, code: int, tail: list[str]) -> str:
    """What went wrong, where, and the last of what was said."""
    lines = step.script.splitlines()
    # What bash itself refuses it says with the line, and no trap hears of it: an unset variable, say.
    if tail and (match := re.search(rf"/{re.escape(step.name)}\.sh: line (\d+): ", tail[-1])):
        line = int(match.group(1))
    if step.own and 0 < line <= len(lines):
        where = f"{step.title}, line {line}" if step.name == "script" else step.title
        head = f"{where}: `{_short(lines[line - 1].strip())}` ended with {code}"
    else:
        head = f"{step.title} ended with {code}"
    if not tail:
        return f"{head}, and said nothing"
    return head + "; the last output:\n" + "\n".join(f"    {text}" for text in tail)


def _short(command: str) -> str:
    line = " ".join(command.split())
    return line if len(line) <= 100 else line[:99] + "…"


def _counted(what: str, items: tuple[str, ...]) -> str:
    return f"1 {what}" if len(items) == 1 else f"{len(items)} {what}s"
