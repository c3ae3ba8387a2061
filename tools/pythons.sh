#!/bin/sh
# The core on every other supported Python that is here: installed by pip into an environment of its own, then the demo, which
# runs, preempts and resumes for real. The whole suite: make test PYTHON=python3.13 VENV=.venv-3.13
set -eu
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
own=$("${VENV:-.venv}/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true)
for version in 3.11 3.12 3.13 3.14; do
    # The suite runs on that one.
    [ "$version" = "$own" ] && continue
    python="python$version"
    # A stand-in of pyenv answers to every name and runs only what is chosen; those that it keeps are beside it.
    for kept in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version"*/bin/python; do
        [ -x "$kept" ] && python=$kept
    done
    if ! "$python" -c pass 2>/dev/null; then
        echo "Python $version: not here"
        continue
    fi
    here="$scratch/$version"
    "$python" -m venv "$here"
    "$here/bin/python" -m pip install --quiet --disable-pip-version-check .
    HOME="$scratch" OUTLAST_WORKSPACE="$here/workspace" OUTLAST_LOCAL_CLOUD="$here/cloud" \
        "$here/bin/outlast" demo >"$scratch/said" 2>&1 || { cat "$scratch/said"; exit 1; }
    echo "$("$python" --version): installed, the demo survives"
done
