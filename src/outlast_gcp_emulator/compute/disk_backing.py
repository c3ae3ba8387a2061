"""The storage behind a disk. One of: a machine of the local cloud that boots from it, an image of the local cloud that
it will be created from, or a file, if the disk holds no system."""

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
# Kinds that may have an image of the local cloud (`_local`) or a file (`_drive`) behind them.
_OWNERS = ("images", "snapshots", "savedDisks", "disks")


class DiskBacking:
    """Creates, copies and deletes the images and files behind disks, images and snapshots."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._cloud = context.cloud

    # Machines

    def machine(self, name: str) -> Machine | None:
        try:
            return self._cloud.machine(name) if name else None
        except NotFound:
            return None

    def is_running(self, doc: Doc) -> bool:
        machine = self.machine(str(doc.get("_machine") or ""))
        return machine is not None and machine.status != "stopped"

    def free_machine_name(self, ref: Ref) -> str:
        """Return a name for a machine of the local cloud, which has no projects."""
        taken = {machine.name for machine in self._cloud.machines()}
        taken |= {str(doc.get("_machine")) for _, doc in self._context.store.each("disks")}
        return _free_name(ref, taken, plain=True)

    # Images of the local cloud

    def snapshot(self, disk: Ref, local: str) -> Image:
        """Create an image of a disk in its current state, even during writes, as after a power cut."""
        return self._cloud.snapshot(self._context.find(disk)["_machine"], local, live=True)

    def free_image_name(self, ref: Ref) -> str:
        """Return a name for an image of the local cloud: the same name if it is free, else with a digest."""
        taken = {name for image in self._cloud.images() for name in (image.name, image.family)}
        return _free_name(ref, taken, plain=ref.collection == "images")

    def release(self, local: str) -> None:
        """Delete an image of the local cloud unless a resource refers to it."""
        if local and local != BASE_IMAGE and not self._is_owned("_local", value=local):
            self._cloud.delete_image(local)

    def _is_owned(self, *fields: str, value: str) -> bool:
        docs = (doc for collection in _OWNERS for _, doc in self._context.store.each(collection))
        return any(doc.get(field) == value for doc in docs for field in fields)

    # Files

    def _path(self, drive: str) -> str:
        return f"{self._cloud.root}/drives/{drive}"

    def drive(self, disk: Doc) -> str:
        """Return the path of the file behind a disk. A missing file is created: empty, or as a copy of the source."""
        path, size = self._path(disk["_drive"]), int(disk["sizeGb"]) * _GB
        with self._context.names:
            if not os.path.exists(path):
                self.copy_drive(str(disk.get("_copied", "")), disk["_drive"])
            # Sparse: only written blocks take space.
            if os.path.getsize(path) < size:
                os.truncate(path, size)
        return path

    def copy_drive(self, source: str, drive: str) -> int:
        """Copy a file, or create an empty one without a source. Returns the bytes that it takes on disk."""
        path = self._path(drive)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        draft = f"{path}.draft"
        if source and os.path.exists(self._path(source)):
            argv = ["cp", "--reflink=auto", "--sparse=always", self._path(source), draft]
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                with suppress(FileNotFoundError):
                    os.unlink(draft)
                hint = f"check the free space of {self._cloud.root}"
                raise CloudError(f"could not copy the disk: {done.stderr.strip()}", hint=hint)
        else:
            os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        os.replace(draft, path)
        return os.stat(path).st_blocks * 512

    def release_drive(self, drive: str) -> None:
        """Delete a file unless a resource refers to it."""
        if not drive or self._is_owned("_drive", "_copied", value=drive):
            return
        # A server that was killed during a copy leaves a draft.
        for path in (self._path(drive), f"{self._path(drive)}.draft"):
            with suppress(FileNotFoundError):
                os.unlink(path)


def disk_in_use(ref: Ref, user: Ref) -> ApiError:
    message = f"The disk resource '{ref.path}' is already being used by '{user.path}'"
    return ApiError(400, "resourceInUseByAnotherResource", message)


def _free_name(ref: Ref, taken: set[str], *, plain: bool) -> str:
    name, count = ref.name, 0
    while name in taken or not plain:
        digest = hashlib.blake2b(f"{ref.path} {count}".encode(), digest_size=4).hexdigest()
        name, count, plain = f"{ref.name[:50]}-{digest}", count + 1, True
    return name
