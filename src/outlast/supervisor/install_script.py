"""How a machine of a real cloud gets outlast: the script of its every boot. The local cloud needs none of it.

One part of it finds or installs this very outlast, the same for every machine; what is started then differs.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from importlib import resources

# Clouds show what a boot script prints on the machine's serial console. Whatever fails says so there and switches the
# machine off: without an agent it does nothing but bill.
#
# In this order: an agent of this very wheel that an earlier boot or the image brought; an interpreter of the image that
# has what the agent requires; `uv`, if the image has it; a virtual environment, for which Debian wants a package more.
_INSTALL = r"""#!/bin/bash
export HOME="${HOME:-/root}"
say() { echo "outlast: $*"; }
give_up() { say "error: $*"; say "nothing can be done here: switching off"; shutdown -h now; exit 1; }
place=/opt/outlast
mkdir -p "$place" 2>/dev/null && [ -w "$place" ] || { place="$HOME/.outlast/agent"; mkdir -p "$place"; }

fits() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
python=""
for name in python3.14 python3.13 python3.12 python3.11 python3; do
    if [ -z "$python" ] && found="$(command -v "$name")" && fits "$found"; then python="$found"; fi
done
any="${python:-$(command -v python3)}"
[ -n "$any" ] || give_up "this image has no python3; choose another with [machine] image"

# Prints the path of the wheel, fetched and compared with its name.
read -r -d '' fetch <<'END_OF_FETCH'
@FETCH@
END_OF_FETCH
wheel="$("$any" -c "$fetch" "$place")" || give_up "the wheel of outlast cannot be fetched from the workspace"
own="$(dirname "$wheel")"
package="$wheel"
[ -z "$extra" ] || package="outlast[$extra] @ file://$wheel"

ready() { "$1" -P -c "import msgspec, obstore, click, outlast.agent $needed" 2>/dev/null; }
unpacked() {
    "$python" -m zipfile -e "$wheel" "$own/lib" && PYTHONPATH="$own/lib" ready "$python" && export PYTHONPATH="$own/lib"
}
with_uv() {
    command -v uv >/dev/null && uv venv --quiet --python '>=3.11' "$venv" \
        && uv pip install --quiet --python "$venv/bin/python" "$package"
}
with_pip() {
    "$python" -m venv "$venv" && "$venv/bin/pip" install --quiet --disable-pip-version-check "$package"
}
with_apt() {
    command -v apt-get >/dev/null && say "installing python3-venv" \
        && apt-get -qq update && apt-get -qq install --yes python3-venv >/dev/null && with_pip
}
venv="$own/venv$extra"
agent="$venv/bin/python"
if ! ready "$agent"; then
    if [ -n "$python" ] && unpacked; then agent="$python"
    else
        say "installing $(basename "$wheel")"
        rm -rf "$venv"
        with_uv || { [ -n "$python" ] && { with_pip || with_apt; }; }
        ready "$agent" || give_up "outlast cannot be installed: the image needs Python 3.11 or \`uv\`, and PyPI"
    fi
fi
"""

_AGENT = r"""
say "starting the agent"
"$agent" -P -m outlast.agent
code=$?
say "the agent ended with $code; switching off"
shutdown -h now
"""

# The program that fetches is a module of ours like any other, checked and tested, and sent as text.
_FETCH = resources.files("outlast.code").joinpath("bootstrap.py").read_text("utf-8")
# Whatever ends the supervisor but the end of its machine, the next one takes over where it was.
_SUPERVISOR = r"""
say "starting the supervisor"
while :; do
    "$agent" -P -m outlast.cli supervise {words}
    say "the supervisor ended with $?; another one starts in 10 s"
    sleep 10
done
"""

_PREPARE = _INSTALL.replace("@FETCH@", _FETCH)
SCRIPT = _PREPARE + _AGENT
# Cloud → what the supervisor needs to speak to it, which no agent does: an extra of ours, and what it brings.
_SPEAKS = {"gcp": ("gcp", ", google.auth, urllib3"), "aws": ("aws", ", boto3")}


def supervisor_script(cloud: str, machine: str, *, workspace_url: str, settings: Mapping[str, str]) -> str:
    """For a machine that supervises. `settings` are variables that the supervisor finds as they are here."""
    argv = shlex.join(["--workspace", workspace_url, "--stationed", f"{cloud}/{machine}"])
    return speaking(_PREPARE + _SUPERVISOR.replace("{words}", argv), cloud, settings)


def speaking(script: str, cloud: str, settings: Mapping[str, str]) -> str:
    """The script for a machine that calls its cloud's API, which others need no library for."""
    extra, needed = _SPEAKS[cloud]
    lines = [f"extra={extra} needed={shlex.quote(needed)}"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in settings.items()]
    head, first, rest = script.partition("\n")
    return head + first + "\n".join(lines) + "\n" + rest
