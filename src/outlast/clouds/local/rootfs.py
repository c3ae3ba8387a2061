"""The root file system of modes `root` and `userns`: layers of an image over this computer's software.

    disk/%2Fusr/…      changes below a tree that the machine shares with this computer
    disk/top/…         all other changes                         work/…   work folders of the overlays

`base` is this computer's software: /usr, /etc, /opt, the package database, and the interpreter that launched the
machine. Homes, data and keys are not in it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress

from outlast.clouds.local import linux, proxy
from outlast.clouds.local.files import remove_tree
from outlast.clouds.local.folder import Folder
from outlast.clouds.local.init import BASIC_PATH, marker, shell
from outlast.clouds.local.isolation import Inside
from outlast.clouds.local.network import METADATA, Uplink
from outlast.clouds.local.processes import MARKER

_TOP = "top"
_SOFTWARE = ("/usr", "/etc", "/opt", "/var/lib/dpkg", "/var/lib/apt", "/var/lib/python", "/var/lib/ucf")
_LEGACY = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_FOLDERS = ("root", "home", "mnt", "media", "srv", "proc", "sys", "dev", "run", "tmp")
_VAR = ("var/cache/apt/archives/partial", "var/log/apt", "var/tmp", "var/spool", "var/lib/misc", "var/mail")
# Files below the shared trees that a machine must not see.
_SECRETS = (
    *(
        "/etc/shadow-",
        "/etc/gshadow-",
        "/etc/ssh/ssh_host_*",
        "/etc/ssl/private/*",
        "/etc/krb5.keytab",
        "/etc/boto.cfg",
    ),
    *("/etc/NetworkManager/system-connections/*", "/etc/wireguard/*", "/etc/wpa_supplicant/*", "/etc/sudoers.d/*"),
    *("/etc/gshadow", "/etc/machine-id"),
)
# An ordinary user can write into folders of this computer's root only if they exist in a layer above.
_PREOWNED = (
    *("etc", "etc/apt", "etc/ssh", "etc/profile.d", "opt", "usr", "usr/bin", "usr/sbin", "usr/lib", "usr/share"),
    *("usr/local", "usr/local/bin", "usr/local/sbin", "usr/local/lib", "usr/local/share", "usr/local/etc"),
)
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "fuse", "net/tun", "kvm")
_DEVICE_LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1"}
_NOSUID_NODEV = linux.MS_NOSUID | linux.MS_NODEV
_NOSUID_NODEV_NOEXEC = _NOSUID_NODEV | linux.MS_NOEXEC


def environment(folder: Folder) -> dict[str, str]:
    """Return the environment of scripts and sessions: clean, with the interpreter that launched the machine."""
    facts = folder.facts() or {}
    base = facts.get("base")
    return {
        "PATH": BASIC_PATH if base else f"{os.path.dirname(sys.executable)}:{BASIC_PATH}",
        "HOME": "/root",
        "PWD": "/root",
        "USER": "root",
        "LOGNAME": "root",
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "SHELL": shell(),
        MARKER: marker(folder),
        # As in the other modes, for programs that read these first.
        "GCE_METADATA_HOST": METADATA,
        "GCE_METADATA_IP": METADATA,
        **(proxy.variables() if facts.get("mode") == "userns" else {}),
    }


def inside(folder: Folder, *, rootless: bool) -> Inside:
    return Inside(
        scripts_dir="/run/outlast",
        # Also in place of the real commands, which scripts call by full path.
        power_dirs=("/usr/local/sbin", "/usr/sbin"),
        home="/root",
        variables=environment(folder),
        ssh="" if rootless else "/run/outlast-ssh",
    )


def build(folder: Folder, uplink: Uplink, *, rootless: bool) -> None:
    """Mount everything below `root/`, in the machine's own mount namespace."""
    linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
    root = f"{folder.path}/root"
    layers = _layers(folder)
    os.makedirs(root, exist_ok=True)
    is_new = not os.path.isdir(f"{folder.disk_path}/{_TOP}")
    # A layer is empty if two images were created of a disk without a boot in between.
    tops = [top for layer in layers if os.path.isdir(top := f"{layer}/{_TOP}")]
    facts = folder.facts() or {}
    # Another root file system in place of this computer's software.
    base = str(facts.get("base", ""))
    if base:
        tops.append(base)
    _overlay(folder, _TOP, tops, root, rootless=rootless)
    _create_folders(root)
    if rootless:
        _preown(folder.disk_path)
    if is_new and not base:
        _hide_opt(folder.disk_path, layers, rootless=rootless)
    for path in () if base else software(facts.get("software", [])):
        key = path.replace("/", "%2F")
        os.makedirs(root + path, exist_ok=True)
        lowers = [lower for layer in layers if os.path.isdir(lower := f"{layer}/{key}")]
        try:
            _overlay(folder, key, [*lowers, path], root + path, rootless=rootless)
        except OSError:
            # Another file system is mounted below it; then the machine gets it read-only.
            _bind(path, root + path, writable=False)
    _mount_system(root)
    for path in [*facts.get("readable", []), *facts.get("writable", [])]:
        if os.path.exists(path):
            _bind(path, root + path, writable=path in facts.get("writable", []))
    if is_new and not tops:
        # Not over an image, which has its own accounts, keys and settings.
        _hide_secrets(root)
        _accounts(root, rootless=rootless)
        # This computer's fstab names disks that no machine has.
        _replace(f"{root}/etc/fstab", "# <file system> <mount point> <type> <options> <dump> <pass>\n", 0o644)
    _write_host_names(root, folder.name, uplink, names=not base or bool(facts.get("base_names")))
    _bind(f"{folder.path}/scripts", f"{root}/run/outlast")
    _bind(f"{folder.path}/ssh", f"{root}/run/outlast-ssh", writable=False)


