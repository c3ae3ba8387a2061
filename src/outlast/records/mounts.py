"""Mounts of volumes on machines: their form in the metadata, and the script for NFS.

Nothing is written to /etc/fstab: every boot mounts the volumes that are not mounted yet.
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
    """One volume at one path. With `folder`, the path is a link to that folder of the volume."""

    path: str
    volume: str
    source: str
    kind: Literal["nfs", "folder"]
    options: str = ""
    folder: str = ""
    size_gb: float = 0.0


def mounts_for(volumes: Mapping[str, str], records: Mapping[str, ResourceRecord]) -> list[Mount]:
    """Return the mounts of a run. `volumes` maps a path to a volume or a folder of one."""
    mounts = []
    for path, place in volumes.items():
        name, _, folder = place.partition("/")
        record = records[name]
        kind: Literal["nfs", "folder"] = "folder" if record.mount_kind == "folder" else "nfs"
        mounts.append(
            Mount(
                path=path,
                volume=name,
                source=record.source,
                kind=kind,
                options=record.options,
                folder=folder,
                size_gb=record.size_gb,
            )
        )
    return mounts


def encode(mounts: Sequence[Mount]) -> str:
    return msgspec.json.encode(mounts).decode()


def decode(text: str) -> list[Mount]:
    return msgspec.json.decode(text, type=list[Mount]) if text else []


def run_folder(folder: str, *, run: str, submitted_at: float) -> str:
    """Fill in the run's date and name; the result is the same for every attempt."""
    date = time.strftime("%Y-%m-%d", time.gmtime(submitted_at))
    return folder.replace(RUN_PLACE, f"{date}-{run}")


def nfs_script(source: str, target: str, options: str) -> str:
    """Return a script, for root, that mounts with retries and installs the NFS client if missing. May be repeated."""
    options = options or "hard,timeo=600,retrans=2"
    return f"""source={shlex.quote(source)} target={shlex.quote(target)} options={shlex.quote(options)}
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
echo "could not mount $source" >&2
exit 1
"""
