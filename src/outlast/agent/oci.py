"""The configuration of a `runc` container whose root is a folder. Pure, except that it reads that folder.

With `runc` alone, the image is a folder with a root file system, or an OCI bundle.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outlast.errors import OutlastError

ErrorType = Callable[..., OutlastError]
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Of the machine, because the container shares its network and process namespaces.
_HOST = (("/proc", "rw"), ("/dev", "rw"), ("/sys", "ro"))
_HOST_FILES = ("/etc/resolv.conf", "/etc/hosts")
# Enough for root in a container that only computes; none that affects the machine.
_CAPABILITIES = ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SYS_NICE"]


def root_of(path: str, error: ErrorType) -> tuple[str, dict[str, Any]]:
    """Return the root file system and the bundle's configuration, empty without a bundle. Raises `error`."""
    bundle: dict[str, Any] = {}
    root = path
    try:
        with open(os.path.join(path, "config.json"), encoding="utf-8") as file:
            bundle = json.load(file)
        root = os.path.join(path, bundle.get("root", {}).get("path", "rootfs"))
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError, AttributeError) as problem:
        raise error(f"[machine] container: {path}/config.json cannot be read: {problem}") from problem
    if not os.path.isdir(root):
        raise error(
            f"[machine] container: the machine has no folder `{root}`",
            hint="`oci:` takes a root file system, or an OCI bundle: a folder with `config.json` and `rootfs`",
        )
    if not any(os.path.isdir(os.path.join(root, name)) for name in ("bin", "usr/bin")):
        raise error(
            f"[machine] container: `{root}` is not a root file system: it has neither `bin` nor `usr/bin`",
            hint="`docker export CONTAINER | tar -x -C FOLDER` creates one",
        )
    return root, bundle


def config(
    path: str,
    argv: Sequence[str],
    *,
    mounts: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    user: int,
    group: int,
    error: ErrorType,
) -> dict[str, Any]:
    """Return `config.json` for one command. Raises `error` without a root file system."""
    root, bundle = root_of(path, error)
    theirs = bundle.get("process", {})
    defaults = dict(line.partition("=")[::2] for line in theirs.get("env", []))
    variables = {"PATH": _PATH, **defaults, **environment}
    rootless = user != 0
    capabilities = dict.fromkeys(("bounding", "effective", "permitted"), _CAPABILITIES)
    # Every device of the machine, GPUs included: the machine has no other users.
    devices = {"devices": [{"allow": True, "access": "rwm"}]}
    linux: dict[str, Any] = {"namespaces": [{"type": "mount"}], "resources": {} if rootless else devices}
    if rootless:
        # Root inside is the ordinary user outside.
        linux["namespaces"].append({"type": "user"})
        linux["uidMappings"] = [{"containerID": 0, "hostID": user, "size": 1}]
        linux["gidMappings"] = [{"containerID": 0, "hostID": group, "size": 1}]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0} if rootless else {"uid": user, "gid": group},
            "args": list(argv),
            "env": [f"{name}={value}" for name, value in variables.items()],
            "cwd": folder,
            "capabilities": capabilities,
            "noNewPrivileges": True,
        },
        "root": {"path": root, "readonly": bool(bundle.get("root", {}).get("readonly", True))},
        "mounts": _mounts(root, mounts),
        # No separate process namespace: its process 1 would ignore SIGTERM unless it handles it.
        "linux": linux,
    }


def _mounts(root: str, binds: Sequence[str]) -> list[dict[str, Any]]:
    found = [_bind(path, mode) for path, mode in _HOST]
    found += [_bind(file, "ro") for file in _HOST_FILES if os.path.exists(file) and os.path.exists(root + file)]
    places = ["/tmp", "/run", "/var/tmp"]
    # The root is read-only and may be shared: mount points are made in memory, above empty folders only.
    places += [place for bind in binds if (place := _empty_above(root, bind)) not in ("", "/")]
    memory = [place for place in dict.fromkeys(places) if os.path.isdir(root + place)]
    found += [
        {"destination": place, "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "mode=1777"]}
        for place in memory
    ]
    return found + [_bind(path, "rw") for path in binds]


def _bind(path: str, mode: str) -> dict[str, Any]:
    return {"destination": path, "type": "none", "source": path, "options": ["rbind", mode]}


def _empty_above(root: str, path: str) -> str:
    """Return the nearest folder above a mount that exists in the root, if it is empty; else nothing."""
    while path != "/":
        path = os.path.dirname(path)
        if os.path.isdir(root + path):
            return path if not os.listdir(root + path) else ""
    return ""