def _layers(folder: Folder) -> list[str]:
    """Return the layers below the machine's own, uppermost first. Raises OSError if one is missing."""
    names = (folder.facts() or {}).get("layers", [])
    found = [path for name in names if os.path.isdir(path := f"{folder.root}/layers/{name}")]
    # The last one is missing if a snapshot was killed before it moved the disk: then the disk is complete.
    gone = [name for name in names[:-1] if f"{folder.root}/layers/{name}" not in found]
    if gone or (names and len(found) < len(names) and not os.path.isdir(f"{folder.disk_path}/{_TOP}")):
        raise OSError(f"layers of its disk are missing in {folder.root}/layers: {', '.join(gone or names[-1:])}")
    return found[::-1]


def software(more: Iterable[str] = ()) -> list[str]:
    """Return the trees of this computer that machines share, plus `more`: outermost first, none inside another."""
    source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    interpreter = [os.path.realpath(sys.prefix), sys.prefix, os.path.realpath(sys.base_prefix), sys.base_prefix, source]
    wanted = [*_SOFTWARE, *(path for path in _LEGACY if not os.path.islink(path)), *interpreter, *more]
    found: list[str] = []
    for path in sorted({path for path in wanted if os.path.isdir(path)}):
        if path != "/" and not any(path == other or path.startswith(f"{other}/") for other in found):
            found.append(path)
    return found


def _overlay(folder: Folder, key: str, lowers: list[str], target: str, *, rootless: bool) -> None:
    upper, work, empty = f"{folder.disk_path}/{key}", f"{folder.path}/work/{key}", f"{folder.path}/work/empty"
    # The kernel's mark of a volatile overlay that was not synced. Nothing is lost without a power failure of the host.
    remove_tree(f"{work}/work/incompat")
    for path in (upper, work, empty):
        os.makedirs(path, exist_ok=True)
    escaped = ":".join(path.replace("\\", "\\\\").replace(":", "\\:") for path in lowers or [empty])
    # Volatile: otherwise every unmount waits until this computer's whole disk is synced.
    options = f"volatile,lowerdir={escaped},upperdir={_escaped(upper)},workdir={_escaped(work)}"
    linux.mount("overlay", target, "overlay", 0, options + (",userxattr" if rootless else ""))


def _escaped(path: str) -> str:
    return path.replace("\\", "\\\\").replace(",", "\\,")


def _bind(path: str, target: str, *, writable: bool = True) -> None:
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT, 0o644))
    linux.mount(path, target, None, linux.MS_BIND | linux.MS_REC)
    if not writable:
        linux.mount(None, target, None, linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY | _NOSUID_NODEV)


def _create_folders(root: str) -> None:
    for name in (*_FOLDERS, *_VAR):
        os.makedirs(f"{root}/{name}", exist_ok=True)
    os.chmod(f"{root}/root", 0o700)
    for name in ("tmp", "var/tmp"):
        os.chmod(f"{root}/{name}", 0o1777)
    for path in _LEGACY:
        if os.path.islink(path) and not os.path.lexists(root + path):
            os.symlink(os.readlink(path), root + path)


def _preown(disk: str) -> None:
    for path in _PREOWNED:
        first, _, rest = path.partition("/")
        os.makedirs(f"{disk}/%2F{first}/{rest}", exist_ok=True)


def _hide_opt(disk: str, layers: list[str], *, rootless: bool) -> None:
    """Give the machine its own /opt/outlast: this computer's one has other packages, and belongs to another user.

    Also if there is none now: an image of this machine is to boot when there is one.
    """
    below = "%2Fopt/outlast"
    if any(os.path.isdir(f"{layer}/{below}") for layer in layers):
        return
    os.makedirs(f"{disk}/{below}", exist_ok=True)
    with suppress(OSError):  # a file system without such attributes; then its content is visible
        os.setxattr(f"{disk}/{below}", f"{'user' if rootless else 'trusted'}.overlay.opaque", b"y")


