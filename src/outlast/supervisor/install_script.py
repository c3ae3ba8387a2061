"""The boot scripts that find or install outlast on a cloud machine and start the agent or the supervisor."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from importlib import resources

from outlast.clouds.traits import traits_of

# Clouds show the output of a boot script on the machine's serial console. After an error the script switches the
# machine off: without an agent it only costs money.
#
# It tries in this order: this wheel, installed by an earlier boot or the image; an interpreter of the image that has
# the agent's dependencies; `uv`; a virtual environment, for which Debian needs one more package.
_INSTALL = r"""#!/bin/bash
export HOME="${HOME:-/root}"
log() { echo "outlast: $*"; }
give_up() { log "error: $*"; log "switching off"; shutdown -h now; exit 1; }
place=/opt/outlast
mkdir -p "$place" 2>/dev/null && [ -w "$place" ] || { place="$HOME/.outlast/agent"; mkdir -p "$place"; }

fits() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
python=""
for name in python3.14 python3.13 python3.12 python3.11 python3; do
    if [ -z "$python" ] && found="$(command -v "$name")" && fits "$found"; then python="$found"; fi
done
any="${python:-$(command -v python3)}"
[ -n "$any" ] || give_up "this image has no python3; choose another with [machine] image"

# Prints the path of the wheel, fetched and verified.
read -r -d '' fetch <<'END_OF_FETCH'
@FETCH@
END_OF_FETCH
wheel="$("$any" -c "$fetch" "$place")" || give_up "could not fetch the outlast wheel from the workspace"
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
    command -v apt-get >/dev/null && log "installing python3-venv" \
        && apt-get -qq update && apt-get -qq install --yes python3-venv >/dev/null && with_pip
}
venv="$own/venv$extra"
agent="$venv/bin/python"
if ! ready "$agent"; then
    if [ -n "$python" ] && unpacked; then agent="$python"
    else
        log "installing $(basename "$wheel")"
        rm -rf "$venv"
        with_uv || { [ -n "$python" ] && { with_pip || with_apt; }; }
        ready "$agent" || give_up "could not install outlast: the image needs Python 3.11 or \`uv\`, and access to PyPI"
    fi
fi
"""

_AGENT = r"""
log "starting the agent"
"$agent" -P -m outlast.agent
code=$?
log "the agent ended with $code; switching off"
shutdown -h now
"""

# The fetching program is a tested module of ours, sent as text.
_FETCH = resources.files("outlast.code").joinpath("bootstrap.py").read_text("utf-8")
# Restart the supervisor whenever it ends while the machine lives.
_SUPERVISOR = r"""
log "starting the supervisor"
while :; do
    "$agent" -P -m outlast.cli supervise {argv}
    log "the supervisor ended with $?; restarting it in 10 s"
    sleep 10
done
"""

_PREPARE = _INSTALL.replace("@FETCH@", _FETCH)
SCRIPT = _PREPARE + _AGENT


def supervisor_script(cloud: str, machine: str, *, workspace_url: str, settings: Mapping[str, str]) -> str:
    """Return the script of a supervisor machine; `settings` are environment variables for the supervisor."""
    argv = shlex.join(["--workspace", workspace_url, "--supervisor-vm", f"{cloud}/{machine}"])
    return with_client(_PREPARE + _SUPERVISOR.replace("{argv}", argv), cloud, settings)


def with_client(script: str, cloud: str, settings: Mapping[str, str]) -> str:
    """Return the script for a machine that calls its cloud's API and so needs the client library."""
    traits = traits_of(cloud)
    needed = "".join(f", {module}" for module in traits.modules)
    lines = [f"extra={traits.extra} needed={shlex.quote(needed)}"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in settings.items()]
    head, first, rest = script.partition("\n")
    return head + first + "\n".join(lines) + "\n" + rest
