"""How a machine mounts a volume: the words that travel in its metadata, and the script for NFS. Mounts nothing itself.

Nothing is ever written to /etc/fstab: whoever boots mounts, and what is mounted already is left alone.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from outlast.records.resources import ResourceRecord

ATTRIBUTE = "outlast-volumes"
RUN_PLACE = "{run}"


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """One volume at one path. With a folder, the path is a link to that folder in it."""

    path: str
    volume: str
    source: str
    kind: Literal["nfs", "folder"]
    options: str = ""
    folder: str = ""
    size_gb: float = 0.0


def mounts_for(wanted: Mapping[str, str], found: Mapping[str, ResourceRecord]) -> list[Mount]:
    """The mounts of a run: path → volume, or a folder in it; by the records of the volumes."""
    made = []
    for path, place in wanted.items():
        name, _, folder = place.partition("/")
        held = found[name]
        kind: Literal["nfs", "folder"] = "folder" if held.mount_kind == "folder" else "nfs"
        made.append(
            Mount(
                path=path,
                volume=name,
                source=held.source,
                kind=kind,
                options=held.options,
                folder=folder,
                size_gb=held.size_gb,
            )
        )
    return made


def encode(mounts: Sequence[Mount]) -> str:
    return msgspec.json.encode(mounts).decode()


def decode(text: str) -> list[Mount]:
    return msgspec.json.decode(text, type=list[Mount]) if text else []


def run_folder(folder: str, *, run: str, submitted_at: float) -> str:
    """The folder with the run's date and name in it: the same for every attempt."""
    date = time.strftime("%Y-%m-%d", time.gmtime(submitted_at))
    return folder.replace(RUN_PLACE, f"{date}-{run}")


def nfs_script(source: str, target: str, options: str) -> str:
    """Mounts it, patiently. May be repeated. For root; brings the client where the image has none."""
    said = f"options={shlex.quote(options or 'hard,timeo=600,retrans=2')}"
    return f"""source={shlex.quote(source)} target={shlex.quote(target)} {said}
mkdir -p "$target" || exit 1
for pause in 1 2 4 8 15 30 30 0; do
    if grep -qF " $target nfs" /proc/mounts; then exit 0; fi
    if ! command -v mount.nfs >/dev/null && ! [ -x /sbin/mount.nfs ]; then
        if command -v apt-get >/dev/null; then
            export DEBIAN_FRONTEND=noninteractive
            apt-get update -qq >/dev/null; apt-get install -y -qq nfs-common >/dev/null
        else
            yum install -y -q nfs-utils >/dev/null
        fi
    fi
    mount -t nfs -o "$options" "$source" "$target" && exit 0
    sleep "$pause"
done
echo "$source cannot be mounted" >&2
exit 1
"""
