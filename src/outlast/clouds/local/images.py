"""Images of the local cloud: their layers and families. Boots nothing.

    images/<name>.json   family, layers, labels …      layers/<id>/   one disk, or the changes above the layers below

A layer is immutable. A layer that no image and no machine refers to is deleted, so deleting an image does not affect
its machines.
"""

from __future__ import annotations

import os
import re
import secrets as random
import subprocess
import sys
import time
from typing import Any, NamedTuple

from outlast.clouds.cloud import Image
from outlast.clouds.local import catalog
from outlast.clouds.local.files import read_json, remove_tree, wait_lock, write_json
from outlast.clouds.local.folder import Folder
from outlast.errors import BadRequest, CloudError, NotFound

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
# Mode → format of its layers. Formats are incompatible: overlays store removals in file attributes, and root uses other
# attributes than an ordinary user.
FORMATS = {"pidns": "folder", "plain": "folder", "root": "overlay", "userns": "user-overlay"}
# The kernel limits mount options to 4096 bytes, and each layer adds a path to them.
_LAYERS_MAX = 12
_PENDING, _PENDING_S_MAX = ".pending", 6 * 3600.0


class Draft(NamedTuple):
    """Name and description of an image to create."""

    name: str
    family: str
    labels: dict[str, str]
    note: str


def list_all(root: str) -> list[Image]:
    """Return all images, sorted by name; `base` is always among them."""
    base = Image(name=catalog.BASE_IMAGE, cloud=catalog.CLOUD, description="the software of this computer")
    found = [image for name in _names(root) if (image := _read(root, name)) is not None]
    return sorted([base, *found], key=lambda image: image.name)


def find(root: str, name: str) -> Image:
    """Return the image of that name, else the newest of that family that is not retired. Raises NotFound."""
    known = list_all(root)
    for image in known:
        if image.name == name:
            return image
    members = [image for image in known if image.family == name and not image.retired]
    if members:
        return max(members, key=lambda image: (image.created_at, image.name))
    if any(image.family == name for image in known):
        raise NotFound(
            f"every image of family `{name}` is retired", hint="promote one of them: `outlast image promote IMAGE`"
        )
    near = catalog.unknown("image", name, {image.name for image in known} | {i.family for i in known if i.family})
    raise NotFound(near.message, hint=near.hint)


def layers_for(root: str, name: str, *, mode: str) -> list[str]:
    """Return the layers of an image, lowest first. Raises BadRequest if it was created in an incompatible mode."""
    if not name or (image := find(root, name)).name == catalog.BASE_IMAGE:
        return []
    record = read_json(_path(root, image.name)) or {}
    if not record:
        raise BadRequest(f"the record of image `{image.name}` is damaged", hint=f"outlast image delete {image.name}")
    if record.get("format") != FORMATS[mode]:
        made_in = " or ".join(f"`{m}`" for m, kind in FORMATS.items() if kind == record.get("format"))
        raise BadRequest(
            f"image `{image.name}` was created in mode {made_in} and cannot boot in mode `{mode}`",
            hint="build it again in this mode, or set OUTLAST_LOCAL_MODE",
        )
    return [str(layer) for layer in record["layers"]]


def snapshot(root: str, folder: Folder, draft: Draft, *, live: bool = False) -> Image:
    """Create an image of the disk of a stopped machine, whose lock the caller holds; with `live`, of a running one.

    May be repeated: returns the image that an earlier call created.
    """
    _check_name("image", draft.name)
    if draft.family:
        _check_name("family", draft.family)
    facts = folder.facts() or {}
    origin = f"{folder.name}.{facts.get('id')}"
    if (there := read_json(_path(root, draft.name))) is not None:
        if there.get("origin") != origin:
            raise BadRequest(f"image `{draft.name}` exists already", hint="delete it, or choose another name")
        return find(root, draft.name)
    if draft.name == catalog.BASE_IMAGE or any(image.family == draft.name for image in list_all(root)):
        why = f"invalid image name `{draft.name}`: it names a family or the built-in image"
        raise BadRequest(why, hint="choose another name")
    if any(image.name == draft.family for image in list_all(root)):
        # Names of images take precedence, so this family could never be used.
        raise BadRequest(f"invalid family `{draft.family}`: it names an image", hint="choose another name")
    if not os.path.isdir(folder.disk_path):
        raise BadRequest(f"machine `{folder.name}` has no disk: it was never booted", hint="start it first")
    layer = random.token_hex(8)
    os.makedirs(f"{root}/images", exist_ok=True)
    # This refers to the layer until the image does, so that no other process collects it.
    write_json(pending := f"{root}/images/{draft.name}.{layer}{_PENDING}", {"layers": [layer]})
    layers = _make_layer(root, folder, facts, layer, live=live)
    record = {
        "family": draft.family,
        "created_at": time.time(),
        "bytes": sum(_bytes_of(f"{root}/layers/{layer}") for layer in layers),
        "labels": draft.labels,
        "description": draft.note,
        "format": FORMATS[str(facts.get("mode"))],
        "origin": origin,
        "layers": layers,
    }
    write_json(_path(root, draft.name), record)
    os.unlink(pending)
    return find(root, draft.name)


