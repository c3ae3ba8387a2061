#!/bin/bash
# Runs at every boot: fetches outlast and its libraries from the workspace unless the disk has them, then starts it.
# The serial console shows the output. Every failure switches the machine off: without an agent it only costs money.
export HOME="${HOME:-/root}"
log() { echo "outlast: $*"; }
give_up() {
    log "error: $*"
    log "switching off: the machine cannot do its work"
    shutdown -h now
    exit 1
}
place=/opt/outlast
# A machine of the local cloud without its own root file system must not write to the host's /opt.
[ -z "$OUTLAST_MACHINE" ] || [ "$HOME" = /root ] || place="$HOME/.outlast/agent"
mkdir -p "$place" 2>/dev/null && [ -w "$place" ] || { place="$HOME/.outlast/agent"; mkdir -p "$place"; }

python=""
for name in python3.14 python3.13 python3.12 python3.11 python3; do
    found="$(command -v "$name")" || continue
    any="${any:-$found}"
    "$found" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null && python="$found" && break
done
[ -n "$any" ] || give_up "this image has no python3; choose another with [machine] image"

# Prints the path of the object that a metadata attribute names, after comparing its content with its name.
read -r -d '' program <<'END_OF_PROGRAM'
@FETCH@
END_OF_PROGRAM
fetch() { "$any" -c "$program" "$1" "$place"; }

# Prints the folder of an archive, unpacked beside it. A boot that was cut off leaves no half of it.
unpacked() {
    local folder="${1%.tar.gz}"
    if [ ! -d "$folder" ]; then
        rm -rf "$folder.part" && mkdir "$folder.part" && tar -xzf "$1" -C "$folder.part" && mv "$folder.part" "$folder" || return 1
    fi
    echo "$folder"
}

if [ -z "$python" ]; then
    log "this image has no Python 3.11 or newer: installing one with uv"
    uv="$(unpacked "$(fetch outlast-uv)")/bin/uv" || give_up "could not fetch uv from the workspace"
    export UV_PYTHON_INSTALL_DIR="$place/python" UV_CACHE_DIR="$place/uv-cache"
    "$uv" --quiet python install 3.12 && python="$("$uv" python find --managed-python 3.12)" ||
        give_up "uv could not download Python 3.12; choose an image with Python 3.11 or newer, or set UV_PYTHON_INSTALL_MIRROR"
fi

wheel="$(fetch outlast-wheel)" || give_up "could not fetch the outlast wheel from the workspace"
sources="$(dirname "$wheel")/lib"
if [ ! -d "$sources" ]; then
    rm -rf "$sources.part" && "$python" -m zipfile -e "$wheel" "$sources.part" && mv "$sources.part" "$sources" ||
        give_up "could not unpack $(basename "$wheel"): is the disk full?"
fi
libraries="$(fetch outlast-libraries)" || give_up "could not fetch the libraries of outlast from the workspace"
libraries="$(unpacked "$libraries")" || give_up "could not unpack the libraries of outlast: is the disk full?"
version="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
export PYTHONPATH="$sources:$libraries/$version"
"$python" -P -c "import msgspec, obstore, click, outlast.agent" || give_up "Python $version of this image cannot load outlast"
