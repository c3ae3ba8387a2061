"""What stands behind a disk: a machine of the local cloud whose boot disk it is, an image that it will be made from, or
a file of this computer, if the disk holds no system."""

from __future__ import annotations

import hashlib
import os
import subprocess
from contextlib import suppress

from outlast.clouds.cloud import Image, Machine
from outlast.clouds.local.catalog import BASE_IMAGE
from outlast.errors import CloudError, NotFound
from outlast_gcp_emulator.compute.context import Context
from outlast_gcp_emulator.compute.refs import Doc, Ref
from outlast_gcp_emulator.errors import ApiError

_GB = 2**30
# Kinds that may have an image of the local cloud, or a file, behind them.
_OWNERS = ("images", "snapshots", "savedDisks", "disks")


def machine_of(context: Context, name: str) -> Machine | None:
    try:
        return context.cloud.machine(name)
    except NotFound:
        return None


def is_running(context: Context, disk: Doc) -> bool:
    machine = machine_of(context, disk["_machine"]) if disk.get("_machine") else None
    return machine is not None and machine.status != "stopped"


def freeze(context: Context, disk: Ref, local: str) -> Image:
    """An image of a disk as it is now, also of one that is being written to, as after a power cut."""
    return context.cloud.snapshot(context.find(disk)["_machine"], local, live=True)


def in_use(ref: Ref, user: Ref) -> ApiError:
    told = f"The disk resource '{ref.path}' is already being used by '{user.path}'"
    return ApiError(400, "resourceInUseByAnotherResource", told)


def local_image(context: Context, ref: Ref) -> str:
    """A name for an image of the local cloud: the same if it is free, else with something to tell it apart."""
    taken = {name for image in context.cloud.images() for name in (image.name, image.family)}
    return _free(ref, taken, plain=ref.collection == "images")


def local_machine(context: Context, ref: Ref) -> str:
    """A name for a machine of the local cloud, which knows no projects."""
    taken = {machine.name for machine in context.cloud.machines()}
    taken |= {str(doc.get("_machine")) for _, doc in context.store.each("disks")}
    return _free(ref, taken, plain=True)


def _free(ref: Ref, taken: set[str], *, plain: bool) -> str:
    name, count = ref.name, 0
    while name in taken or not plain:
        digest = hashlib.blake2b(f"{ref.path} {count}".encode(), digest_size=4).hexdigest()
        name, count, plain = f"{ref.name[:50]}-{digest}", count + 1, True
    return name


def release(context: Context, local: str) -> None:
    """Delete an image if nobody names it any more."""
    if not local or local == BASE_IMAGE:
        return
    for collection in _OWNERS:
        if any(doc.get("_local") == local for _, doc in context.store.each(collection)):
            return
    context.cloud.delete_image(local)


def drive_path(context: Context, drive: str) -> str:
    return f"{context.cloud.root}/drives/{drive}"


def _draft(context: Context, drive: str) -> str:
    return f"{drive_path(context, drive)}.draft"


def drive(context: Context, disk: Doc) -> str:
    """The file behind a disk, as large as that. Made if need be: empty, or a copy of what the disk was made from."""
    path, size = drive_path(context, disk["_drive"]), int(disk["sizeGb"]) * _GB
    with context.names:
        if not os.path.exists(path):
            copy_drive(context, str(disk.get("_copied", "")), disk["_drive"])
        # Sparse: it takes the room of what is written to it.
        if os.path.getsize(path) < size:
            os.truncate(path, size)
    return path


def copy_drive(context: Context, source: str, drive: str) -> int:
    """Another file with what is in this one now, or with nothing; answers with the bytes that it takes."""
    path = drive_path(context, drive)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    draft = _draft(context, drive)
    if source and os.path.exists(drive_path(context, source)):
        argv = ["cp", "--reflink=auto", "--sparse=always", drive_path(context, source), draft]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            with suppress(FileNotFoundError):
                os.unlink(draft)
            raise CloudError(f"the disk cannot be copied: {done.stderr.strip()}", hint="is there room for it?")
    else:
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    os.replace(draft, path)
    return os.stat(path).st_blocks * 512


def release_drive(context: Context, drive: str) -> None:
    """Delete a file if nobody names it any more."""
    if not drive:
        return
    for collection in _OWNERS:
        if any(drive in (doc.get("_drive"), doc.get("_copied")) for _, doc in context.store.each(collection)):
            return
    # Half a copy as well, of a server that was killed while it copied.
    for path in (drive_path(context, drive), _draft(context, drive)):
        with suppress(FileNotFoundError):
            os.unlink(path)
