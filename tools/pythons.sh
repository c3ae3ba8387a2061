#!/bin/sh
# Tests the core on every other supported Python of this computer: installs it with pip into a separate environment and runs
# the demo. For the whole suite: make test PYTHON=python3.13 VENV=.venv-3.13
set -eu
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
own=$("${VENV:-.venv}/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true)
for version in 3.11 3.12 3.13 3.14; do
    # The suite itself runs on this one.
    [ "$version" = "$own" ] && continue
    python="python$version"
    # pyenv's shims exist for every version but run only the selected one; its real interpreters are in `versions`.
    for kept in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version"*/bin/python; do
        [ -x "$kept" ] && python=$kept
    done
    if ! "$python" -c pass 2>/dev/null; then
        echo "Python $version: not installed"
        continue
    fi
    here="$scratch/$version"
    "$python" -m venv "$here"
    "$here/bin/python" -m pip install --quiet --disable-pip-version-check .
    HOME="$scratch" OUTLAST_WORKSPACE="$here/workspace" OUTLAST_LOCAL_CLOUD="$here/cloud" \
        "$here/bin/outlast" demo >"$scratch/output" 2>&1 || { cat "$scratch/output"; exit 1; }
    echo "$("$python" --version): installed, the demo survives"
done
