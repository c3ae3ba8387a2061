"""The environment of a machine on this computer's loopback, for the modes without namespaces for the network."""

from __future__ import annotations

import os
import socket
import sys

from outlast.clouds.local.folder import Folder
from outlast.clouds.local.init import BASIC_PATH, marker, shell
from outlast.clouds.local.isolation import Inside
from outlast.clouds.local.processes import MARKER


def listen(folder: Folder) -> socket.socket:
    """Return a socket on the machine's own loopback address; on macOS, on the shared 127.0.0.1."""
    machine_id = int((folder.facts() or {})["id"])
    own = f"127.{machine_id % 253 + 1}.{machine_id // 253 % 254}.{machine_id // 65000 % 253 + 1}"
    for address in (own, "127.0.0.1"):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.bind((address, 0))
        except OSError:
            listener.close()
            continue
        listener.listen(socket.SOMAXCONN)
        return listener
    raise OSError("could not bind a loopback address")


def inside(folder: Folder, metadata_host: str) -> Inside:
    """Return the machine as its init sees it: its disk is a folder of this computer."""
    return Inside(
        scripts_dir=f"{folder.path}/scripts",
        power_dirs=(f"{folder.path}/bin",),
        home=f"{folder.disk_path}/home",
        variables=environment(folder, metadata_host),
    )


def prepare(folder: Folder) -> tuple[socket.socket, str, Inside]:
    """Create the machine's folders and the socket of its metadata server; return socket, address, and init's view."""
    listener = listen(folder)
    address, port = listener.getsockname()[:2]
    for name in ("disk/home", "disk/tmp", "bin"):
        os.makedirs(f"{folder.path}/{name}", exist_ok=True)
    return listener, address, inside(folder, f"{address}:{port}")


def environment(folder: Folder, metadata_host: str) -> dict[str, str]:
    """Return a clean environment: of the launcher's, only the language and the interpreter."""
    return {
        # The image `base` is this computer's software, so `python` is the one that launched the machine.
        "PATH": f"{folder.path}/bin:{os.path.dirname(sys.executable)}:{BASIC_PATH}",
        "HOME": f"{folder.disk_path}/home",
        "TMPDIR": f"{folder.disk_path}/tmp",
        "PWD": f"{folder.disk_path}/home",
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "SHELL": shell(),
        MARKER: marker(folder),
        "GCE_METADATA_HOST": metadata_host,
        "GCE_METADATA_IP": metadata_host,
    }
