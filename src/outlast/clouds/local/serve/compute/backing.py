"""What stands behind a disk: a machine of the local cloud whose boot disk it is, or an image it will be made from."""

from __future__ import annotations

import hashlib

from outlast.clouds.cloud import Image, Machine
from outlast.clouds.local.catalog import BASE_IMAGE
from outlast.clouds.local.serve.compute.desk import Desk
from outlast.clouds.local.serve.compute.links import Doc, Ref
from outlast.errors import NotFound


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
    for collection in ("images", "snapshots", "disks"):
        if any(doc.get("_local") == local for _, doc in desk.store.each(collection)):
            return
    desk.cloud.delete_image(local)
