#!/bin/bash
# Runs at every boot: fetches outlast and its libraries from the workspace unless the disk has them, then starts it.
# The serial console shows the output. Every failure switches the machine off: without an agent it only costs money.
export HOME="${HOME:-/root}"
log() { echo "outlast: $*"; }
give_up() {
    log "error: $*; switching off, as the machine cannot do its work"
    shutdown -h now
    exit 1
}
place=/opt/outlast
# A machine of the local cloud without its own root file system must not write to the host's /opt.
[ -z "$OUTLAST_MACHINE" ] || [ "$HOME" = /root ] || place="$HOME/.outlast/agent"
mkdir -p "$place" 2>/dev/null && [ -w "$place" ] || { place="$HOME/.outlast/agent"; mkdir -p "$place"; }

python=""
# Prints the version if outlast supports it.
supported='import sys; v = sys.version_info; sys.exit(not (3, 11) <= v < (3, 15) or print("%d.%d" % v[:2]))'
for name in python3.14 python3.13 python3.12 python3.11 python3; do
    found="$(command -v "$name")" || continue
    any="${any:-$found}"
    version="$("$found" -c "$supported" 2>/dev/null)" && python="$found" && break
done
# Prints the paths of the objects that metadata attributes name, after comparing their content with their names.
read -r -d '' program <<'END_OF_PROGRAM'
@FETCH@
END_OF_PROGRAM
fetch() { if [ -n "$any" ]; then "$any" -c "$program" "$place" "$@"; else fetch_with_curl "$1"; fi; }

# The same with curl and the machine's identity: without any Python, for uv alone, and for archives on the disk.
attribute() {
    if [ "$OUTLAST_METADATA_SERVICE" = ec2 ]; then
        # A tag changes an attribute of the launch.
        metadata "tags/instance/outlast-set-$1" || sed -n 's/^# outlast-metadata: //p' "$0" | base64 -d | sed -n 's/.*"'"$1"'": *"\([^"]*\)".*/\1/p'
    else
        metadata "instance/attributes/$1"
    fi
}
metadata() {
    local ec2="${AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}/latest"
    if [ "$OUTLAST_METADATA_SERVICE" = ec2 ]; then
        local token="$(curl -sf --noproxy '*' -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 600' "$ec2/api/token")"
        curl -sf --noproxy '*' -H "X-aws-ec2-metadata-token: $token" "$ec2/meta-data/$1"
    else
        curl -sf --noproxy '*' -H 'Metadata-Flavor: Google' \
            "http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/$1"
    fi
}
field() { sed -n 's/.*"'"$1"'" *: *"\([^"]*\)".*/\1/p'; }
download() {
    local url="$1" file="$2" base region keys
    if [ "${url%%://*}" = gs ]; then
        base="$(attribute outlast-storage-host)" && base="${base:-https://storage.googleapis.com}"
        [[ "$base" == http* ]] || base="http://$base"
        keys="$(metadata instance/service-accounts/default/token | tr -d '\n' | field access_token)"
        curl -sS -f -o "$file" -H "Authorization: Bearer $keys" "${base%/}/${url#*://}"
    else
        region="$(attribute outlast-s3-region)" && region="${region:-us-east-1}"
        base="$(attribute outlast-s3-endpoint)" && base="${base:-https://s3.$region.amazonaws.com}"
        keys="$(metadata "iam/security-credentials/$(metadata iam/security-credentials/ | head -1)" | tr -d '\n')"
        curl -sS -f -o "$file" --aws-sigv4 "aws:amz:$region:s3" -H "x-amz-content-sha256: UNSIGNED-PAYLOAD" \
            --user "$(field AccessKeyId <<<"$keys"):$(field SecretAccessKey <<<"$keys")" \
            -H "x-amz-security-token: $(field Token <<<"$keys")" "${base%/}/${url#*://}"
    fi
}
fetch_with_curl() {
    local url file digest tries
    url="$(attribute "$1")" && digest="$(basename "$(dirname "$url")")" && file="$place/$digest/$(basename "$url")"
    mkdir -p "$place/$digest"
    # Rights that were granted minutes ago take effect late.
    for tries in {1..60}; do
        [ ! -e "$file" ] || { echo "$file"; return 0; }
        if download "$url" "$file.draft"; then
            echo "$digest  $file.draft" | sha256sum --check --status && mv "$file.draft" "$file" && continue
            log "$url is damaged: its content does not match its name" >&2
        fi
        sleep 5
    done
    return 1
}

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
    [ -n "$any" ] || command -v curl >/dev/null || give_up "this image has neither Python nor curl; choose another image"
    uv="$(unpacked "$(fetch outlast-uv)")/bin/uv" || give_up "could not fetch uv from the workspace"
    export UV_PYTHON_INSTALL_DIR="$place/python" UV_CACHE_DIR="$place/uv-cache"
    export UV_NO_CONFIG=1 UV_SYSTEM_CERTS=1 UV_NATIVE_TLS=1
    wanted=3.12
    "$uv" --quiet python install 3.12 || { wanted=">=3.11,<3.15" && "$uv" --quiet python install "$wanted"; } ||
        give_up "uv could not download Python; choose an image with Python 3.11 or newer, or set [environment] python_mirror"
    python="$("$uv" python find --managed-python "$wanted")" || give_up "uv does not find the Python that it downloaded"
    any="$python"
    version="$("$python" -c "$supported")" || give_up "uv installed a Python that outlast does not support"
fi

# Prints the paths of archives that an image or an earlier boot left on the disk: no Python need start to fetch them.
on_disk() {
    local name url folder file
    command -v curl >/dev/null || return 1
    for name in "$@"; do
        url="$(attribute "$name")" && folder="${url%/*}" && file="$place/${folder##*/}/${url##*/}" && [ -f "$file" ] || return 1
        echo "$file"
    done
}

fetched="$(on_disk outlast-wheel outlast-libraries)" || fetched="$(fetch outlast-wheel outlast-libraries)" || give_up "could not fetch outlast and its libraries from the workspace"
wheel="${fetched%%$'\n'*}" libraries="${fetched##*$'\n'}"
sources="${wheel%/*}/lib"
if [ ! -d "$sources" ]; then
    rm -rf "$sources.part" && "$python" -m zipfile -e "$wheel" "$sources.part" && mv "$sources.part" "$sources" ||
        give_up "could not unpack ${wheel##*/}: is the disk full?"
fi
libraries="$(unpacked "$libraries")" || give_up "could not unpack the libraries of outlast: is the disk full?"
export PYTHONPATH="$sources:$libraries/$version"
# Once per disk, which keeps the compiled modules: an image that has booted before loads everything once.
loads="$sources.loads-$version"
[ -e "$loads" ] || { "$python" -P -c "import msgspec, obstore, click, outlast.agent.boot" && touch "$loads"; } ||
    give_up "Python $version of this image cannot load outlast"