def _mount_system(root: str) -> None:
    """Mount /proc, /sys, /dev and the file systems in memory."""
    linux.mount("proc", f"{root}/proc", "proc", _NOSUID_NODEV_NOEXEC)
    linux.mount("sysfs", f"{root}/sys", "sysfs", _NOSUID_NODEV_NOEXEC | linux.MS_RDONLY)
    with suppress(OSError):  # the machine's control groups, below which a container runtime creates its own
        linux.mount("cgroup2", f"{root}/sys/fs/cgroup", "cgroup2", _NOSUID_NODEV_NOEXEC)
    linux.mount("tmpfs", f"{root}/dev", "tmpfs", linux.MS_NOSUID, "mode=755,size=1m")
    for name in _DEVICES:
        if os.path.exists(f"/dev/{name}"):
            os.makedirs(os.path.dirname(f"{root}/dev/{name}"), exist_ok=True)
            os.close(os.open(f"{root}/dev/{name}", os.O_WRONLY | os.O_CREAT, 0o666))
            linux.mount(f"/dev/{name}", f"{root}/dev/{name}", None, linux.MS_BIND)
    for path in _matching("/dev/nvidia*"):
        if not os.path.isdir(path):
            os.close(os.open(root + path, os.O_WRONLY | os.O_CREAT, 0o666))
            linux.mount(path, root + path, None, linux.MS_BIND)
    os.mkdir(f"{root}/dev/pts")
    options = "newinstance,ptmxmode=0666,mode=0620"
    linux.mount("devpts", f"{root}/dev/pts", "devpts", linux.MS_NOSUID | linux.MS_NOEXEC, options)
    os.symlink("pts/ptmx", f"{root}/dev/ptmx")
    for name, target in {**_DEVICE_LINKS, "stderr": "/proc/self/fd/2"}.items():
        os.symlink(target, f"{root}/dev/{name}")
    os.mkdir(f"{root}/dev/shm")
    linux.mount("tmpfs", f"{root}/dev/shm", "tmpfs", _NOSUID_NODEV, "mode=1777")
    linux.mount("tmpfs", f"{root}/run", "tmpfs", _NOSUID_NODEV, "mode=755")
    for name in ("lock", "sshd"):
        os.mkdir(f"{root}/run/{name}")


def _hide_secrets(root: str) -> None:
    for pattern in _SECRETS:
        for path in _matching(root + pattern):
            with suppress(OSError):
                remove_tree(path, timeout_s=0.0)


def _matching(pattern: str) -> list[str]:
    """Return the path if it exists, or all paths with that prefix if it ends with a star."""
    folder, _, name = pattern.rpartition("/")
    try:
        found = os.listdir(folder)
    except OSError:
        return []
    if name.endswith("*"):
        return [f"{folder}/{each}" for each in sorted(found) if each.startswith(name[:-1])]
    return [pattern] if name in found else []


def _accounts(root: str, *, rootless: bool) -> None:
    """Write the system accounts of this computer, without passwords, and root's shell profile."""
    with open("/etc/passwd", encoding="utf-8") as file:
        lines = [line for line in file.read().splitlines() if line.count(":") == 6]
    # A machine does not see the people who use this computer.
    system = [line for line in lines if int(line.split(":")[2]) < 1000 or int(line.split(":")[2]) >= 65534]
    _replace(f"{root}/etc/passwd", "".join(f"{line}\n" for line in system), 0o644)
    shadow = "".join(f"{line.split(':')[0]}:*:19000:0:99999:7:::\n" for line in system)
    _replace(f"{root}/etc/shadow", shadow, 0o600)
    for name in (".bashrc", ".profile"):
        if os.path.exists(f"/etc/skel/{name}") and not os.path.lexists(f"{root}/root/{name}"):
            with open(f"/etc/skel/{name}", encoding="utf-8") as source:
                _replace(f"{root}/root/{name}", source.read(), 0o644)


def _write_host_names(root: str, name: str, uplink: Uplink, *, names: bool) -> None:
    """Write hostname, hosts and resolver, without which every look-up of the machine's name takes five seconds.

    Without `names` the machine can look up no other computer: it reaches its metadata and its bucket alone.
    """
    hosts = f"127.0.0.1 localhost\n{uplink.address} {name}\n{METADATA} metadata.google.internal metadata\n"
    resolver = ""
    if uplink.routes_out and names:
        with open("/etc/resolv.conf", encoding="utf-8", errors="replace") as file:
            resolver = "".join(line for line in file if not line.startswith("nameserver 127."))
    for file_name, text in (("hostname", f"{name}\n"), ("hosts", hosts), ("resolv.conf", resolver)):
        _replace(f"{root}/etc/{file_name}", text, 0o644)


def _replace(path: str, text: str, permissions: int) -> None:
    """Write a new file: an ordinary user cannot change one of this computer's in place."""
    draft = f"{path}.outlast"
    with open(draft, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(draft, permissions)
    os.replace(draft, path)