def _make_layer(root: str, folder: Folder, facts: dict[str, Any], layer: str, *, live: bool) -> list[str]:
    """Turn the machine's disk into a layer; return the layers of the image, lowest first."""
    os.makedirs(f"{root}/layers", exist_ok=True)
    if FORMATS[str(facts.get("mode"))] == "folder":
        copy_disk(folder.disk_path, f"{root}/layers/{layer}")
        return [layer]
    # A killed snapshot may have recorded a layer that it did not create; its content is still on the disk.
    below = [name for name in facts.get("layers", []) if os.path.isdir(f"{root}/layers/{name}")]
    if below and not os.listdir(folder.disk_path):
        return below
    layers = [*below, layer]
    if len(layers) > _LAYERS_MAX:
        why = f"the disk of `{folder.name}` would have {len(layers)} layers; the limit is {_LAYERS_MAX}"
        raise BadRequest(why, hint="build the image from an earlier base")
    if live:
        # A running machine keeps writing to its disk, so a copy becomes the layer.
        copy_disk(folder.disk_path, f"{root}/layers/{layer}")
        return layers
    # Write the facts first: a machine whose disk became a layer that its facts omit would lose its files.
    folder.change_facts({"layers": layers})
    os.rename(folder.disk_path, f"{root}/layers/{layer}")
    os.mkdir(folder.disk_path)
    return layers


def copy_disk(source: str, target: str) -> None:
    """Copy a disk; the copy appears in one step."""
    draft = f"{target}.draft"
    remove_tree(draft)
    # `cp` shares blocks where the file system supports it; Python's modules do not.
    sharing = ["-a", "--reflink=auto"] if sys.platform == "linux" else ["-c", "-R", "-p"]
    copied = subprocess.run(["cp", *sharing, source, draft], capture_output=True, text=True, check=False)
    if copied.returncode != 0:
        remove_tree(draft)
        why = f"could not copy the disk {source}: {copied.stderr.strip()}"
        raise CloudError(why, hint="check the free space of the disk")
    os.rename(draft, target)


def change(root: str, name: str, **changes: Any) -> None:
    record = read_json(_path(root, _require(root, name)))
    write_json(_path(root, name), {**(record or {}), **changes})


def share(root: str, name: str, who: str) -> None:
    """Record with whom the image is shared. It has no effect on a single computer."""
    record = read_json(_path(root, _require(root, name))) or {}
    change(root, name, shared=sorted({*record.get("shared", []), who}))


def delete(root: str, name: str) -> None:
    if name == catalog.BASE_IMAGE:
        raise BadRequest(f"cannot delete image `{name}`: it is this computer's software")
    _check_name("image", name)
    try:
        os.unlink(_path(root, name))
    except FileNotFoundError:
        pass


def collect(root: str) -> None:
    """Delete the layers that no image and no machine refers to."""
    if not os.path.isdir(f"{root}/layers"):
        return
    lock = wait_lock(f"{root}/layers.lock")
    try:
        named = {layer for path in _records(root) for layer in (read_json(path) or {}).get("layers", [])}
        for machine in os.listdir(f"{root}/machines") if os.path.isdir(f"{root}/machines") else []:
            named |= set((Folder(f"{root}/machines/{machine}").facts() or {}).get("layers", []))
        for layer in os.listdir(f"{root}/layers"):
            if layer.removesuffix(".draft") not in named:
                remove_tree(f"{root}/layers/{layer}")
    finally:
        os.close(lock)


def _records(root: str) -> list[str]:
    """Return the files that refer to layers. Those of killed snapshots expire."""
    found = []
    for entry in os.scandir(f"{root}/images") if os.path.isdir(f"{root}/images") else []:
        if entry.name.endswith(_PENDING) and time.time() - entry.stat().st_mtime > _PENDING_S_MAX:
            os.unlink(entry.path)
        else:
            found.append(entry.path)
    return found


def _require(root: str, name: str) -> str:
    if name == catalog.BASE_IMAGE:
        raise BadRequest(f"cannot change image `{name}`: it is this computer's software")
    if read_json(_path(root, name)) is None:
        raise NotFound(f"the local cloud has no image `{name}`")
    return name


def _names(root: str) -> list[str]:
    try:
        found = os.listdir(f"{root}/images")
    except FileNotFoundError:
        return []
    return [name.removesuffix(".json") for name in found if name.endswith(".json")]


def _read(root: str, name: str) -> Image | None:
    record = read_json(_path(root, name))
    if record is None:
        return None
    if not record:
        return Image(name=name, cloud=catalog.CLOUD, description="damaged: cannot be booted; delete it")
    return Image(
        name=name,
        cloud=catalog.CLOUD,
        family=record.get("family", ""),
        created_at=record.get("created_at", 0.0),
        bytes=record.get("bytes", 0),
        labels=record.get("labels", {}),
        description=record.get("description", ""),
        retired=record.get("retired", False),
    )


def _path(root: str, name: str) -> str:
    return f"{root}/images/{name}.json"


def _check_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        hint = "use lower-case letters, digits and `-`, at most 63, a letter first"
        raise BadRequest(f"invalid {what} name `{name}`", hint=hint)


def _bytes_of(path: str) -> int:
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            try:
                total += os.lstat(f"{folder}/{name}").st_blocks * 512
            except FileNotFoundError:
                pass
    return total


def check(root: str, name: str) -> None:
    """Raise BadRequest if neither an image nor a family has this name."""
    try:
        find(root, name)
    except NotFound as problem:
        raise BadRequest(problem.message, hint=problem.hint) from problem
