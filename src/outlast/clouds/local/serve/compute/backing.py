"""What stands behind a disk: a machine of the local cloud whose boot disk it is, an image that it will be made from, or
a file of this computer, if the disk holds no system."""

from __future__ import annotations

import hashlib
import os
import subprocess
from contextlib import suppress

from outlast.clouds.cloud import Image, Machine
from outlast.clouds.local.catalog import BASE_IMAGE
from outlast.clouds.local.serve.compute.desk import Desk
from outlast.clouds.local.serve.compute.links import Doc, Ref
from outlast.clouds.local.serve.refusal import Refused
from outlast.errors import CloudError, NotFound

_GB = 2**30
# Kinds that may have an image of the local cloud, or a file, behind them.
_OWNERS = ("images", "snapshots", "savedDisks", "disks")


def machine_of(desk: Desk, name: str) -> Machine | None:
    try:
        return desk.cloud.machine(name)
    except NotFound:
        return None


def is_running(desk: Desk, disk: Doc) -> bool:
    machine = machine_of(desk, disk["_machine"]) if disk.get("_machine") else None
    return machine is not None and machine.status != "stopped"


def freeze(desk: Desk, disk: Ref, local: str) -> Image:
    """An image of a disk as it is now, also of one that is being written to, as after a power cut."""
    return desk.cloud.snapshot(desk.find(disk)["_machine"], local, live=True)


def in_use(ref: Ref, user: Ref) -> Refused:
    told = f"The disk resource '{ref.path}' is already being used by '{user.path}'"
    return Refused(400, "resourceInUseByAnotherResource", told)


def local_image(desk: Desk, ref: Ref) -> str:
    """A name for an image of the local cloud: the same if it is free, else with something to tell it apart."""
    taken = {name for image in desk.cloud.images() for name in (image.name, image.family)}
    return _free(ref, taken, plain=ref.collection == "images")


def local_machine(desk: Desk, ref: Ref) -> str:
    """A name for a machine of the local cloud, which knows no projects."""
    taken = {machine.name for machine in desk.cloud.machines()}
    taken |= {str(doc.get("_machine")) for _, doc in desk.store.each("disks")}
    return _free(ref, taken, plain=True)


def _free(ref: Ref, taken: set[str], *, plain: bool) -> str:
    name, count = ref.name, 0
    while name in taken or not plain:
        digest = hashlib.blake2b(f"{ref.path} {count}".encode(), digest_size=4).hexdigest()
        name, count, plain = f"{ref.name[:50]}-{digest}", count + 1, True
    return name


def release(desk: Desk, local: str) -> None:
    """Delete an image if nobody names it any more."""
    if not local or local == BASE_IMAGE:
        return
    for collection in _OWNERS:
        if any(doc.get("_local") == local for _, doc in desk.store.each(collection)):
            return
    desk.cloud.delete_image(local)


def drive_path(desk: Desk, drive: str) -> str:
    return f"{desk.cloud.root}/drives/{drive}"


def _draft(desk: Desk, drive: str) -> str:
    return f"{drive_path(desk, drive)}.draft"


def drive(desk: Desk, disk: Doc) -> str:
    """The file behind a disk, as large as that. Made if need be: empty, or a copy of what the disk was made from."""
    path, size = drive_path(desk, disk["_drive"]), int(disk["sizeGb"]) * _GB
    with desk.names:
        if not os.path.exists(path):
            copy_drive(desk, str(disk.get("_copied", "")), disk["_drive"])
        # Sparse: it takes the room of what is written to it.
        if os.path.getsize(path) < size:
            os.truncate(path, size)
    return path


def copy_drive(desk: Desk, source: str, drive: str) -> int:
    """Another file with what is in this one now, or with nothing; answers with the bytes that it takes."""
    path = drive_path(desk, drive)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    draft = _draft(desk, drive)
    if source and os.path.exists(drive_path(desk, source)):
        words = ["cp", "--reflink=auto", "--sparse=always", drive_path(desk, source), draft]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            with suppress(FileNotFoundError):
                os.unlink(draft)
            raise CloudError(f"the disk cannot be copied: {done.stderr.strip()}", hint="is there room for it?")
    else:
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    os.replace(draft, path)
    return os.stat(path).st_blocks * 512


def release_drive(desk: Desk, drive: str) -> None:
    """Delete a file if nobody names it any more."""
    if not drive:
        return
    for collection in _OWNERS:
        if any(drive in (doc.get("_drive"), doc.get("_copied")) for _, doc in desk.store.each(collection)):
            return
    # Half a copy as well, of a server that was killed while it copied.
    for path in (drive_path(desk, drive), _draft(desk, drive)):
        with suppress(FileNotFoundError):
            os.unlink(path)
