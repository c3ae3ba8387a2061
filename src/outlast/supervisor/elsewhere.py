"""How a machine of a real cloud gets the agent: the script of its first boot. The local cloud needs none of it."""

from __future__ import annotations

from importlib import resources

# Clouds show what a boot script prints on the machine's serial console. Whatever fails says so there and switches the
# machine off: without an agent it does nothing but bill.
#
# In this order: an agent of this very wheel that an earlier boot or the image brought; an interpreter of the image that
# has what the agent requires; `uv`, if the image has it; a virtual environment, for which Debian wants a package more.
_SCRIPT = r"""#!/bin/bash
export HOME="${HOME:-/root}"
say() { echo "outlast: $*"; }
give_up() { say "error: $*"; say "no agent, no run: switching off"; shutdown -h now; exit 1; }
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

ready() { "$1" -P -c 'import msgspec, obstore, click, outlast.agent' 2>/dev/null; }
unpacked() {
    "$python" -m zipfile -e "$wheel" "$own/lib" && PYTHONPATH="$own/lib" ready "$python" && export PYTHONPATH="$own/lib"
}
with_uv() {
    command -v uv >/dev/null && uv venv --quiet --python '>=3.11' "$own/venv" \
        && uv pip install --quiet --python "$own/venv/bin/python" "$wheel"
}
with_pip() {
    "$python" -m venv "$own/venv" && "$own/venv/bin/pip" install --quiet --disable-pip-version-check "$wheel"
}
with_apt() {
    command -v apt-get >/dev/null && say "installing python3-venv" \
        && apt-get -qq update && apt-get -qq install --yes python3-venv >/dev/null && with_pip
}
agent="$own/venv/bin/python"
if ! ready "$agent"; then
    if [ -n "$python" ] && unpacked; then agent="$python"
    else
        say "installing $(basename "$wheel")"
        rm -rf "$own/venv"
        with_uv || { [ -n "$python" ] && { with_pip || with_apt; }; }
        ready "$agent" || give_up "outlast cannot be installed: the image needs Python 3.11 or \`uv\`, and PyPI"
    fi
fi

say "starting the agent"
"$agent" -P -m outlast.agent
code=$?
say "the agent ended with $code; switching off"
shutdown -h now
"""

# The program that fetches is a module of ours like any other, checked and tested, and sent as text.
SCRIPT = _SCRIPT.replace("@FETCH@", resources.files("outlast.workspace").joinpath("bootstrap.py").read_text("utf-8"))
